"""The constraints on llguidance: what they allow, with every kind of vocabulary, and what they say of what they cannot read."""

import json
import re
import sys

import numpy as np
import pytest
from support import vocabularies

from augury.cli.command_line import make_parser
from augury.cli.request_flags import request_params
from augury.constraint import ConstraintSession
from augury.engine.shared import Shared
from augury.errors import OptionError, PluginError, UnsupportedError
from augury.options import build
from augury.testing.constraint import CONSTRAINT_CHECKS, check_constraint
from augury.testing.drafter.engines import engine_with
from augury.testing.toys import registry_with_toys

REGISTRY = registry_with_toys()
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "number": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["red", "green"]},
    },
    "required": ["name", "number", "kind"],
    "additionalProperties": False,
}
SHORT = {
    "type": "object",
    "properties": {"the": {"enum": ["then", "there"]}},
    "required": ["the"],
    "additionalProperties": False,
}


def made(name, values, vocabulary="smollm"):
    tokenizer = vocabularies.tokenizer(vocabulary)
    session = ConstraintSession(tokenizer.n_vocab, tokenizer, tokenizer.eog, Shared().get)
    found = REGISTRY.constraints[name]
    return found(build(found.options_class, values, name), session)


def written(constraint, rng):
    """A random output."""
    tokens = []
    while not constraint.is_complete:
        token = int(rng.choice(np.flatnonzero(constraint.allowed())))
        if token in constraint.session.end_tokens:
            break
        tokens.append(token)
        constraint.accept(token)
    return tokens


@pytest.mark.parametrize("vocabulary", [*vocabularies.NAMES, "no-bytes"])
def test_json_of_any_vocabulary_fits_its_schema_and_what_is_forced_is_written_as_its_tokenizer_would(vocabulary):
    constraint = made("json-schema", {"schema": json.dumps(SCHEMA)}, vocabulary)
    forced, tokenizer = constraint.forced(99), constraint.session.tokenizer
    if vocabulary != "no-bytes":  # which cannot spell every text
        spelled = b"".join(map(tokenizer.piece, forced))
        assert b'{"name": "'.startswith(spelled)
        assert len(spelled) > 5
        encoded = [tokenizer.encode(before + spelled.decode(), add_special=False) for before in ("", "\n")]
        assert [*forced] in (encoded[0], encoded[1][-len(forced) :])
    tokens = written(constraint, np.random.default_rng(2))
    found = json.loads(b"".join(map(tokenizer.piece, tokens)))
    assert [*found] == ["name", "number", "kind"]
    assert len(found["name"]) <= 8
    assert 0 <= found["number"] <= 999
    assert found["kind"] in ("red", "green")


@pytest.mark.parametrize("check", CONSTRAINT_CHECKS[:2], ids=lambda check: check.name)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("json-schema", {"schema": json.dumps(SCHEMA)}),
        ("json-schema", {"spaces": "any"}),
        ("regex", {"pattern": "(then|there) [a-c]{2,5}(x|y)?"}),
        ("grammar", {"text": 'root ::= "the" ( " in" | "re" )+ "."'}),
        ("grammar", {"text": 'start: "the" ("re" | %json {"type": "boolean"})'}),
        ("choice", {"texts": "then|the end|in there"}),
    ],
)
def test_contracts_are_kept_with_options(check, name, values):
    check_constraint(name, values, registry=REGISTRY, checks=[check])


@pytest.mark.parametrize(
    ("asked", "form"),
    [
        ({"json_schema": SHORT}, r'\{"the": "(then|there)"\}'),
        ({"json_schema": json.dumps(SHORT)}, r'\{"the": "(then|there)"\}'),
        ({"constraint": {"json-schema": {"schema": json.dumps(SHORT), "spaces": "none"}}}, r'\{"the":"(then|there)"\}'),
        ({"regex": "(the|in){2}[0-9]"}, "(the|in){2}[0-9]"),
        ({"grammar": 'root ::= "the" "re"? ("a" | "b")'}, "the(re)?(a|b)"),
        ({"grammar": 'start: "the" ("a" | "b")'}, "the(a|b)"),
        (
            {"grammar": r'root ::= "\u00e9\\u" s' "\n" r's ::= [\u0061-\U00000062] "\u0022"'},
            r'é\\u[ab]"',
        ),
        ({"choice": ["the|n", "in"]}, r"the\|n|in"),
        ({"choice": "then|in"}, "then|in"),
    ],
)
def test_a_keyword_asks_for_output_of_a_form(asked, form):
    with engine_with(registry=REGISTRY) as engine:
        result = engine.generate([1, 2], temperature=2.0, seed=4, **asked)
    assert re.fullmatch(form, result.text)
    assert result.finish_reason == "stop"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"json_schema": '{"type":'}, "json-schema: the schema '{.type.:' is not JSON: Expecting value: line 1 column 9"),
        ({"json_schema": "[]"}, r"the schema is \[\], expected an object, or true"),
        ({"json_schema": False}, "the schema is false, expected an object, or true"),
        ({"json_schema": 3}, "json_schema is 3, expected a JSON schema"),
        ({"json_schema": {"type": "strin"}}, "json-schema: Invalid type: strin, at #/type"),
        (
            {"json_schema": {"properties": {"a": {"items": [{"contains": {}}]}}}},
            r'keywords that are not supported: \["contains"\], at #/properties/a/items/0/contains',
        ),
        ({"regex": "a(b"}, r"^regex: 'a\(b' is no regular expression that can be followed: unclosed group$"),
        ({"regex": "(?=a)b"}, "^regex: .* look-around, including look-ahead and look-behind, is not supported$"),
        (
            {"json_schema": {"properties": {"a": {"pattern": "(?=a)b"}}}},
            r"^json-schema: '\(\?=a\)b' is no .* is not supported, at #/properties/a/pattern$",
        ),
        ({"regex": 3}, "regex: pattern is 3, expected a text"),
        ({"grammar": 'root ::= "a" b'}, "grammar: line 1, column 14: rule 'b' is not defined"),
        ({"grammar": 'root ::= "a'}, 'grammar: line 1, column 12: found the end of the grammar, expected " for the "'),
        ({"grammar": 'start: "a" b'}, '(?s)grammar: at 1.8.: unknown name: "b"'),
        ({"grammar": ""}, "grammar is given an empty text, .* leave it out or fill it"),
        ({"grammar": "foo ::= [a]"}, "grammar: there is no rule root, where the text begins; the rules are foo"),
        ({"choice": []}, r"choice: texts is '\[\]', expected at least one text"),
        ({"choice": [1]}, r"choice: texts is '\[1\]', expected at least one text, and none that is empty"),
        ({"choice": ["yes", ""]}, "none that is empty"),
        ({"choice": "yes|"}, "none that is empty"),
        *(({name: ""}, f"{name} is given an empty text") for name in ("choice", "regex")),
        ({"json_schema": ""}, "json-schema is given an empty text"),
        ({"choice": "[a"}, r"choice: texts is '\[a', which is no JSON list"),
        ({"choice": ["a" * 100_000]}, "choice is given 100004 characters, expected 100000 at most"),
        ({"grammar": "root ::= " + '"a" ' * 30_000}, "grammar is given 120009 characters, expected 100000 at most"),
        ({"json_schema": "[" * 50_000}, r"json-schema: the schema '(\[){79} is not JSON"),
        ({"json_schema": "pet.json"}, "give it as text, or its file by --json-schema-file"),
        ({"json_schema": {"const": float("inf")}}, "json-schema: the schema holds a number that JSON does not have"),
        ({"json_schema": {"minimum": 10**400}}, "json-schema: the schema cannot be read: number out of range"),
        ({"json_schema": {"minimum": 10**5000}}, "json_schema holds what JSON does not have: .* digits"),
        ({"json_schema": {"enum": {1}}}, "json_schema holds what JSON does not have: .* set is not JSON serializable"),
        ({"grammar": "start: " + '"a" ' * 70_000}, r"grammar: panic: [^\n]*;? ?expected GBNF[^\n]*$"),
        ({"regex": "a", "constraint": "choice"}, "constraint and regex are given, but a request has one constraint"),
        ({"jsonschema": {}}, "there is no parameter 'jsonschema'; did you mean 'json_schema'"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_where(asked, told):
    with engine_with(registry=REGISTRY) as engine, pytest.raises(OptionError, match=told):
        engine.submit([1], **asked)


def test_a_text_that_no_token_begins_is_an_error_instead_of_half_a_text():
    constraint = made("choice", {"texts": "gr\u13a3n"}, "no-bytes")
    with pytest.raises(UnsupportedError, match="no token of the vocabulary begins what the grammar wants next"):
        written(constraint, np.random.default_rng(0))


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with engine_with(registry=REGISTRY) as engine, pytest.raises(PluginError, match=r"pip install .*\[constraints\]"):
        engine.submit([1], regex="a")


def test_without_a_tokenizer_it_is_refused():
    found = REGISTRY.constraints["regex"]
    with pytest.raises(OptionError, match="regex is about texts, but this model has no tokenizer"):
        found(found.options_class(), ConstraintSession(16, None, frozenset(), Shared().get))


def test_flags_ask_for_it_too(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text("{}")
    for words, asked in (
        (["--json-schema", '{"a": 1}'], {"json_schema": '{"a": 1}'}),
        (["-jf", str(file)], {"json_schema": "{}"}),
        (["--grammar-file", str(file)], {"grammar": "{}"}),
        (["--choice", "a|b"], {"choice": "a|b"}),
    ):
        for command in ("run", "chat"):
            params = request_params(make_parser(REGISTRY, [command, *words]).parse_args([command, *words]))
            assert asked.items() <= params.items()
