"""What a JSON schema demands, without what only describes: llguidance takes every keyword that it does not know for a demand.

Source: JSON Schema 2020-12, Core (where schemas stand) and Validation (`format` and the annotations); `additionalItems`,
`definitions` and `dependencies` are of earlier drafts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, permutations
from math import inf, perm
from typing import Any

from augury.errors import OptionError

_ONE = {"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
_ONE |= {"unevaluatedItems", "unevaluatedProperties"}
_MANY = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
NAMED = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
"""The keywords whose fields are names, each of a schema."""

ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": True}
"""Options of llguidance: JSON is written on one line, and of alternatives of `oneOf` that overlap several may fit."""

# of llguidance
_FORMATS = {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"}
_SAME = {f"uuid{version}": "uuid" for version in range(1, 9)}  # by pydantic

# Keywords that demand nothing with some values, or without some others beside them
_EMPTY = {
    "dependencies": ({},), "dependentRequired": ({},), "dependentSchemas": ({},), "not": (False,),
    "propertyNames": (True, {}), "unevaluatedItems": (True, {}), "unevaluatedProperties": (True, {}), "uniqueItems": (False,),
}  # fmt: skip
_N_ARRAYS = 400  # without repeats, which take 0.1 s to compile: those of five values are 326
_NAME_FORMATS = {
    "date": r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$",
    "uuid": r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
}  # which names of properties may have
_OF_ANY_NAME = {"$comment", "default", "description", "examples", "title", "type"}  # keywords that say nothing of a name
_PART = re.compile(  # of a regular expression whose length can be counted: a letter or a class, and how often
    r"(\[\^?\]?(?:\\.|[^\[\]\\])*\]|\\[dwsDWS]|\\[^A-Za-z0-9]|[^\\\[\](){}*+?^$|])(?:([*+?])|\{(\d+)(,?)(\d*)\})?"
)
_Part = tuple[str, float, float]  # a letter of a pattern, and how often it stands there at least and at most
_ANYTHING: _Part = ("(?s:.)", 0, inf)
_OFTEN = {"*": (0, inf), "+": (1, inf), "?": (0, 1)}
_N_LENGTHS = 300  # ways of sharing a length among the parts of a pattern
_BESIDE = {"else": "if", "maxContains": "contains", "minContains": "contains", "then": "if"}
_TELLING = {"$dynamicRef", "$ref", "allOf", "anyOf", "dependentSchemas", "if", "oneOf"}  # of properties beside a schema's own
_LEAST = 1024 - (1 << 63)  # of integers with a range: llguidance reads it as a double, and fails at the least of 64 bits
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")


def demands(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without what asks for nothing: unknown formats, and keywords that hold for every value.

    An alternative with a pattern that looks around, which llguidance cannot follow, is left out if there are others. A schema
    that nothing fits is false, and `unevaluatedProperties` are `additionalProperties` where no other schema can tell of any.
    `propertyNames` is written by `properties` or `patternProperties`, and `uniqueItems` by naming all arrays if they are few:
    otherwise items may repeat.

    Raises:
        OptionError: The schema is nested too deeply.
    """
    try:
        return _object(schema, schema)
    except RecursionError:
        raise OptionError("the schema is nested too deeply; name its inner schemas in $defs") from None


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any], *, n_refs: int = 8) -> Mapping[str, Any]:
    """The schema that a schema refers to within its root, with its own keywords; itself if it refers to none."""
    while n_refs and isinstance(ref := schema.get("$ref"), str) and ref.startswith("#"):
        found: Any = root
        for part in filter(None, ref[1:].split("/")):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            break
        schema = {**found, **{key: each for key, each in schema.items() if key != "$ref"}}
        n_refs -= 1
    return schema


def _schema(schema: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    return False if schema.get("not") is True or schema.get("not") == {} else _object(schema, root)


def _object(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    schema = _with_names(_with_arrays(_evaluated(_given(schema)), root), root)
    return {keyword: _value(keyword, value, root) for keyword, value in schema.items() if not _is_idle(keyword, value, schema)}


def _given(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema without keywords that are null, which is no value of any but these two."""
    return {keyword: value for keyword, value in schema.items() if value is not None or keyword in ("const", "default")}


def _evaluated(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema without `unevaluatedProperties` where they are the additional ones."""
    if schema.get("unevaluatedProperties", True) in (True, {}) or schema.keys() & _TELLING:
        return schema
    rest = {keyword: value for keyword, value in schema.items() if keyword != "unevaluatedProperties"}
    return {"additionalProperties": schema["unevaluatedProperties"]} | rest


def _with_arrays(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema without `uniqueItems`; where few arrays are possible they are named. In others items may repeat.

    Whoever asks for a set makes one of the array, so an answer is of more use than a refusal.
    """
    if schema.get("uniqueItems") is not True:
        return schema
    rest = {keyword: value for keyword, value in schema.items() if keyword != "uniqueItems"}
    values, least, most = _values(schema.get("items"), root), schema.get("minItems", 0), schema.get("maxItems", _N_ARRAYS)
    are_counts = isinstance(least, int) and isinstance(most, int)
    if values is None or schema.get("type") != "array" or not are_counts or rest.keys() & {"contains", "prefixItems"}:
        return rest
    counts = range(least, min(most, len(values)) + 1)
    if not counts:
        raise OptionError(f"uniqueItems wants {least} items or more, of which there are {len(values)}; lower minItems")
    if sum(perm(len(values), n) for n in counts) > _N_ARRAYS:
        return rest
    others = {keyword: value for keyword, value in rest.items() if keyword not in ("items", "minItems", "maxItems")}
    return others | {"enum": [list(each) for n in counts for each in permutations(values, n)]}


def _values(schema: Any, root: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema allows, if it names them."""
    found = resolved(schema, root) if isinstance(schema, Mapping) else {}
    if found.keys() - {"const", "default", "description", "enum", "title", "type"}:
        return None
    if isinstance(values := found.get("enum", [found["const"]] if "const" in found else None), list):
        return [json.loads(text) for text in dict.fromkeys(map(json.dumps, values))]
    of_types: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}
    return of_types.get(str(found.get("type")))


def _with_names(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema without `propertyNames`, where the names can be told in another way."""
    if not isinstance(names := schema.get("propertyNames"), Mapping):
        return schema
    names, own, others = _given(resolved(names, root)), schema.get("properties") or {}, schema.get("additionalProperties", True)
    rest = {keyword: value for keyword, value in schema.items() if keyword != "propertyNames"}
    if others is False or not _object(names, root).keys() - _OF_ANY_NAME:
        return rest
    if len(patterns := schema.get("patternProperties") or {}) == 1 and not own and "pattern" not in names:
        ((pattern, others),) = patterns.items()  # as pydantic writes names with a pattern and a length
        names = {**names, "pattern": pattern}
    elif patterns:
        return schema
    if (values := _values(names, root)) is not None:
        kept = {name: own.get(name, others) for name in values if isinstance(name, str)}
        return rest | {"properties": kept, "additionalProperties": False}
    fitting = _fitting(own, pattern := _name_pattern(names))
    if pattern is None or fitting is None or (fitting and others not in (True, {})):  # which would hold for these, too
        return schema
    return rest | {"properties": fitting, "patternProperties": {pattern: others}, "additionalProperties": False}


def _fitting(properties: Mapping[str, Any], pattern: str | None) -> dict[str, Any] | None:
    """The properties whose names fit a pattern; None for one that only the library can read."""
    try:
        return {name: each for name, each in properties.items() if pattern and re.search(pattern, name)}
    except re.error:
        return None


def _name_pattern(names: Mapping[str, Any]) -> str | None:
    """The regular expression of names of properties; None if none says it, as of patterns with groups beside a length."""
    pattern = names.get("pattern", _NAME_FORMATS.get(_SAME.get(form := str(names.get("format")), form)))
    if names.keys().isdisjoint({"minLength", "maxLength"}):
        return pattern if isinstance(pattern, str) else None
    parts = [_ANYTHING] if pattern is None else _parts(str(pattern))
    least, most = names.get("minLength", 0), names.get("maxLength", inf)
    found = None if parts is None else list(islice(_of_length(parts, least, most), _N_LENGTHS + 1))
    return f"^({'|'.join(found)})$" if found and len(found) <= _N_LENGTHS else None


def _parts(pattern: str) -> list[_Part] | None:
    """The parts of a pattern one after another; None if it has groups or alternatives."""
    inner = pattern.removeprefix("^").removesuffix("$")
    found = list(_PART.finditer(inner))
    if sum(len(each[0]) for each in found) < len(inner) or pattern.endswith("\\$"):
        return None
    parts = [] if pattern.startswith("^") else [_ANYTHING]
    for each in found:
        letter, often, least, comma, most = each.groups()
        counted = (int(least or 1), int(most or least or 1) if most or not comma else inf)
        parts.append((letter, *(_OFTEN[often] if often else counted)))
    return parts if pattern.endswith("$") else [*parts, _ANYTHING]


def _of_length(parts: Sequence[_Part], least: float, most: float) -> Iterator[str]:
    """The regular expressions, one of which each text of so many letters fits that the parts describe."""
    if not parts:
        yield from ("",) if least <= 0 else ()
        return
    (letter, low, high), *rest = parts
    shortest, longest = sum(each for _, each, _ in rest), sum(each for _, _, each in rest)
    low, high = max(low, least - longest), min(high, most - shortest)
    if shortest == longest and (least := max(low, least - shortest)) <= high:
        yield "".join(f"{each}{_times(n, m)}" for each, n, m in ((letter, least, high), *rest))
        return
    last = max(low, least - shortest) if most == inf else high  # from which on the rest may have any length
    for n in range(int(low), int(min(last, high)) + 1):
        times = _times(n, high if n == last and most == inf else n)
        yield from (f"{letter}{times}{end}" for end in _of_length(rest, max(least - n, 0), most - n))


def _times(least: float, most: float) -> str:
    return f"{{{least},{'' if most == inf else most}}}"


def _value(keyword: str, value: Any, root: Mapping[str, Any]) -> Any:
    if keyword in NAMED and isinstance(value, Mapping):
        return {name: _schema(each, root) for name, each in value.items()}
    if keyword in _MANY and isinstance(value, list):
        followed = [each for each in value if keyword not in ("anyOf", "oneOf") or not _looks_around(each)]
        return [_schema(each, root) for each in followed or value]
    if keyword == "format":
        return _SAME.get(value, value)
    if keyword == "minimum" and isinstance(value, int):
        return max(value, _LEAST)
    return _schema(value, root) if keyword in _ONE else value


def _is_idle(keyword: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a keyword asks for nothing."""
    if keyword == "format":
        return isinstance(value, str) and _SAME.get(value, value) not in _FORMATS
    if keyword in ("contains", "minContains") and schema.get("minContains") == 0 and "maxContains" not in schema:
        return True
    if keyword == "if":
        return "then" not in schema and "else" not in schema
    if keyword in _BESIDE:
        return _BESIDE[keyword] not in schema
    return any(value is each or (each == {} and value == {}) for each in _EMPTY.get(keyword, ()))


def _looks_around(schema: Any) -> bool:
    pattern = schema.get("pattern") if isinstance(schema, Mapping) else None
    return isinstance(pattern, str) and _LOOK_AROUND.search(pattern) is not None
