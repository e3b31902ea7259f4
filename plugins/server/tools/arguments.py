"""Grammars, in llguidance's Lark, of arguments that a template writes one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import Factory, define

from augury.errors import OptionError
from augury.plugins.server.tools.format import Keys
from augury.plugins.server.tools.notation import resolved, types

_OTHERS = ("integer", "number", "boolean", "null", "object", "array")
_N_FREE = 64  # arguments of a function that names none


@define
class KeyedArguments:
    """Writes the rules of one function's arguments.

    Attributes:
        keys: How the template writes them.
        root: The schema of all of them, an object.
        name: The prefix of the rules' names.
        literal: Writes a text as a part of a rule.
        until: Writes a rule, of a name, of text that fits a regular expression up to the first of an end, that included.
        as_json: Writes a schema as a part of a rule.
        rules: The rules so far.
    """

    keys: Keys
    root: Mapping[str, Any]
    name: str
    literal: Callable[[str], str]
    until: Callable[[str, str, str], str]
    as_json: Callable[[Mapping[str, Any]], str]
    rules: list[str] = Factory(list)

    def body(self) -> str:
        """The part of a rule that all arguments are: those of the schema, in its order, with what is between them."""
        found = resolved(self.root, self.root)
        properties: Mapping[str, Any] = found.get("properties") or {}
        separator = self.literal(self.keys.between)
        if not properties:
            return self._free(separator) if found.get("additionalProperties") is not False else ""
        required = found.get("required") or ()
        first, later = '""', '""'
        for i, (key, schema) in reversed(list(enumerate(properties.items()))):
            one = self._one(f"{self.name}_{i}", key, schema)
            self.rules += [f"{self.name}_first_{i}: {one} {later}" + ("" if key in required else f" | {first}")]
            is_any = "" if key in required else "?"
            self.rules += [f"{self.name}_later_{i}: ({separator} {one}){is_any} {later}"]
            first, later = f"{self.name}_first_{i}", f"{self.name}_later_{i}"
        return first

    def _free(self, separator: str) -> str:
        end = self._text(f"{self.name}_text", {})
        self.rules.append(f"{self.name}_any: {self.literal(self.keys.before_key)} /[A-Za-z_][A-Za-z0-9_]*/ {end}")
        return f"({self.name}_any ({separator} {self.name}_any){{0,{_N_FREE}}})?"

    def _one(self, name: str, key: str, schema: Any) -> str:
        schema = resolved(schema, self.root) if isinstance(schema, Mapping) else {}
        allowed = types(schema, self.root)
        before, keys = self.literal(self.keys.before_key + key), self.keys
        is_told = keys.before_text != keys.before_value
        others = [each for each in _OTHERS if each in allowed]
        value = f"{self.literal(keys.before_value)} {self._other(schema, others)} {self.literal(keys.after_value)}"
        kinds = []
        if "string" in allowed or not allowed:
            kinds.append(self._text(f"{name}_text", schema))
        if others if is_told or keys.quote else not kinds:
            kinds.append(value)
        self.rules.append(f"{name}: {before} ({' | '.join(kinds)})")
        return name

    def _text(self, name: str, schema: Mapping[str, Any]) -> str:
        """A string, from the end of its key on."""
        keys = self.keys
        before, after = self.literal(keys.before_text), self.literal(keys.after_text)
        if keys.quote == '"':
            return f"{before} {self.as_json({**schema, 'type': 'string'})} {after}"
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(choices, list):
            texts = [self.literal(f"{keys.quote}{each}{keys.quote}") for each in choices if isinstance(each, str)]
            return f"{before} ({' | '.join(texts)}) {after}"
        self.rules.append(self.until(name, _expression(schema), keys.quote or keys.after_text))
        return f"{before} {self.literal(keys.quote)} {name} {after if keys.quote else ''}"

    def _other(self, schema: Mapping[str, Any], allowed: list[str]) -> str:
        """A value that is no string."""
        definitions = {key: self.root[key] for key in ("$defs", "definitions") if key in self.root}
        if self.keys.quote not in ("'", '"'):
            return self.as_json({**definitions, **schema, "type": allowed}) if allowed else '""'
        words = {"boolean": '"True" | "False"', "null": '"None"'}
        found = [words[each] for each in allowed if each in words]
        if others := [each for each in allowed if each not in words]:
            found.append(self.as_json({**definitions, **schema, "type": others}))
        return f"({' | '.join(found)})"


def _expression(schema: Mapping[str, Any]) -> str:
    """The regular expression of a string of a schema."""
    pattern, least, most = schema.get("pattern"), schema.get("minLength", 0), schema.get("maxLength", "")
    if isinstance(pattern, str):
        if least or most:
            told = "a pattern beside a length cannot be kept where the model writes strings without quotes"
            raise OptionError(f"{told}; leave out one of them")
        start = "" if pattern.startswith("^") else "(?s:.*)"
        end = "" if pattern.endswith("$") else "(?s:.*)"
        return f"{start}({pattern.removeprefix('^').removesuffix('$')}){end}"
    return f"(?s:.{{{least},{most}}})" if least or most else "(?s:.*)"
