"""The constraints `json-schema`, `regex`, `grammar` and `choice`, each with a parameter of requests and flags of its name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from augury.constraint import Constraint
from augury.errors import OptionError
from augury.hookspecs import hookimpl
from augury.options import option
from augury.plugins.constraints.gbnf import read_gbnf
from augury.plugins.constraints.guided import Guided
from augury.plugins.constraints.lark import to_lark
from augury.plugins.constraints.schema import NAMED, ONE_LINE, demands

_SPACES: Mapping[str, Mapping[str, Any]] = {
    "single": ONE_LINE,
    "none": {"whitespace_flexible": False, "coerce_one_of": True},
    "any": {"whitespace_flexible": True, "coerce_one_of": True},
}

_N_COMPILED = 1_000_000  # characters of a grammar, which is compiled outside of Python, and is long with many tools

# the library's message about a regular expression, perhaps within a grammar that is made of it
_ADVICE_ON_NAMES = (
    "; a length of names cannot be kept beside a pattern with groups, nor any demand beside several patternProperties or "
    'described properties: say what names are by one of patternProperties, with "additionalProperties": false'
)
_FAULT = re.compile(r"(?s)(?:at \d+\(\d+\): .*?)?regex parse error:\n +([^\n]*)\n[ ^-]*\nerror: ([^\n]*).*")
_VALUES = ("const", "default", "enum", "examples")  # keywords of a schema whose values are none
_LARK = re.compile(r"(?m)^[ \t]*[?!]?start\b[^:\n]*:(?!:=)")  # its first rule, which GBNF cannot have


@frozen
class JsonSchemaOptions:
    """Options of `json-schema`."""

    schema: str = option("{}", help="the schema, as JSON text; without one any JSON is allowed")
    spaces: str = option(
        "single", help="white space between parts: one after commas and colons, none, or as the model likes", choices=_SPACES
    )


class JsonSchema(Guided):
    """JSON that fits a schema."""

    name = "json-schema"
    keyword = "json_schema"
    options_class = JsonSchemaOptions
    options: JsonSchemaOptions

    @classmethod
    def options_for(cls, value: Any) -> Mapping[str, Any]:
        """A schema, as JSON text or as its value."""
        if not isinstance(value, str | Mapping | bool):
            raise OptionError(f"json_schema is {value!r}, expected a JSON schema: a mapping, or a text")
        try:
            return {"schema": value if isinstance(value, str) else json.dumps(value)}
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"json_schema holds what JSON does not have: {error}") from None

    def grammar(self) -> str:
        from llguidance import LLMatcher

        try:
            self._schema = json.loads(self.limited(self.options.schema, _N_COMPILED))
        except (ValueError, RecursionError) as error:
            message = f"json-schema: the schema {self.options.schema!r:.80} is not JSON: {error}"
            raise OptionError(f"{message}; give it as text, or its file by --json-schema-file") from None
        if self._schema is True:
            self._schema = {}
        if not isinstance(self._schema, dict):
            raise OptionError(f"json-schema: the schema is {self.options.schema:.80}, expected an object, or true for any JSON")
        try:
            self._schema = demands(self._schema)
            text = json.dumps(self._schema, allow_nan=False)
        except OptionError as error:
            raise OptionError(f"json-schema: {error}") from None
        except ValueError as error:
            raise OptionError(f"json-schema: the schema holds a number that JSON does not have: {error}") from None
        try:
            return LLMatcher.grammar_from_json_schema(text, overrides=_SPACES[self.options.spaces])  # type: ignore[arg-type]
        except ValueError as error:  # as of a number beyond float64
            raise OptionError(f"json-schema: the schema cannot be read: {error}") from None

    def explained(self, error: str) -> str:
        """Say where in the schema the keyword or value is that the library names."""
        fault = _FAULT.fullmatch(error)
        named = set(re.findall(r"[\w$/#:.-]+", error)) if fault is None else {fault[1]}
        found = (
            path
            for path, key, value in _entries(self._schema, "#")
            if key in named or (isinstance(value, str) and value in named)
        )
        where = next(found, None)
        message = error.replace("Unimplemented keys", "keywords that are not supported") if fault is None else _in_words(fault)
        message += f", at {where}" if where else ""
        return message + (_ADVICE_ON_NAMES if "propertyNames" in named else "")


def _in_words(fault: re.Match[str]) -> str:
    return f"{fault[1]!r} is no regular expression that can be followed: {fault[2]}"


def _entries(schema: Any, path: str, *, is_named: bool = False) -> Iterator[tuple[str, str, Any]]:
    """Every key of a schema with its value and its place, inner ones first; `is_named` says that keys are names."""
    for key, value in schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ():
        if is_named or key not in _VALUES:
            yield from _entries(value, f"{path}/{key}", is_named=key in NAMED and not is_named)
        yield f"{path}/{key}", str(key), value


@frozen
class RegexOptions:
    """Options of `regex`."""

    pattern: str = option(".*", help="the regular expression that the whole output matches; no look-around, no back-references")


class Regex(Guided):
    """Text that matches a regular expression."""

    name = "regex"
    keyword = "regex"
    options_class = RegexOptions
    options: RegexOptions

    def grammar(self) -> str:
        from llguidance import LLMatcher

        return LLMatcher.grammar_from_regex(self.limited(self.options.pattern))

    def explained(self, error: str) -> str:
        """Report the error of the pattern, without the grammar around it."""
        fault = _FAULT.fullmatch(error)
        return error if fault is None else _in_words(fault)


@frozen
class GrammarOptions:
    """Options of `grammar`."""

    text: str = option("root ::= [^\\x00]*", help="the grammar: GBNF with a rule `root`, or Lark with a rule `start`")


class Grammar(Guided):
    """Text that a context-free grammar describes."""

    name = "grammar"
    keyword = "grammar"
    options_class = GrammarOptions
    options: GrammarOptions

    def grammar(self) -> str:
        text = self.limited(self.options.text, _N_COMPILED)
        self._is_gbnf = "::=" in text and _LARK.search(text) is None
        if not self._is_gbnf:
            return text
        try:
            return to_lark(read_gbnf(self.limited(text), self._token_id, {*self.session.end_tokens, self.session.n_vocab}))
        except OptionError as error:
            raise OptionError(f"grammar: {error}") from None
        except RecursionError:
            raise OptionError("grammar: parentheses are nested too deeply; name the inner parts as rules") from None

    def explained(self, error: str) -> str:
        """Say what is expected if the library points at no place; of GBNF it never saw the text."""
        if self._is_gbnf:
            return f"llguidance cannot follow it, because it is too large or too ambiguous ({_within(error)}); make it smaller"
        return (
            error if re.search(r"\d\(\d+\):", error) else f"{error}; expected GBNF with a rule root, or Lark with a rule start"
        )

    def _token_id(self, text: str) -> int:
        """The token that a number or a text stands for. Raises `OptionError` for none, or several."""
        tokenizer, n_vocab = self.session.tokenizer, self.session.n_vocab
        ids = [int(text[:12])] if text.isdecimal() else tokenizer.encode(text, add_special=False, parse_special=True)  # type: ignore[union-attr]
        if len(ids) != 1:
            raise OptionError(
                f"{text} is {len(ids)} tokens of this model, expected the name of one; write it as a text in quotes"
            )
        if ids[0] >= n_vocab:
            raise OptionError(f"there is no token {text}, expected one below {n_vocab}")
        return ids[0]


def _within(error: str) -> str:
    """What the library says, without the place in a text that the user has not written."""
    return re.sub(r"^(?:at )?\d+\(\d+\): | \(at .*", "", error.partition("\n")[0])


@frozen
class ChoiceOptions:
    """Options of `choice`."""

    texts: str = option("yes|no", help="the texts, with | between them, or as a JSON list")


class ChoiceConstraint(Guided):
    """One of several texts, with | between them."""

    name = "choice"
    keyword = "choice"
    options_class = ChoiceOptions
    options: ChoiceOptions

    @classmethod
    def options_for(cls, value: Any) -> Mapping[str, Any]:
        return {"texts": json.dumps(value) if isinstance(value, list | tuple) else value}

    def grammar(self) -> str:
        from llguidance import LLMatcher

        texts = self.limited(self.options.texts).split("|")
        if self.options.texts.startswith("["):
            try:
                texts = json.loads(self.options.texts)
            except (ValueError, RecursionError) as error:
                raise OptionError(f"choice: texts is {self.options.texts!r}, which is no JSON list: {error}") from None
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise OptionError(f"choice: texts is {self.options.texts!r}, expected at least one text, and none that is empty")
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, texts)))


@hookimpl
def augury_constraints() -> list[type[Constraint]]:
    """Offer them all."""
    return [JsonSchema, Regex, Grammar, ChoiceConstraint]
