"""Schemas, of which what asks for nothing is no demand."""

import datetime as dt
import itertools
import json
import re
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import UUID4, AnyUrl, BaseModel, Field, SecretStr, TypeAdapter
from support import vocabularies
from support.grammar_matching import follows

from augury.constraint import ConstraintSession
from augury.engine.shared import Shared
from augury.errors import OptionError
from augury.plugins.constraints.grammars import JsonSchema, JsonSchemaOptions
from augury.plugins.constraints.schema import ONE_LINE, demands

TOKENIZER = vocabularies.tokenizer("smollm")
SESSION = ConstraintSession(TOKENIZER.n_vocab, TOKENIZER, TOKENIZER.eog, Shared().get)


class Color(Enum):
    RED = "red"


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Tree(BaseModel):
    children: list["Tree"] = []


KINDS = [
    Path, UUID4, SecretStr, bytes, dt.datetime, dt.timedelta, Decimal, IPv4Address, AnyUrl, int | None, Literal["a", 1],
    set[int], frozenset[str], dict[Color, int], dict[Literal["a", "b"], int], dict[dt.date, int], dict[UUID4, str],
    Color, tuple[int, str], list[float], dict[str, int], Tree, Annotated[Cat | Dog, Field(discriminator="kind")],
    Annotated[int, Field(examples=[{"uniqueItems": True}], json_schema_extra={"deprecated": True, "x-a": 1, "$comment": "c"})],
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_schemas_that_pydantic_writes_are_kept(kind):
    JsonSchema(JsonSchemaOptions(json.dumps(TypeAdapter(kind).json_schema())), SESSION)


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"format": "path"}, {}),
        ({"format": "uuid4"}, {"format": "uuid"}),
        ({"format": "date"}, {"format": "date"}),
        ({"uniqueItems": False, "not": False, "propertyNames": True, "unevaluatedProperties": {}}, {}),
        ({"uniqueItems": True}, {}),
        (
            {"propertyNames": {"pattern": "a"}},
            {"properties": {}, "patternProperties": {"a": True}, "additionalProperties": False},
        ),
        ({"propertyNames": {"format": "x"}, "additionalProperties": False}, {"additionalProperties": False}),
        ({"propertyNames": {"type": "string", "title": "Name", "format": "x"}}, {}),
        ({"minContains": 1, "then": {}, "else": {}}, {}),
        ({"contains": {"type": "null"}, "minContains": 0}, {}),
        ({"minLength": None, "title": None, "items": {"maximum": None}, "const": None}, {"items": {}, "const": None}),
        ({"propertyNames": {"maxLength": None}, "properties": None, "items": {"uniqueItems": None}}, {"items": {}}),
        ({"if": {"format": "x"}}, {}),
        ({"if": {"format": "x"}, "then": {"type": "null"}}, {"if": {}, "then": {"type": "null"}}),
        ({"anyOf": [{"type": "number"}, {"pattern": "(?!a)b"}]}, {"anyOf": [{"type": "number"}]}),
        ({"oneOf": [{"type": "number"}, {"pattern": "(?!a)b"}]}, {"oneOf": [{"type": "number"}]}),
        ({"additionalProperties": {"not": {}}, "items": {"not": True}}, {"additionalProperties": False, "items": False}),
        ({"unevaluatedProperties": {"not": {}}}, {"additionalProperties": False}),
        ({"unevaluatedProperties": False, "additionalProperties": {}}, {"additionalProperties": {}}),
        ({"unevaluatedProperties": False, "allOf": []}, {"unevaluatedProperties": False, "allOf": []}),
        ({"minimum": -(2**63), "maximum": 2**64}, {"minimum": 1024 - 2**63, "maximum": 2**64}),
        ({"minimum": -0.5, "maximum": 7}, {"minimum": -0.5, "maximum": 7}),
        ({"anyOf": [{"pattern": "(?!a)b"}]}, {"anyOf": [{"pattern": "(?!a)b"}]}),
        ({"allOf": [{}, {"pattern": "(?!a)b"}]}, {"allOf": [{}, {"pattern": "(?!a)b"}]}),
        *(({keyword: {"format": "x"}}, {keyword: {}}) for keyword in ("items", "additionalProperties", "contains")),
        *(
            ({keyword: [{"format": "x"}, True]}, {keyword: [{}, True]})
            for keyword in ("items", "prefixItems", "allOf", "oneOf")
        ),
        *(
            ({keyword: {"format": {"format": "x"}}}, {keyword: {"format": {}}})
            for keyword in ("properties", "$defs", "definitions")
        ),
        *(
            ({keyword: value}, {keyword: value})
            for keyword in ("const", "default")
            for value in ({"format": "x"}, {"items": {"uniqueItems": False}})
        ),
        ({"enum": [{"format": "x"}]}, {"enum": [{"format": "x"}]}),
        ({"examples": [{"format": "x"}]}, {"examples": [{"format": "x"}]}),
    ],
)
def test_what_asks_for_nothing_is_dropped_where_schemas_stand_and_nowhere_else(schema, kept):
    assert demands(schema) == kept


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"properties": {"a": {"not": {"const": 1}}}}, r'\["not"\], at #/properties/a/not$'),
        ({"$defs": {"b": {"not": False}}, "items": {"default": {"not": 1}, "not": {"const": 1}}}, "at #/items/not$"),
        (
            {"properties": {"a": {"propertyNames": {"pattern": "^(ab)*$", "maxLength": 3}}}},
            r'\["propertyNames"\], at #/properties/a/propertyNames; a length .* cannot be kept beside a pattern with groups',
        ),
        ({"propertyNames": {"minLength": 1}, "patternProperties": {"a": {}, "b": {}}}, "beside several patternProperties"),
        ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3}, "there are 2; lower minItems"),
        ({"properties": {"format": {"not": {"type": "null"}}}}, r'\["not"\], at #/properties/format/not$'),
        ({"properties": {"default": {"not": {"type": "null"}}}}, r'\["not"\], at #/properties/default/not$'),
    ],
)  # fmt: skip
def test_a_demand_that_cannot_be_kept_is_an_error_that_says_where(schema, told):
    with pytest.raises(OptionError, match=told):
        JsonSchema(JsonSchemaOptions(json.dumps(schema)), SESSION)


@pytest.mark.parametrize(
    ("kind", "fitting", "others"),
    [
        (
            set[Size],
            ["[]", '["small", "large"]', '["large"]'],
            ['["small", "small"]', '["tiny"]', '["large", "small", "large"]'],
        ),
        (Annotated[set[bool], Field(min_length=2)], ["[true, false]"], ["[true]", "[true, true]", "[]"]),
        (
            dict[Annotated[str, Field(min_length=2, max_length=3)], int],
            ['{"ab": 1}', '{"a\\"b": 1, "é☃": 2}', "{}"],
            ['{"a": 1}', '{"abcd": 1}', '{"ab": "x"}'],
        ),
        (
            dict[Annotated[str, Field(pattern="^[a-z]+$", max_length=3)], int],
            ['{"abc": 1}'],
            ['{"": 1}', '{"abcd": 1}', '{"A": 1}'],
        ),
        (
            dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_-]*$", min_length=2, max_length=4)], int],
            ['{"_a-9": 1}', '{"Ab": 1}'],
            ['{"a": 1}', '{"9a": 1}', '{"abcde": 1}'],
        ),
        (
            {"type": "object", "propertyNames": {"pattern": "^x-", "maxLength": 4}, "properties": {"x-abc": True, "x-a": True}},
            ['{"x-ab": 1}', '{"x-": 1}', '{"x-a": 1}'],
            ['{"x-abc": 1}', '{"a": 1}', '{"x": 1}'],
        ),
        (
            {"propertyNames": {"pattern": "^a"}, "properties": {"ab": {"type": "null"}, "b": True}, "type": "object"},
            ['{"ab": null, "ac": 1}', '{"a": 1}'],
            ['{"ab": 1}', '{"b": 1}', '{"ab": null, "b": 1}'],
        ),
        (
            {
                "propertyNames": {"maxLength": 2},
                "properties": {"abc": True},
                "type": "object",
                "additionalProperties": {"type": "null"},
            },
            ['{"ab": null}'],
            ['{"abc": 1}', '{"ab": 1}'],
        ),
        (list[set[bool]], ["[[true], []]"], ["[[true, true]]", "true"]),
        (set[int], ["[1, 2]", "[1, 1]"], ["[true]", "1"]),
        (dict[Size, int], ["{}", '{"small": 1}', '{"small": 1, "large": 2}'], ['{"tiny": 1}', '{"small": "x"}']),
        (dict[dt.date, int], ['{"2024-02-29": 1}', "{}"], ['{"2024-13-01": 1}', '{"x": 1}', '{"2024-02-29": "x"}']),
        (
            dict[UUID4, int],
            ['{"123e4567-e89b-12d3-a456-426614174000": 1}'],
            ['{"123e4567": 1}', '{"x123e4567-e89b-12d3-a456-426614174000": 1}'],
        ),
    ],
)
def test_sets_and_names_of_properties_are_kept(kind, fitting, others):
    schema = kind if isinstance(kind, dict) else TypeAdapter(kind).json_schema()
    grammar = f"start: %json {json.dumps(demands(schema))}"
    assert [text for text in fitting if not follows(grammar, text)] == []
    assert [text for text in others if follows(grammar, text)] == []


PARTS = st.tuples(
    st.sampled_from(["a", "[ab]", r"[^a\]]", ".", r"\.", r"\d"]), st.sampled_from(["", "*", "+", "?", "{2}", "{1,}", "{0,2}"])
)
NAMES = ["".join(name) for n in range(5) for name in itertools.product("ab.1", repeat=n)]


@given(
    st.lists(PARTS, max_size=4), st.sampled_from("^ "), st.sampled_from("$ "), st.integers(0, 4), st.none() | st.integers(0, 4)
)
@settings(max_examples=150, derandomize=True)
def test_a_pattern_of_names_beside_a_length_is_one_pattern(parts, first, last, least, most):
    pattern = first.strip() + "".join(map("".join, parts)) + last.strip()
    names = {"pattern": pattern, "minLength": least} | ({} if most is None else {"maxLength": most})
    most = 4 if most is None else most
    fitting = [name for name in NAMES if least <= len(name) <= most and re.search(pattern, name)]
    found = demands({"type": "object", "propertyNames": names}).get("patternProperties")
    assert [name for name in NAMES if found and re.search(*found, name)] == fitting


A_NUMBER, AN_OBJECT = ({"oneOf": [{"type": kind} for kind in kinds]} for kinds in (("number", "integer"), ("object", "null")))


@pytest.mark.parametrize(
    ("schema", "fitting", "other"),
    [
        (A_NUMBER, ["3", "3.5"], '"3"'),
        (AN_OBJECT, ["{}", "null"], "3"),
        (
            {"oneOf": [{"type": "object", "properties": {"a": A_NUMBER}}, {"type": "object", "required": ["b"]}]},
            ['{"a": 3}', '{"b": "x"}'],
            "[]",
        ),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["-9", str(2**63 - 1)], str(2**63)),
    ],
)
@pytest.mark.parametrize("spaces", ["single", "none", "any"])
def test_alternatives_may_overlap_and_ranges_may_be_wide(schema, fitting, other, spaces):
    JsonSchema(JsonSchemaOptions(json.dumps(schema), spaces), SESSION)
    grammar = f"start: %json {json.dumps({**demands(schema), 'x-guidance': ONE_LINE})}"
    assert all(follows(grammar, text) for text in fitting)
    assert not follows(grammar, other)


def test_a_schema_that_is_nested_too_deeply_is_refused():
    schema = {}
    for _ in range(2000):
        schema = {"items": schema}
    with pytest.raises(OptionError, match="the schema is nested too deeply"):
        demands(schema)
