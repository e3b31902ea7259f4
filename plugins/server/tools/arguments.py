"""Grammars, in llguidance's Lark, of arguments that a template writes one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import Factory, define, evolve

from augury.errors import OptionError
from augury.plugins.constraints.schema import resolved
from augury.plugins.server.tools.format import KEY, TYPE, Keys
from augury.plugins.server.tools.notation import types

_OTHERS = ("integer", "number", "boolean", "null", "object", "array")
_N_FREE = 64  # arguments of a function that names none, and items of an array that does not tell


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
    _nested: dict[str, str] = Factory(dict)  # the rules of objects and arrays, by what they are of: schemas may be recursive

    def body(self) -> str:
        """The part of a rule that all arguments are: those of the schema, in its order, with what is between them."""
        return self._members(self.name, self.root)

    @property
    def _is_nested(self) -> bool:
        """Whether objects and arrays are written in the template's own way, and not as JSON."""
        return bool(self.keys.item) or len(self.keys.quote) > 1

    def _members(self, name: str, schema: Mapping[str, Any]) -> str:
        found = resolved(schema, self.root)
        properties: Mapping[str, Any] = found.get("properties") or {}
        separator = self.literal(self.keys.between)
        if not properties:
            return self._free(name, found.get("additionalProperties"), separator)
        required = found.get("required") or ()
        first, later = '""', '""'
        for i, (key, each) in reversed(list(enumerate(properties.items()))):
            one = self._one(f"{name}_{i}", self.literal(self.keys.before_key + key), key, each)
            self.rules += [f"{name}_first_{i}: {one} {later}" + ("" if key in required else f" | {first}")]
            is_any = "" if key in required else "?"
            self.rules += [f"{name}_later_{i}: ({separator} {one}){is_any} {later}"]
            first, later = f"{name}_first_{i}", f"{name}_later_{i}"
        return first

    def _free(self, name: str, schema: Any, separator: str) -> str:
        """Arguments of any names."""
        if schema is False:
            return '""'
        one = self._one(f"{name}_any", self.literal(self.keys.before_key + KEY), KEY, schema)
        return f"({one} ({separator} {one}){{0,{_N_FREE}}})?"

    def _one(self, name: str, before: str, key: str, schema: Any, keys: Keys | None = None) -> str:
        """The rule of an argument or an item, by what is written up to its key."""
        values = self._values(name, key, schema, keys or self.keys)
        self.rules.append(f"{name}: {before} ({' | '.join(dict.fromkeys(values))})")
        return name

    def _values(self, name: str, key: str, schema: Any, keys: Keys) -> Iterator[str]:
        """What may follow a key, for each alternative of its schema; text without a mark is read as whichever it fits."""
        is_free = False
        is_told = keys.before_text != keys.before_value or bool(keys.quote)
        alternatives = list(_alternatives(schema if isinstance(schema, Mapping) else {}, self.root))
        kinds = [types(each, self.root) or ({"string", *_OTHERS} if self._is_nested else {"string"}) for each in alternatives]
        for i, (each, allowed) in enumerate(zip(alternatives, kinds, strict=True)):
            if "string" in allowed:
                is_free |= _is_any(each)
                yield from self._texts(f"{name}_text_{i}", key, each, keys)
        for each, allowed in zip(alternatives, kinds, strict=True):
            others = [] if is_free and not is_told else [kind for kind in _OTHERS if kind in allowed]
            after = self.literal(keys.after_value.replace(KEY, key))
            for group in [[kind] for kind in others] if TYPE in keys.before_value else [others] if others else []:
                word = keys.integer if group[0] == "integer" else group[0]
                yield f"{self.literal(keys.before_value.replace(TYPE, word))} {self._other(each, group)} {after}"

    def _texts(self, name: str, key: str, schema: Mapping[str, Any], keys: Keys) -> Iterator[str]:
        """Strings, from the end of their key on."""
        before, end = self.literal(keys.before_text), keys.after_text.replace(KEY, key)
        after = self.literal(end)
        if keys.quote == '"' and not keys.is_raw:
            yield f"{before} {self.as_json({**schema, 'type': 'string'})} {after}"
            return
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(choices, list):
            texts = [self.literal(f"{keys.quote}{each}{keys.quote}") for each in choices if isinstance(each, str)]
            if texts:
                yield f"{before} ({' | '.join(texts)}) {after}"
            return
        expression = _expression(schema)
        if keys.wrap[0]:
            self.rules.append(self.until(f"{name}_wrapped", expression, keys.wrap[1] + end))
            yield f"{before} {self.literal(keys.wrap[0])} {name}_wrapped"
            expression = f"([^{keys.wrap[0][0]}]{_ANY})?" if expression == _ANY else expression
        self.rules.append(self.until(name, expression, keys.quote or end))
        yield f"{before} {self.literal(keys.quote)} {name} {after if keys.quote else ''}"

    def _other(self, schema: Mapping[str, Any], allowed: list[str]) -> str:
        """A value that is no string."""
        words = {"boolean": '"True" | "False"', "null": '"None"'} if self.keys.quote in ("'", '"') else {}
        found = [words[each] for each in allowed if each in words]
        nested = [each for each in allowed if each in ("object", "array") and self._is_nested]
        found += [self._own(schema, each) for each in nested]
        if others := [each for each in allowed if each not in words and each not in nested]:
            definitions = {key: self.root[key] for key in ("$defs", "definitions") if key in self.root}
            found.append(self.as_json({**definitions, **schema, "type": others}))
        return f"({' | '.join(found)})"

    def _own(self, schema: Mapping[str, Any], kind: str) -> str:
        """The rule of an object or an array in the template's own way."""
        told = json.dumps([kind, schema], sort_keys=True)
        if (known := self._nested.get(told)) is not None:
            return known
        name = self._nested[told] = f"{self.name}_own_{len(self._nested)}"
        marks = ("{}" if kind == "object" else "[]") if self.keys.quote else ("", "")
        inner = self._members(name, schema) if kind == "object" else self._items(name, schema)
        self.rules.append(f"{name}: {self.literal(marks[0])} {inner} {self.literal(marks[1])}")
        return name

    def _items(self, name: str, schema: Mapping[str, Any]) -> str:
        keys, separator = self.keys, self.literal(self.keys.between)
        if keys.quote:  # which tell their own end
            keys = evolve(keys, before_text="", before_value="", after_text="", after_value="")
        value = self._one(f"{name}_item", self.literal(keys.before_key + keys.item), keys.item, schema.get("items"), keys)
        least, most = schema.get("minItems", 0), schema.get("maxItems", _N_FREE)
        if not most:
            return '""'
        return f"({value} ({separator} {value}){{{max(least - 1, 0)},{most - 1}}}){'' if least else '?'}"


def _alternatives(schema: Mapping[str, Any], root: Mapping[str, Any], n_refs: int = 8) -> Iterator[Mapping[str, Any]]:
    """The schemas of which a value fits one."""
    found = resolved(schema, root)
    key = next((key for key in ("anyOf", "oneOf") if isinstance(found.get(key), list) and found[key]), None)
    if key is None or not n_refs:
        yield found
        return
    rest = {name: each for name, each in found.items() if name != key}
    for each in found[key]:
        if isinstance(each, Mapping):
            yield from _alternatives({**rest, **each}, root, n_refs - 1)


_ANY = "(?s:.*)"


def _is_any(schema: Mapping[str, Any]) -> bool:
    """Whether a schema of strings asks for nothing more."""
    return not schema.keys() & {"enum", "const"} and _expression(schema) == _ANY


def _expression(schema: Mapping[str, Any]) -> str:
    """The regular expression of a string of a schema."""
    pattern, least, most = schema.get("pattern"), schema.get("minLength", 0), schema.get("maxLength", "")
    if isinstance(pattern, str):
        if least or most:
            told = "a pattern beside a length cannot be kept where the model writes strings without quotes"
            raise OptionError(f"{told}; leave out one of them")
        start = "" if pattern.startswith("^") else _ANY
        end = "" if pattern.endswith("$") else _ANY
        return f"{start}({pattern.removeprefix('^').removesuffix('$')}){end}"
    return f"(?s:.{{{least},{most}}})" if least or most else _ANY
