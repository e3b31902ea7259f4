"""Grammars, in llguidance's Lark, of answers that must call a tool, or be JSON, perhaps after reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.plugins.server.tools.format import ToolFormat

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

__all__ = ["AnswerGrammar", "control_tokens"]

_ONE_LINE = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
_ANYTHING = r"/(?s:.*)/"


@frozen
class AnswerGrammar:
    """Writes grammars for one model."""

    tools: ToolFormat
    tokenizer: Tokenizer | None
    tags: tuple[str, str] | None  # around the reasoning that may come first; None for none
    is_reasoning: bool  # whether the prompt ends within it

    def calls(self, described: Sequence[Mapping[str, Any]], *, is_single: bool) -> str:
        """Of an answer that calls some of these functions, each with a `name` and perhaps `parameters`, a schema."""
        form = self.tools
        kinds = {f"call_{i}": self._call(each) for i, each in enumerate(described)}
        more = "" if is_single or form.n_most == 1 else f" ({self._literal(form.between)} call)*".replace("( ", "(")
        rules = [f"start: {self._before()}{self._literal(form.begin)} call{more} {self._literal(form.end)}"]
        rules.append(f"call: {' | '.join(kinds)}")
        return "\n".join([*rules, *(f"{name}: {body}" for name, body in kinds.items()), *self._reasoning()])

    def json(self, schema: Mapping[str, Any]) -> str:
        """Of an answer that is JSON of a schema."""
        final = self._literal("<|channel|>final<|message|>") if self.tools.name == "harmony" else ""
        return "\n".join([f"start: {self._before()}{final} {_json(schema)}", *self._reasoning()])

    def _call(self, described: Mapping[str, Any]) -> str:
        form = self.tools
        schema = described.get("parameters") or {"type": "object"}
        before = self._literal(form.before_name + described["name"] + form.before_arguments)
        return f"{before} {_json(schema)} {self._literal(form.after_arguments)}"

    def _before(self) -> str:
        if self.tools.name == "harmony":
            return "analysis? "
        if self.tags is None:
            return ""
        return "thought space? " if self.is_reasoning else f"({self._literal(self.tags[0])} thought space?)? "

    def _reasoning(self) -> list[str]:
        if self.tools.name == "harmony":
            analysis = f"{self._literal('<|channel|>analysis<|message|>')} thought {self._literal('<|start|>assistant')}"
            return [f"analysis: {analysis}", self._thought("<|end|>")]
        return [] if self.tags is None else [r"space: /[ \n]{1,4}/", self._thought(self.tags[1])]

    def _thought(self, end: str) -> str:
        """A rule of a text up to its first end."""
        if control_tokens(self.tokenizer, end):
            return f"thought: {_ANYTHING} {self._literal(end)}"
        return f"thought[lazy]: /(?s:.*){re.escape(end).replace('/', chr(92) + '/')}/"

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


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, **_ONE_LINE})}"
