"""Grammars, in llguidance's Lark, of answers that call tools, or are JSON, perhaps after reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.errors import OptionError
from augury.plugins.constraints.schema import ONE_LINE, demands
from augury.plugins.server.tools.arguments import ArgumentRules
from augury.plugins.server.tools.format import ID, INDEX, KEY, NAMED, ToolFormat
from augury.plugins.server.tools.notation import TYPES, types

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

_ANYTHING = r"/(?s:.*)/"
_PLACEHOLDERS = {INDEX: "/[0-9]{1,3}/", ID: "/[A-Za-z0-9]{9}/", KEY: "/[A-Za-z_][A-Za-z0-9_]*/"}


@frozen
class AnswerGrammar:
    """Writes grammars for one model."""

    tools: ToolFormat
    tokenizer: Tokenizer | None
    tags: tuple[str, str] | None  # around the reasoning that may come first; None for none
    is_reasoning: bool  # whether the prompt ends within it
    frame: Sequence[str] = ()  # marks that may stand around content

    def calls(
        self,
        described: Sequence[Mapping[str, Any]],
        *,
        is_single: bool,
        is_required: bool = True,
        schema: Mapping[str, Any] | None = None,
    ) -> str:
        """The grammar of an answer that calls functions, each with a `name` and perhaps `parameters`, a schema.

        Args:
            described: The functions.
            is_single: Whether there may be one call alone.
            is_required: Whether there must be one; otherwise the answer may be text, and text may come before calls.
            schema: Where no call is required: of the answer, which is JSON instead of text.

        Raises:
            OptionError: llguidance does not know one of the schemas.
        """
        form = self.tools
        lead = (form.begin + form.before_name).strip()
        trigger = next((each for each in form.triggers if lead.startswith(each)), "")
        begin = (form.begin or trigger).removeprefix(form.opened)
        before_name = form.before_name if form.begin or form.final else form.before_name.strip().removeprefix(trigger)
        between = form.between if form.begin else form.between + trigger
        rules: list[str] = []
        kinds = {f"call_{i}": self._call(f"call_{i}", before_name, each, rules) for i, each in enumerate(described)}
        more = "" if is_single or form.n_most == 1 else f" ({self._literal(between)} call)*".replace("( ", "(")
        called = f"{self._literal(begin)} call{more} {self._literal(form.end)}"
        rules += [f"call: {' | '.join(kinds)}", *(f"{name}: {body}" for name, body in kinds.items())]
        if is_required:
            return self._whole(called, *rules)
        if schema is not None and not trigger and form.is_object:  # one language for both: they begin alike
            either = f"({_json(schema)} | {_json(self._calls_as_json(described, is_single=is_single))})"
            return self._whole(either)
        if schema is not None or form.final:
            final = f"{self._literal(form.final)} {'TEXT' if schema is None else _json(schema)}"
            return self._whole(f"({final} | {called})", f"TEXT: {_ANYTHING}", *rules)
        if form.opened:
            plain = f"{self._literal(form.before_content)} TEXT"
            return self._whole(f"({plain} | {called})", f"TEXT: {_ANYTHING}", *rules)
        if not trigger:  # a text that begins as calls do is one
            return self._whole(f"(TEXT | {called})", r"TEXT: /([^{\s](?s:.*))?/", *rules)
        called = f"until {self._literal(begin.strip().removeprefix(trigger))} call{more} {self._literal(form.end)}"
        rest = "" if control_tokens(self.tokenizer, trigger) else f" & ~/(?s:.*){_escaped(trigger)}(?s:.*)/"
        rules += [self._until("until", trigger), f"TEXT: {_ANYTHING}{rest}"]
        return self._whole(f"(TEXT | {called})", *rules)

    def _calls_as_json(self, described: Sequence[Mapping[str, Any]], *, is_single: bool) -> dict[str, Any]:
        """The schema of an answer that calls, of a form that is JSON throughout."""
        form = self.tools
        calls: list[dict[str, Any]] = []
        definitions: dict[str, Any] = {}
        for each in described:
            arguments = _arguments(each)
            for key in ("$defs", "definitions"):
                definitions |= {key: definitions.get(key, {}) | arguments.get(key, {})} if key in arguments else {}
            properties = {form.name_key: {"const": each["name"]}, form.arguments_key: arguments}
            calls.append(_all_of(properties))
        one: dict[str, Any] = {"anyOf": calls}
        if not form.begin:
            return one | definitions
        many = {"type": "array", "items": one, "minItems": 1} | ({"maxItems": 1} if is_single else {})
        return _all_of({form.begin.split('"')[1]: many}) | definitions

    def json(self, schema: Mapping[str, Any]) -> str:
        """The grammar of an answer that is JSON of a schema. Raises the errors of `calls`."""
        return self._whole(f"{self._literal(self.tools.final)} {_json(schema)}")

    def _whole(self, answer: str, *rules: str) -> str:
        """The grammar of an answer, perhaps after reasoning."""
        return "\n".join([f"start: {self._before()}{answer}", *rules, *self._reasoning()])

    def _call(self, rule: str, before_name: str, described: Mapping[str, Any], rules: list[str]) -> str:
        form, schema, name = self.tools, _arguments(described), _named(described)
        before = self._literal((before_name + NAMED + form.before_arguments).replace(NAMED, described["name"]))
        body = _json(schema, name)  # which checks it, however it is written
        if form.keys is not None:
            written = ArgumentRules(form.keys, schema, rule, self._literal, self._up_to, lambda part: _json(part, name))
            body = written.body()
            rules += written.rules
        return f"{before} {body} {self._literal(form.after_arguments)}"

    def _before(self) -> str:
        if self.tools.final:
            return "analysis? " if self.tools.analysis else ""
        frame = ""
        if len(self.frame) > 1:
            opening, closing = map(self._literal, self.frame[:2])
            frame = f"({opening} {closing}?)? "
        if self.tags is None:
            return frame
        return ("thought space? " if self.is_reasoning else f"({self._literal(self.tags[0])} thought space?)? ") + frame

    def _reasoning(self) -> list[str]:
        form = self.tools
        if form.final and not form.analysis:
            return []
        if form.final:
            analysis = f"{self._literal(form.analysis)} thought {self._literal(form.message_start)}"
            return [f"analysis: {analysis}", self._until("thought", form.message_end)]
        return [] if self.tags is None else [r"space: /[ \n]{1,4}/", self._until("thought", self.tags[1])]

    def _until(self, name: str, end: str) -> str:
        """A rule of a text up to its first `end`, that included."""
        return self._up_to(name, ["(?s:.*)"], end)

    def _up_to(self, name: str, expressions: Sequence[str], end: str) -> str:
        """The same of a text that fits regular expressions."""
        if KEY in end:
            mark, _, rest = end.partition(KEY)
            return f"{self._up_to(f'{name}_part', expressions, mark)}\n{name}: {name}_part {self._literal(KEY + rest)}"
        control = [self.tokenizer.text(token) for token in control_tokens(self.tokenizer, end)] if self.tokenizer else []
        if not control:
            return f"{name}[lazy]: {_all_fit(expressions, end)}"
        at = min(end.find(mark) for mark in control)
        return f"{name}: {_all_fit(expressions, end[:at])} {self._literal(end[at:])}"

    def _literal(self, text: str) -> str:
        """A text in a grammar; control tokens in it are named by their ids, and placeholders may be anything of their kind."""
        parts = re.split(f"([{''.join(_PLACEHOLDERS)}])", text)
        if len(parts) > 1:
            return " ".join(_PLACEHOLDERS.get(part) or self._literal(part) for part in parts if part)
        control = {name: token for token, name in control_tokens(self.tokenizer, text).items()}
        parts = re.split(f"({'|'.join(map(re.escape, control))})", text) if control else [text]
        return " ".join(f"<[{control[part]}]>" if part in control else json.dumps(part) for part in parts if part)


def control_tokens(tokenizer: Tokenizer | None, text: str) -> dict[int, str]:
    """The control tokens that a text names, and their names."""
    if tokenizer is None:
        return {}
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    return {token: tokenizer.text(token) for token in ids if tokenizer.is_special(token)}


def _all_fit(expressions: Sequence[str], end: str) -> str:
    """A terminal of a text that fits regular expressions, and its end, which is read without its line break as well."""
    fits = [f"/{each.replace('/', chr(92) + '/')}{_escaped(end)}/" for each in expressions]
    mark = end.strip()
    is_loose = end.startswith("\n") and mark
    return " & ".join([*fits, *([rf"~/(?s:.*)[^\n]{_escaped(mark)}(?s:.*)/"] if is_loose else [])])


def _escaped(text: str) -> str:
    """A text in a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")


def _named(described: Mapping[str, Any]) -> str:
    return f"the parameters of tool {described['name']!r}"


def _arguments(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments, which are an object whatever it leaves open."""
    schema = described.get("parameters") or {}
    allowed = types(schema)
    if allowed - TYPES:  # of which llguidance tells
        return schema
    if allowed and "object" not in allowed:
        raise OptionError(f"{_named(described)} are of type {' or '.join(sorted(allowed))}, expected an object")
    return {**schema, "type": "object"}


def _all_of(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object that has these properties and no other."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _json(schema: Mapping[str, Any], name: str = "its schema") -> str:
    """A schema in a grammar; checked alone, because the library's errors of a whole grammar name lines that nobody wrote."""
    text = json.dumps({**demands(schema), "x-guidance": ONE_LINE})
    with suppress(ImportError):  # of which the constraint tells
        from llguidance import LLMatcher

        if fault := LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text)):
            fault = fault.replace("Unimplemented keys", "keywords that are not supported")
            raise OptionError(f"augury cannot keep an answer to {name}: {fault}; change the schema")
    return f"%json {text}"
