"""What a JSON schema demands, without what only describes: llguidance takes every keyword that it does not know for a demand.

Source: JSON Schema 2020-12, Core (where schemas stand) and Validation (`format` and the annotations); `additionalItems`,
`definitions` and `dependencies` are of earlier drafts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from augury.errors import OptionError

_ONE = {"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
_ONE |= {"unevaluatedItems", "unevaluatedProperties"}
_MANY = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
NAMED = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
"""The keywords whose fields are names, each of a schema."""

_FORMATS = {
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "unknown",
    "uri",
    "uuid",
}  # of llguidance
_SAME = {f"uuid{version}": "uuid" for version in range(1, 9)}  # by pydantic

# Keywords that demand nothing with some values, or without some others beside them
_EMPTY = {
    "dependencies": ({},), "dependentRequired": ({},), "dependentSchemas": ({},), "not": (False,),
    "propertyNames": (True, {}), "unevaluatedItems": (True, {}), "unevaluatedProperties": (True, {}), "uniqueItems": (False,),
}  # fmt: skip
_BESIDE = {"else": "if", "maxContains": "contains", "minContains": "contains", "then": "if"}
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")


def demands(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without what asks for nothing: unknown formats, and keywords that hold for every value.

    An alternative of `anyOf` with a pattern that looks around, which llguidance cannot follow, is left out if there are others.

    Raises:
        OptionError: The schema is nested too deeply.
    """
    try:
        return _object(schema)
    except RecursionError:
        raise OptionError("the schema is nested too deeply; name its inner schemas in $defs") from None


def _schema(schema: Any) -> Any:
    return _object(schema) if isinstance(schema, Mapping) else schema


def _object(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {keyword: _value(keyword, value) for keyword, value in schema.items() if not _is_idle(keyword, value, schema)}


def _value(keyword: str, value: Any) -> Any:
    if keyword in NAMED and isinstance(value, Mapping):
        return {name: _schema(each) for name, each in value.items()}
    if keyword in _MANY and isinstance(value, list):
        followed = [each for each in value if keyword != "anyOf" or not _looks_around(each)]
        return [_schema(each) for each in followed or value]
    if keyword == "format":
        return _SAME.get(value, value)
    return _schema(value) if keyword in _ONE else value


def _is_idle(keyword: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a keyword asks for nothing."""
    if keyword == "format":
        return isinstance(value, str) and _SAME.get(value, value) not in _FORMATS
    if keyword == "if":
        return "then" not in schema and "else" not in schema
    if keyword in _BESIDE:
        return _BESIDE[keyword] not in schema
    return any(value is each or (each == {} and value == {}) for each in _EMPTY.get(keyword, ()))


def _looks_around(schema: Any) -> bool:
    pattern = schema.get("pattern") if isinstance(schema, Mapping) else None
    return isinstance(pattern, str) and _LOOK_AROUND.search(pattern) is not None
