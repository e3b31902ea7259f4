"""`AnswerParser`: splits an answer, as it streams, into reasoning, content and calls of tools.

Models seldom write exactly the text of their templates: white space, quotes, the order of a call's keys and even its form may
differ, and what ends a call may be absent. Text that cannot be read as a call is content. Arguments are told as a JSON object.
Text that could still change is held back and read again: the possible beginning of a mark, and a call whose name is to come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from attrs import evolve

from augury.plugins.constraints.schema import resolved
from augury.plugins.server.tools.arguments import arguments
from augury.plugins.server.tools.call_head import CLOSING, KEY, head_of, is_arguments, is_bare_call
from augury.plugins.server.tools.delta import Delta
from augury.plugins.server.tools.format import NAMED, Keys, ToolFormat, flexible, others
from augury.plugins.server.tools.notation import Pieces, Source, as_object, decoded, value

_MARKS = ("<tool_call>", "<function=")  # of calls in any form
_TAG = re.compile(r"</?[^\s<>]+>?")
_HALF_OBJECT = re.compile(r'\{\s*(?:"|$)')
_N_HEAD = 400  # characters within which a mark is followed by a call's name, or is none
_MESSAGE, _MESSAGE_ENDS = "<|message|>", ("<|end|>", "<|eom|>", "<|eot|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_HEADER = re.compile(r"<\|\w+\|>(assistant|analysis|commentary|final)?")
_RECIPIENT = re.compile(r"to=([^\s<]+)")

_T = TypeVar("_T")
_Reading = Generator[Delta | None, None, _T]
"""Pieces of an answer; None where more of it must arrive before the next."""


class AnswerParser:
    """Reads one answer.

    Attributes:
        is_cut: Whether the answer ended within a call.
        is_open: Whether reasoning has begun that is not over.

    >>> from augury.plugins.server.tools.delta import collect
    >>> from augury.plugins.server.tools.format import FORMATS
    >>> parser = AnswerParser(FORMATS["hermes"], ("<think>", "</think>"))
    >>> text = '<think>Hm.</think>Look: <tool_call>{"name": "find", "arguments": {"x": 1}}</tool_call>'
    >>> answer = collect(parser.push(text) + parser.flush())
    >>> answer.calls
    [Call(name='find', arguments='{"x": 1}')]
    >>> answer.content, answer.reasoning
    ('Look:', 'Hm.')
    """

    def __init__(
        self,
        form: ToolFormat,
        tags: tuple[str, str] | None,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        is_reasoning: bool = False,
        begun: str = "",
        frame: Sequence[str] = (),
    ) -> None:
        """Begin to read.

        Args:
            form: How the model writes calls.
            tags: The text around reasoning; None to leave it in the content.
            tools: The parameters' schemas by the names of tools: an unmarked call at the beginning of an answer is of one of
                these. None for any; without any no calls are looked for.
            is_reasoning: Whether the prompt ends within reasoning.
            begun: What of the prompt belongs to the content.
            frame: Marks around the content, which are no part of it.
        """
        self.is_cut, self.is_open, self._n_calls, self._frame = False, is_reasoning, 0, frame
        self._form, self._tags, self._tools, self._is_reasoning = form, tags, tools, is_reasoning
        self._has_tools = tools is None or bool(tools)
        self._source = Source(begun)  # with control tokens
        self._others = others(form) if tools else ()
        self._marks = (*form.triggers, *(_MARKS if form.is_object else ())) if self._has_tools else ()
        leads = (lead for each in (form, *self._others) for lead in each.leads)
        self._leads = (*leads, *(f"[{name}(" for name in tools or ())) if self._has_tools else ()
        self._reading = self._messages() if form.final else self._parts()

    def push(self, text: str) -> list[Delta]:
        """Read on; returns the events that are certain."""
        self._source.text += text
        told: list[Delta] = []
        while (delta := next(self._reading, None)) is not None:
            if told and delta.call is not None and delta.name is None and (told[-1].call, told[-1].name) == (delta.call, None):
                delta = evolve(delta, arguments=told.pop().arguments + delta.arguments)
            told.append(delta)
        return told

    def flush(self, *, is_ended: bool = False) -> list[Delta]:
        """The rest, after the end of the answer; what ends a call may be absent where the model ended it."""
        self._source.is_whole, self._source.is_ended = True, is_ended
        return self.push("")

    def _parts(self) -> _Reading[None]:
        if self._tags is not None and (yield from self._reasoning(*self._tags)):
            return
        if self._has_tools and self._form.opened:
            if (yield from self._opened()):
                return
        elif (yield from self._is_led()) and (yield from self._calls(is_marked=False)):
            return
        while (yield from self._until("content", (*self._marks, *self._frame))):
            text = self._source.text.lstrip()
            if framing := next((mark for mark in self._frame if text.startswith(mark)), None):
                self._source.text = text.removeprefix(framing)
                yield from self._source.spaces()
            elif (yield from self._calls(is_marked=True)):
                return
            else:
                yield from self._said("content")

    def _said(self, kind: str) -> _Reading[None]:
        """Takes the mark that begins the text, which begins no call; control tokens are never said."""
        text = self._source.text
        n_spaces = len(text) - len(text.lstrip())
        trigger = next(each for each in self._marks if text.startswith(each, n_spaces))
        taken = self._source.take(n_spaces + len(trigger))
        if not trigger.startswith("<|"):
            yield _piece(kind, taken)

    def _opened(self) -> _Reading[bool]:
        """The beginning of an answer whose prompt ends with that of a call. Returns whether it is one."""
        plain = self._form.before_content
        yield from self._source.may_be(plain)
        if self._source.text.startswith(plain):
            self._source.take(len(plain))
            return False
        self._source.text = self._form.opened + self._source.text
        if (yield from self._calls(is_marked=False)):
            return True
        self._source.take(len(self._form.opened))
        return False

    def _reasoning(self, opening: str, closing: str) -> _Reading[bool]:
        """Reasoning, if there is any. Returns whether the answer ends with calls within it."""
        while not self._source.is_whole and any(mark.startswith(self._source.text.lstrip()) for mark in (opening, closing)):
            yield None
        begun = self._source.text.lstrip()
        if not self._is_reasoning and begun.startswith(closing):  # of what the prompt has ended already
            self._source.text = begun.removeprefix(closing)
            yield from self._source.spaces()
            return False
        if not (self._is_reasoning or begun.startswith(opening)):
            return False
        self._source.text, self.is_open = begun.removeprefix(opening), True
        yield from self._source.spaces()
        while (yield from self._until("reasoning", (closing, *self._marks))):
            if self._source.text.lstrip().startswith(closing):
                self._source.text, self.is_open = self._source.text.lstrip().removeprefix(closing), False
                break
            if not (yield from self._is_closed(closing)) and (yield from self._calls(is_marked=True)):
                return True
            yield from self._said("reasoning")
        yield from self._source.spaces()
        yield from self._source.may_be(opening)
        if not self._source.text.startswith(opening):
            return False
        self._is_reasoning = False
        yield Delta(reasoning="\n")  # between two thoughts
        return (yield from self._reasoning(opening, closing))

    def _is_closed(self, closing: str) -> _Reading[bool]:
        """Whether reasoning goes on after what may be a call, which then is none."""
        at = 0
        while (begun := (yield from self._head(is_marked=True))) is not None:
            if closing in self._source.text[at:]:
                return True
            if self._source.is_whole:
                return False
            at = max(0, len(self._source.text) - len(closing))
            yield None
        return begun is None

    def _until(self, kind: str, marks: Sequence[str], *, keeps_spaces: bool = False) -> _Reading[bool]:
        """Text up to the first of some marks and the white space before it, which are left. Returns whether there is one."""
        source = self._source
        while True:
            found = [at for mark in marks if (at := source.text.find(mark)) >= 0]
            end = min(found, default=len(source.text))
            if not (found or source.is_whole):  # without text that may still become a mark
                end -= max((n for mark in marks for n in range(1, len(mark)) if source.text.endswith(mark[:n])), default=0)
            if marks and not keeps_spaces and (found or not source.is_whole):
                end = len(source.text[:end].rstrip())
            if end:
                yield _piece(kind, source.take(end))
            if found or source.is_whole:
                return bool(found)
            yield None

    def _is_led(self) -> _Reading[bool]:
        """Whether the text begins as calls do that nothing marks."""
        while True:
            squeezed = "".join(self._source.text.lstrip()[:400].split()).replace("'", '"')  # JSON that is indented
            if any(squeezed.startswith(lead) for lead in self._leads):
                return True
            if self._source.is_whole or not any(lead.startswith(squeezed) for lead in self._leads):
                return False
            yield None

    def _head(self, *, is_marked: bool) -> _Reading[tuple[str, str | None, int] | None]:
        """The name of the call that the text begins with, arguments before it, and where it ends; None if there is no call."""
        while True:
            for form in self._others:
                if (head := head_of(form, self._source)) is None:
                    continue
                is_call = head.name in (self._tools or ()) and (is_marked or is_bare_call(form, head, self._source))
                if is_call is None:
                    break
                if is_call and head.name is not None:
                    self._form, self._others = form, ()
                    return head.name, head.arguments, head.end
                if form.is_object and not is_marked:
                    return None
            form, text = self._form, self._source.text
            if (head := head_of(form, self._source)) is not None:
                is_any = bool(is_marked or self._n_calls) and bool(form.lead or form.is_object)
                is_known = is_any or self._tools is None or head.name in self._tools
                is_call = is_known and (is_any or is_bare_call(form, head, self._source))
                if is_call is not None:
                    return (head.name, head.arguments, head.end) if is_call and head.name is not None else None
            is_none = not self._n_calls and (len(text) > _N_HEAD or (form.is_object and "{" in text))
            if self._source.is_whole or (is_none and form.head.match(text) is None):
                return None
            yield None

    def _calls(self, *, is_marked: bool) -> _Reading[bool]:
        """Calls, and the text after them. Returns whether there are any; otherwise nothing of the text is taken."""
        while (begun := (yield from self._head(is_marked=is_marked))) is not None:
            name, before, end = begun
            self._source.take(end)
            yield Delta(call=self._n_calls, name=name, arguments=before or "")
            if self._form.is_object:
                yield from self._rest_of_object(name, has_arguments=before is not None)
            elif self._form.keys is None:
                yield from self._arguments()
            else:
                yield from self._by_key(self._form.keys, name)
            self._n_calls += 1
        if not self._n_calls:
            return False
        while not self._source.is_whole:
            yield None
        rest = self._form.tail.sub("", self._source.text, count=1).strip()
        if (at := min((n for mark in self._marks if (n := rest.find(mark)) > 0), default=0)) > 0:  # other calls, after text
            yield Delta(content=rest[:at].rstrip())
            self._source.text = rest[at:]
            return (yield from self._calls(is_marked=True))
        if rest and not self._is_half(rest):
            yield Delta(content=rest)
        return True

    def _is_half(self, rest: str) -> bool:
        """Whether an answer was cut off within a mark, or within a call before its name was told."""
        is_object_begun = self._form.is_object and _HALF_OBJECT.match(rest) and decoded(rest, 0)[1] is None
        return self.is_cut or bool(is_object_begun) or self._form.is_begun(self._source.text, rest)

    def _rest_of_object(self, name: str, *, has_arguments: bool) -> _Reading[None]:
        schema = (self._tools or {}).get(name) or {}
        properties, beside = resolved(schema, schema).get("properties") or {}, list[str]()
        while (closing := CLOSING.match(self._source.text)) is None:
            if (key := KEY.match(self._source.text)) is not None:
                self._source.take(key.end())
                word = decoded(key[1], 0)[0]
                is_read = not has_arguments and is_arguments(self._form, word)
                if word in properties and not is_read:  # an argument beside the name
                    held, is_complete = yield from self._told(value(self._source), is_held=True)
                    self.is_cut |= not is_complete
                    beside += [f"{json.dumps(word, ensure_ascii=False)}: {held.strip()}"] * is_complete
                    continue
                yield from self._arguments(is_read=is_read)
                has_arguments |= is_read
            elif self._source.is_whole:
                self._source.text = ""
                self.is_cut |= not (self._source.is_ended and (has_arguments or beside))
                break
            else:
                yield None
        self._source.take(closing.end() if closing is not None else 0)
        if not has_arguments and (beside or closing is not None):
            yield Delta(call=self._n_calls, arguments=f"{{{', '.join(beside)}}}")

    def _arguments(self, *, is_read: bool = True) -> _Reading[None]:
        """A value, told as a call's arguments; of a text that holds JSON that, as soon as it is complete."""
        yield from self._source.spaces()
        if not self._form.is_object and (yield from self._is_over()):
            yield Delta(call=self._n_calls, arguments="{}")
            return
        is_streamed = self._source.text.startswith("{")
        held, is_complete = yield from self._told(value(self._source), is_held=not (is_read and is_streamed))
        self.is_cut |= not is_complete and (self._source.is_whole or not held)
        if is_read and not is_streamed and (is_complete or not self._source.is_whole):
            yield Delta(call=self._n_calls, arguments=as_object(held))

    def _is_over(self) -> _Reading[bool]:
        """Whether a call ends without arguments."""
        source, form = self._source, self._form
        texts = (form.after_arguments, form.between, form.begin + form.before_name, form.end)
        for mark in (marks := tuple(filter(None, map(str.strip, texts)))):
            yield from source.may_be(mark)
        return source.text.startswith(marks) or (source.is_ended and not source.text)

    def _told(self, pieces: Pieces[bool], *, is_held: bool = False) -> _Reading[tuple[str, bool]]:
        """Tells pieces as a call's arguments, or holds them. Returns what is held, and whether they are complete."""
        held = ""
        while True:
            try:
                piece = next(pieces)
            except StopIteration as stopped:
                return held, stopped.value
            if piece is None:
                yield None
            elif is_held:
                held += piece
            elif piece:
                yield Delta(call=self._n_calls, arguments=piece)

    def _by_key(self, keys: Keys, name: str) -> _Reading[None]:
        yield from self._source.spaces()
        if self._source.text.startswith("{"):  # JSON all the same
            yield from self._arguments()
            return
        schema = (self._tools or {}).get(name) or {}
        end = self._form.after_arguments.strip().split("\n")[0]
        marks = _TAG.findall(self._form.after_arguments + self._form.end + self._form.begin + self._form.before_name)
        _, is_complete = yield from self._told(arguments(self._source, keys, schema, end, marks=marks))
        self.is_cut |= not is_complete

    def _messages(self) -> _Reading[None]:
        """Messages with headers, as of harmony; the end of one is read with the next one's header."""
        told = [_recipient(text) for text in (self._form.final, self._form.analysis)]
        reasoning = re.findall(r"[\w=]+", self._form.analysis.split(_MESSAGE)[0])[-1:]
        while True:
            while (at := self._source.text.find(_MESSAGE)) < 0:
                if not self._source.is_whole:
                    yield None
                    continue
                rest = _HEADER.sub("", self._source.text.split("<|start|>")[0]).strip()
                if rest and not any(mark.startswith(rest) for mark in _MESSAGE_ENDS):
                    yield Delta(content=rest)
                return
            header = self._source.take(at + len(_MESSAGE))
            recipient = _recipient(header) if self._has_tools else ""
            if recipient and recipient not in told:
                name = recipient.removeprefix(self._form.before_name.partition(_MESSAGE)[0].partition("to=")[2].strip(NAMED))
                yield Delta(call=self._n_calls, name=name)
                if self._form.keys is None:
                    yield from self._arguments()
                else:
                    yield from self._opening()
                    yield from self._by_key(self._form.keys, name)
                self._n_calls += 1
                for piece in self._until("content", _MESSAGE_ENDS):
                    if piece is None:
                        yield None
            else:
                kind = "reasoning" if self._tags is not None and any(word in header for word in reasoning) else "content"
                yield from self._until(kind, _MESSAGE_ENDS, keeps_spaces=True)

    def _opening(self) -> _Reading[None]:
        """What stands between a header and arguments."""
        form = self._form
        opening = re.compile(r"\s*" + flexible(form.before_name.rpartition(_MESSAGE)[2] + NAMED + form.before_arguments))
        while (found := opening.match(self._source.text)) is None or found.end() == len(self._source.text):
            if self._source.is_whole or len(self._source.text) > _N_HEAD:
                break
            yield None
        self._source.take(0 if found is None else found.end())


def _recipient(header: str) -> str:
    """Whom a message is for; nothing where its header does not tell."""
    found = _RECIPIENT.search(header)
    return "" if found is None else found[1]


def _piece(kind: str, text: str) -> Delta:
    return Delta(reasoning=text) if kind == "reasoning" else Delta(content=text)
