"""Grammars, in llguidance's Lark, of answers that call tools, or are JSON, perhaps after reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.errors import OptionError
from augury.plugins.server.tools.format import ToolFormat

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

_ONE_LINE = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
_ANYTHING = r"/(?s:.*)/"


@frozen
class AnswerGrammar:
    """Writes grammars for one model."""

    tools: ToolFormat
    tokenizer: Tokenizer | None
    tags: tuple[str, str] | None  # around the reasoning that may come first; None for none
    is_reasoning: bool  # whether the prompt ends within it

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
            schema: Where no call is required: of the answer, which is JSON instead of text. If calls begin as JSON does there
                are none, for llguidance reads both from their first letter on as one or as the other.

        Raises:
            OptionError: llguidance does not know one of the schemas.
        """
        form = self.tools
        trigger = next((each for each in form.triggers if (form.begin + form.before_name).startswith(each)), "")
        begin = form.begin or trigger
        before_name = form.before_name if form.begin else form.before_name.removeprefix(trigger)
        between = form.between if form.begin else form.between + trigger
        kinds = {f"call_{i}": self._call(before_name, each) for i, each in enumerate(described)}
        more = "" if is_single or form.n_most == 1 else f" ({self._literal(between)} call)*".replace("( ", "(")
        called = f"{self._literal(begin)} call{more} {self._literal(form.end)}"
        rules = [f"call: {' | '.join(kinds)}", *(f"{name}: {body}" for name, body in kinds.items()), *self._reasoning()]
        if is_required:
            return "\n".join([f"start: {self._before()}{called}", *rules])
        if schema is not None and form.leads and not trigger:
            return self.json(schema)
        if schema is not None or form.name == "harmony":
            final = f"{self._final()} {'TEXT' if schema is None else _json(schema)}"
            return "\n".join([f"start: {self._before()}({final} | {called})", f"TEXT: {_ANYTHING}", *rules])
        if not trigger:  # a text that begins as calls do is one
            return "\n".join([f"start: {self._before()}(TEXT | {called})", r"TEXT: /([^{\s](?s:.*))?/", *rules])
        called = f"until {self._literal(begin.removeprefix(trigger))} call{more} {self._literal(form.end)}"
        rest = "" if control_tokens(self.tokenizer, trigger) else f" & ~/(?s:.*){_escaped(trigger)}(?s:.*)/"
        rules += [self._until("until", trigger), f"TEXT: {_ANYTHING}{rest}"]
        return "\n".join([f"start: {self._before()}(TEXT | {called})", *rules])

    def json(self, schema: Mapping[str, Any]) -> str:
        """The grammar of an answer that is JSON of a schema. Raises the errors of `calls`."""
        return "\n".join([f"start: {self._before()}{self._final()} {_json(schema)}", *self._reasoning()])

    def _final(self) -> str:
        return self._literal("<|channel|>final<|message|>") if self.tools.name == "harmony" else ""

    def _call(self, before_name: str, described: Mapping[str, Any]) -> str:
        before = self._literal(before_name + described["name"] + self.tools.before_arguments)
        schema = described.get("parameters") or {"type": "object"}
        name = f"the parameters of tool {described['name']!r}"
        return f"{before} {_json(schema, name)} {self._literal(self.tools.after_arguments)}"

    def _before(self) -> str:
        if self.tools.name == "harmony":
            return "analysis? "
        if self.tags is None:
            return ""
        return "thought space? " if self.is_reasoning else f"({self._literal(self.tags[0])} thought space?)? "

    def _reasoning(self) -> list[str]:
        if self.tools.name == "harmony":
            analysis = f"{self._literal('<|channel|>analysis<|message|>')} thought {self._literal('<|start|>assistant')}"
            return [f"analysis: {analysis}", self._until("thought", "<|end|>")]
        return [] if self.tags is None else [r"space: /[ \n]{1,4}/", self._until("thought", self.tags[1])]

    def _until(self, name: str, end: str) -> str:
        """A rule of a text up to its first `end`, that included."""
        if control_tokens(self.tokenizer, end):
            return f"{name}: {_ANYTHING} {self._literal(end)}"
        return f"{name}[lazy]: /(?s:.*){_escaped(end)}/"

    def _literal(self, text: str) -> str:
        """A text in a grammar; control tokens in it are named by their ids."""
        control = {name: token for token, name in control_tokens(self.tokenizer, text).items()}
        parts = re.split(f"({'|'.join(map(re.escape, control))})", text) if control else [text]
        return " ".join(f"<[{control[part]}]>" if part in control else json.dumps(part) for part in parts if part)


def control_tokens(tokenizer: Tokenizer | None, text: str) -> dict[int, str]:
    """The control tokens that a text names, and their names."""
    if tokenizer is None:
        return {}
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    return {token: tokenizer.text(token) for token in ids if tokenizer.is_special(token)}


def _escaped(text: str) -> str:
    """A text in a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/")


def _json(schema: Mapping[str, Any], name: str = "its schema") -> str:
    """A schema in a grammar; checked alone, because the library's errors of a whole grammar name lines that nobody wrote."""
    text = json.dumps({**schema, **_ONE_LINE})
    with suppress(ImportError):  # of which the constraint tells
        from llguidance import LLMatcher

        if fault := LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text)):
            fault = fault.replace("Unimplemented keys", "keywords that are not supported")
            raise OptionError(f"augury cannot keep an answer to {name}: {fault}; change the schema")
    return f"%json {text}"
