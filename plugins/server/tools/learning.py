"""Learns a `ToolFormat` from a chat template: renders calls, takes the text apart, and keeps what reads it back equal.

Names, keys and values that occur nowhere else show where a call's parts are. What is the same before a first call and before a
second one belongs to each call, and what is not stands around them; in the same way arguments are taken apart that are written
one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any

from attrs import evolve, frozen

from augury.errors import AuguryError
from augury.plugins.server.tools.delta import collect
from augury.plugins.server.tools.format import (
    CLOSINGS,
    GENERIC,
    HARMONY,
    ID,
    INDEX,
    KEY,
    NAMED,
    TYPE,
    Keys,
    Notation,
    ToolFormat,
    described,
    lexemes,
)
from augury.plugins.server.tools.notation import TYPES
from augury.plugins.server.tools.parser import AnswerParser

Render = Callable[..., str]
"""Writes `messages` with `tools`; raises `AuguryError` where the template refuses."""

_USER, _TEXT, _THOUGHT = "Xquestion", "Xtext", "Xthought"
_NAMES = ("xfirst", "xother")
_HEADER = rf" to=(?:{'|'.join(_NAMES)})<\|message\|>"  # of a message for a tool
_IDS = ("callidxx1", "callidxx2")  # of nine characters, which Mistral's want
_KEYS = ("xkey", "xmore", "xrest")  # in the order of the alphabet, in which some write them
_SPECIAL = "Xa <b>\n&\\d"

_PROBES: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"xkey": "75001", "xmore": 'two\nlines, "quoted"', "xrest": 3}, {"xkey": "true"}),
    ({"xkey": "<b> [x] {y} it's", "xmore": "", "xrest": [1, {"a": 2.5, "b": ["x"]}]},),
    ({"xrest": 0.5}, {"xrest": True}),
)
"""The arguments of calls that a format must read back as they are."""

_WAYS = ((False, False, ""), (False, False, None), (True, False, ""), (True, False, None), (False, True, ""))
_SCHEMA = {"type": "object", "properties": {"xkey": {"type": "string"}, "xmore": {"type": "string"}, "xrest": {}}}


def learn(render: Render) -> ToolFormat:
    """The format in which a template writes calls, or asks for them.

    Args:
        render: Writes `messages` with `tools`, and `add_generation_prompt`.
    """
    for is_text, is_named, empty in _WAYS:
        with suppress(_Strange, AuguryError):
            return _Learner(render, is_text, is_named, empty).format()
    with suppress(AuguryError):
        question = [{"role": "user", "content": _USER}]
        without, told = (render(question, tools=tools, add_generation_prompt=True) for tools in (None, probe_tools()))
        return described(told) if told != without else GENERIC
    return GENERIC


_TYPES = re.compile(rf"\b(?:{'|'.join(TYPES)})\b")


class _Strange(Exception):  # noqa: N818 -- no fault: the template writes calls in no form that is known
    """A template whose calls cannot be read."""


def probe_tools() -> list[dict[str, Any]]:
    """Tools whose names occur nowhere else."""
    properties = {key: {"type": "string", "description": "Any."} for key in _KEYS}
    parameters = {"type": "object", "properties": properties, "required": [_KEYS[0]]}
    return [
        {"type": "function", "function": {"name": name, "description": "Any.", "parameters": parameters}} for name in _NAMES
    ]


@frozen
class _Learner:
    """Learns from one way of asking the template, for they differ in what they take.

    Attributes:
        is_text: Whether arguments are sent as a text that holds JSON.
        is_named: Whether the ids of calls hold the names of their tools.
        empty: The content of a message that only calls.
    """

    render: Render
    is_text: bool
    is_named: bool
    empty: str | None

    def format(self) -> ToolFormat:
        """The template's format. Raises `_Strange` or `AuguryError` if there is none."""
        first, second = {_KEYS[0]: "Xone", _KEYS[1]: "Xtwo"}, {_KEYS[2]: "Xthree"}
        said = self._said(first)
        if f"to=functions.{_NAMES[0]}<|channel|>" in said:
            form = HARMONY
        else:
            both = said
            with suppress(AuguryError):
                both = self._said(first, second)
            is_single = _NAMES[1] not in both
            whole = re.sub(_HEADER, f" to={NAMED}<|message|>", said if is_single else both)
            form = self._taken_apart(whole, first, is_single=is_single)
            form = self._with_headers(form) if NAMED in whole else self._opened(form)
            form = evolve(form, has_ids=self.is_named)
        self._verify(form, is_single=form.n_most == 1)
        return form

    def _said(self, *arguments: Mapping[str, Any], content: str | None = None) -> str:
        """What the assistant says when it calls: from where it differs from plain text up to the end of its turn."""
        (before, ending), text = self._plain.split(_TEXT), self._written(arguments, self.empty if content is None else content)
        if (header := re.search(_HEADER, text)) is not None:
            return _without(text[header.start() :], ending)
        text = text.removeprefix(_common_start(before, text))
        thought = max((text.find(end) + len(end) for end in CLOSINGS if end in text.split(_NAMES[0])[0]), default=0)
        text = text[thought:]
        plain = _TEXT if text.startswith(_TEXT) else ""
        closing = _common_start(ending, text.removeprefix(plain))
        if closing.strip() and closing != ending:  # the content's, which calls come after
            text, ending = plain + text.removeprefix(plain + closing), ending.removeprefix(closing)
        return _without(text, ending).lstrip()

    def _with_headers(self, form: ToolFormat) -> ToolFormat:
        """The format, with the headers of messages that call nothing."""
        prompt = self._after_question()
        final = self._plain.partition(_TEXT)[0].removeprefix(prompt)
        text = self._after_question({"role": "assistant", "content": _TEXT, "reasoning_content": _THOUGHT})
        analysis, is_written, rest = text.removeprefix(prompt).partition(_THOUGHT)
        between, is_followed, _ = rest.partition(final + _TEXT)
        if not (is_written and is_followed):
            return evolve(form, final=final)
        start = _common_end(between, prompt)
        return evolve(form, final=final, analysis=analysis, message_end=between.removesuffix(start), message_start=start)

    def _opened(self, form: ToolFormat) -> ToolFormat:
        """The format, if the prompt ends with what begins each call."""
        if form.begin or form.before_name:
            return form
        prompt = self._after_question()
        opened = _common_end(form.between, prompt)
        content = self._plain.partition(_TEXT)[0]
        if not opened or not content.startswith(prompt):
            raise _Strange
        between = form.between.removesuffix(opened)
        return evolve(form, before_name=opened, between=between, opened=opened, before_content=content.removeprefix(prompt))

    @cached_property
    def _plain(self) -> str:
        text = self._written((), _TEXT)
        if text.count(_TEXT) != 1:
            raise _Strange
        return text

    def _written(self, calls: Sequence[Mapping[str, Any]], content: str | None) -> str:
        made = []
        for i, (name, arguments) in enumerate(zip(_NAMES, calls, strict=False)):
            function = {"name": name, "arguments": json.dumps(arguments) if self.is_text else arguments}
            made.append({"id": f"functions.{name}:{i}" if self.is_named else _IDS[i], "type": "function", "function": function})
        message = {"role": "assistant", "content": content} | ({"tool_calls": made} if made else {})
        return self._after_question(message)

    def _after_question(self, *answer: Mapping[str, Any]) -> str:
        """What the template writes after a question: an answer, or what comes before every answer."""
        asked = [{"role": "user", "content": _USER}, *answer]
        return self.render(asked, tools=probe_tools(), add_generation_prompt=not answer).rpartition(_USER)[2]

    def _taken_apart(self, text: str, first: Mapping[str, Any], *, is_single: bool) -> ToolFormat:
        key = _at(text, _KEYS[0])
        name = text.rfind(_NAMES[0], 0, key)
        start = max((at for at in _braces(text, name, key) if _decoded(text, at)[0] == first), default=None)
        if name < 0:
            raise _Strange
        if start is None:
            return self._keyed(text, name, is_single=is_single)
        end = _decoded(text, start)[1]
        before, between = text[:name], text[name + len(_NAMES[0]) : start]
        if is_single:
            return _format(before, between, None, text[end:])
        other = _at(text, _NAMES[1], end)
        brace = text.find("{", _at(text, _NAMES[1], other))
        return _format(before, between, text[end:other], text[_decoded(text, brace)[1] :])

    def _keyed(self, text: str, name: int, *, is_single: bool) -> ToolFormat:
        places = [(name, name + len(_NAMES[0]))]
        marks = (_KEYS[0], "Xone", _KEYS[1], "Xtwo", *(() if is_single else (_NAMES[1], _KEYS[2], "Xthree")))
        for mark in marks:
            at = _at(text, mark, places[-1][1])
            places.append((at, at + len(mark)))
        gaps = [text[one[1] : other[0]] for one, other in pairwise(places)]
        to_key, to_text, to_next = gaps[0], gaps[1], gaps[2].replace(_KEYS[0], KEY)
        ending = text[places[-1][1] :].replace(_KEYS[1] if is_single else _KEYS[2], KEY)
        before_key = _common_end(to_key, to_next)
        after_text = _common_start(to_next.removesuffix(before_key), ending)
        between = to_next.removesuffix(before_key).removeprefix(after_text)
        keys = self._of_values(Keys(before_key, to_text, after_text, to_text, after_text, between))
        to_name = None if is_single else gaps[4].replace(_KEYS[1], KEY).removeprefix(after_text)
        form = _format(text[:name], to_key.removesuffix(before_key), to_name, ending.removeprefix(after_text))
        return evolve(form, keys=keys)

    def _of_values(self, keys: Keys) -> Keys:
        """The keys, with what is written around values that are no plain strings."""
        text = self._said({_KEYS[0]: 75011, _KEYS[1]: True, _KEYS[2]: _SPECIAL})
        at = [_at(text, key) + len(key) for key in _KEYS]
        n, n_true = _at(text, "75011", at[0]), _at(text.lower(), "true", at[1])
        before_value, before_true = text[at[0] : n], text[at[1] : n_true]
        after_value = text[n + 5 : at[1] - len(_KEYS[1])].replace(_KEYS[0], KEY)
        after_value = after_value.removesuffix(keys.before_key).removesuffix(keys.between)
        if before_value != before_true:
            if (told := _TYPES.search(before_value)) is None or before_true != _TYPES.sub("boolean", before_value):
                raise _Strange
            keys = evolve(keys, integer=told[0])
            before_value = _TYPES.sub(TYPE, before_value)
        quote = keys.before_text.removeprefix(before_value)
        is_quoted = quote and before_value + quote == keys.before_text and keys.after_text == quote + after_value
        start = text.find(_SPECIAL, at[2])
        if is_quoted:
            keys = evolve(keys, before_text=before_value, after_text=after_value, quotes=((quote, quote),), is_raw=start >= 0)
        else:
            wrap, rest = text[at[2] + len(keys.before_text) : start], text[start + len(_SPECIAL) :]
            if start >= 0 and wrap:
                closing = rest[: _at(rest, keys.after_text.replace(KEY, _KEYS[2]))]
                keys = evolve(keys, quotes=((wrap, closing), *keys.quotes))
        keys = evolve(keys, before_value=before_value, after_value=after_value)
        return self._with_words(evolve(keys, item=self._item(keys)) if KEY in keys.after_text else keys, text[n_true:][:4])

    def _with_words(self, keys: Keys, true: str) -> Keys:
        """The keys, with the notation of what is null, of arrays and of objects."""
        text, inner = "", ([_TEXT, True], {_TEXT: True})
        with suppress(AuguryError):
            text = self._said(dict(zip(_KEYS, (None, *inner), strict=True)))
        null = next((word for word in ("None", "null") if word in text), "")
        own: Notation = "own" if keys.is_literal or keys.item else "json"
        notations: dict[str, Notation] = {repr(_TEXT): "python", json.dumps(_TEXT): "json"}
        styles = [
            next((style for quoted, style in notations.items() if bracket + quoted in text), own) for bracket in ("[", "{")
        ]
        false = "False" if true == "True" else "false"
        return evolve(keys, words=(true, false, null), arrays=styles[0], objects=styles[1])

    def _item(self, keys: Keys) -> str:
        """The key of an array's items, where they are written as arguments are; nothing where they are not."""
        text = self._said({_KEYS[0]: {_KEYS[1]: [_TEXT]}})
        found = re.search(
            rf"{_KEYS[1]}{re.escape(keys.before_text + keys.before_key)}(\w+){re.escape(keys.before_text)}{_TEXT}", text
        )
        return "" if found is None else found[1]

    def _verify(self, form: ToolFormat, *, is_single: bool) -> None:
        """Raises `_Strange` unless calls are read as they were written."""
        for probe in _PROBES:
            calls = probe[:1] if is_single else probe
            expected = [(name, arguments) for name, arguments in zip(_NAMES, calls, strict=False)]
            for content in ("", _TEXT):
                text = self._said(*calls, content=content or None)
                is_left_out = content and _NAMES[0] not in text
                is_apart = content and self._plain.partition(_TEXT)[2].strip() in text  # in a message of its own
                if not (is_left_out or is_apart) and _read(form, text) != expected:
                    raise _Strange


def _read(form: ToolFormat, text: str) -> list[tuple[str, Any]] | None:
    """The calls of an answer; None if there is none that is JSON."""
    parser = AnswerParser(form, None, dict.fromkeys(_NAMES, _SCHEMA))
    answer = collect(parser.push(text) + parser.flush())
    if parser.is_cut or answer.content.strip() not in ("", _TEXT):
        return None
    try:
        return [(call.name, json.loads(call.arguments)) for call in answer.calls]
    except ValueError:
        return None


def _format(before: str, between_parts: str, to_next: str | None, ending: str) -> ToolFormat:
    """The format of texts before a first name, from there to the arguments, from these to a second name, and at the end."""
    before, between_parts, ending = map(_with_placeholders, (before, between_parts, ending))
    form = ToolFormat("template", before, between_parts, ending)
    if to_next is None:
        form = evolve(form, n_most=1)
    else:
        to_next = _with_placeholders(to_next)
        before_name = _common_end(before, to_next)
        after = _common_start(to_next.removesuffix(before_name), ending)
        form = evolve(
            form,
            begin=before.removesuffix(before_name),
            before_name=before_name,
            after_arguments=after,
            between=to_next.removesuffix(before_name).removeprefix(after),
            end=ending.removeprefix(after),
        )
    name_key = re.search(r'"(\w+)"\s*:\s*"$', form.before_name)
    arguments_key = re.fullmatch(r'"\s*,\s*"(\w+)"\s*:\s*', form.before_arguments)
    if name_key is None or arguments_key is None:
        return form
    return evolve(form, name_key=name_key[1], arguments_key=arguments_key[1])


def _with_placeholders(text: str) -> str:
    for each in _IDS:
        text = text.replace(each, ID)
    return re.sub(r"(?<!\w)[0-2](?!\w)", INDEX, text)


def _common(one: Sequence[str], other: Sequence[str]) -> list[str]:
    return [part for part, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]


def _common_start(one: str, other: str) -> str:
    return "".join(_common(lexemes(one), lexemes(other)))


def _common_end(one: str, other: str) -> str:
    return "".join(_common(lexemes(one)[::-1], lexemes(other)[::-1])[::-1])


def _without(text: str, ending: str) -> str:
    """A text without the end of a turn; a turn that calls may end with another mark than one that does not."""
    if common := _common_end(text, ending):
        return text.removesuffix(common)
    return "".join(lexemes(text)[: -len(lexemes(ending)) or None])


def _at(text: str, part: str, start: int = 0) -> int:
    """Where a part of a text is. Raises `_Strange` if nowhere."""
    if (at := text.find(part, max(start, 0))) < 0:
        raise _Strange
    return at


def _braces(text: str, start: int, end: int) -> Iterator[int]:
    return (found.start() + max(start, 0) for found in re.finditer(r"\{", text[max(start, 0) : end]))


def _decoded(text: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except ValueError:
        return None, at
