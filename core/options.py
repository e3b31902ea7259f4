"""One frozen attrs class per plugin → config string, command-line flags and per-request JSON.

A plugin declares its options once::

    @frozen
    class NgramOptions:
        n: int = option(12, help="length of the n-gram looked up", ge=1, aliases=("spec-ngram-size-n",))

and from that come `--spec-type "ngram-simple:n=8"`, the flag `--spec-ngram-simple-n` and, for fields that say `per_request`,
`{"speculative": {"ngram-simple": {"n": 8}}}`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from numbers import Integral
from typing import Any

import attrs
from attrs import field, frozen

from augury.errors import OptionError

_ALIKE = 0.75  # of 1: a slip of the fingers changes less of a name; below it a hint names something else

_KEY = "augury_option"
_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_INNER = "inner"  # the option whose value stands in parentheses after a name
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@frozen
class NoOptions:
    """For plugins without options."""


@frozen
class Option:
    """One field of an options class, as the three doors need it."""

    name: str
    kind: type  # int, float, bool or str
    is_optional: bool  # None is allowed
    default: Any
    help: str
    ge: float | None
    le: float | None
    choices: tuple[str, ...]
    aliases: tuple[str, ...]  # flags that mean the same, without the dashes
    is_per_request: bool

    def convert(self, value: Any, where: str) -> Any:
        """A text or JSON value as the field's type. Raises OptionError, after `where`: it has another, or is out of range."""
        if value is None and self.is_optional:
            return None
        try:
            converted = self._typed(value)
        except (TypeError, ValueError, OverflowError):  # a whole number from infinity
            message = f"{where}: {self.name} is {value!r}, expected {EXPECTED[self.kind]}"
            raise OptionError(message) from None
        if self.choices and converted not in self.choices:
            message = f"{where}: {self.name} is {value!r}, expected one of {', '.join(self.choices)}"
            raise OptionError(message)
        # written so that NaN, which compares with nothing, is out of range
        if (self.ge is not None and not converted >= self.ge) or (self.le is not None and not converted <= self.le):
            message = f"{where}: {self.name} is {value!r}, expected {self.range}"
            raise OptionError(message)
        return converted

    @property
    def range(self) -> str:
        """The allowed range in words, empty where there is none."""
        if self.ge is not None and self.le is not None:
            return f"{_number(self.ge)} to {_number(self.le)}"
        if self.ge is not None:
            return f"at least {_number(self.ge)}"
        return f"at most {_number(self.le)}" if self.le is not None else ""

    def _typed(self, value: Any) -> Any:
        if self.kind is bool:
            if isinstance(value, str):
                if value.lower() not in _TRUE + _FALSE:
                    raise ValueError(value)
                return value.lower() in _TRUE
            if not isinstance(value, bool):
                raise TypeError(value)
            return value
        if isinstance(value, bool) or (self.kind is str and not isinstance(value, str)):
            raise TypeError(value)
        converted = self.kind(value)
        if self.kind is int and isinstance(value, float) and converted != value:
            raise ValueError(value)
        return converted


def _number(value: float) -> str:
    """A bound in words, a whole one with all its digits: a seed's in six would be another."""
    return f"{value:g}" if value % 1 else str(int(value))


EXPECTED: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
"""Types in words, for messages."""


def option(
    default: Any,
    *,
    help: str,  # noqa: A002 - as argparse calls it
    ge: float | None = None,
    le: float | None = None,
    choices: Iterable[str] = (),
    aliases: Iterable[str] = (),
    per_request: bool = False,
) -> Any:
    """A field of an options class: its value where the user says nothing, a line of help, and what is allowed.

    That is, from `ge` to `le`, or some `choices`. `aliases` are flags that mean the same, without the dashes, such as
    "spec-ngram-size-n"; `per_request`, a request may set it.
    """
    facts = {"help": help, "ge": ge, "le": le, "choices": tuple(choices), "aliases": tuple(aliases)}
    return field(default=default, metadata={_KEY: facts | {"is_per_request": per_request}})


def options_of(options_class: type[Any]) -> dict[str, Option]:
    """The options that a class declares, by field name.

    >>> list(options_of(NoOptions))
    []
    """
    return {option.name: option for option in _options_of(options_class)}  # type: ignore[arg-type] # classes can be hashed


@cache
def _options_of(options_class: type[Any]) -> tuple[Option, ...]:
    found = []
    for attribute in attrs.fields(options_class):
        if (facts := attribute.metadata.get(_KEY)) is not None:
            kind, is_optional = _kind_of(attribute.type)
            found.append(Option(name=attribute.name, kind=kind, is_optional=is_optional, default=attribute.default, **facts))
    return tuple(found)


def _kind_of(hint: Any) -> tuple[type, bool]:
    """A field's type and whether None is allowed, from its annotation, which may be text and need not be importable."""
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    names = [name.strip() for name in text.split("|")]
    if names[0] not in _KINDS or names[1:] not in ([], ["None"]):
        raise TypeError(f"an option is annotated with {text!r}, expected int, float, bool or str, or one of them | None")
    return _KINDS[names[0]], len(names) == 2


def build(options_class: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """An instance with `values` over the defaults: texts or JSON values by field name or alias, where dashes are underscores.

    The alias "spec-ngram-size-n" is `ngram_size_n`. Raises OptionError, after `where`: a key is unknown, or a value is wrong.
    """
    known = options_of(options_class)
    names = {alias.removeprefix("spec-").replace("-", "_"): each.name for each in known.values() for alias in each.aliases}
    names |= {name: name for name in known}
    converted = {}
    for key, value in values.items():
        name = names.get(key.replace("-", "_"))
        if name is None:
            message = f"{where}: there is no option {key!r}{nearest(key.replace('-', '_'), known)}"
            raise OptionError(message)
        if name in converted:
            raise OptionError(f"{where}: {key} is another name of {name}, which is given, too; give one of them")
        converted[name] = known[name].convert(value, where)
    return options_class(**converted)


def check_count(name: str, value: Any, least: int = 1) -> int:
    """A count that a caller gave, as any whole number: many write 3.0 in JSON. Raises OptionError: it is below `least`."""
    is_whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole or value < least:
        raise OptionError(f"{name} is {value!r}, expected a whole number of at least {least}")
    return int(value)


def check_mapping(name: str, values: Any) -> Mapping[str, Any]:
    """Options that a caller gave, by name. Raises OptionError: they are no mapping, or a name is no text."""
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise OptionError(f"{name} is {values!r}, expected a mapping from names to values")
    return values


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown `name`: the nearest known one, or all of them."""
    names = list(known)
    if (close := similar(name, names)) is not None:
        return f"; did you mean {close!r}?"
    return f"; known: {', '.join(sorted(names)) or 'none'}"


def similar(name: str, known: Iterable[str]) -> str | None:
    """The known name that an unknown one was probably meant to be; capitals do not matter.

    >>> similar("SmolLM2", ["smollm2"])
    'smollm2'
    """
    names = {each.lower(): each for each in known}
    return next((names[close] for close in difflib.get_close_matches(name.lower(), names, n=1, cutoff=_ALIKE)), None)


@frozen
class Spec:
    """One plugin of a configuration string: its name and its options as texts."""

    name: str
    values: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        rest = ",".join(f"{key}={value}" for key, value in self.values if key != _INNER)
        inner = "".join(f"({value})" for key, value in self.values if key == _INNER)
        return f"{self.name}{inner}" + (f":{rest}" if rest else "")


def parse_specs(text: str, kind: str = "plugin") -> tuple[Spec, ...]:
    """Parse `name:k=v,k2=v2;other`, names of a kind of plugin; plain names may also be separated by commas.

    `outer(inner:k=v):k2=v2` is `outer` with the text in parentheses as its option `inner`.

    >>> [str(spec) for spec in parse_specs("ngram-simple:n=3,m=8;draft-model")]
    ['ngram-simple:n=3,m=8', 'draft-model']
    >>> [spec.name for spec in parse_specs("ngram-simple,draft-model")]
    ['ngram-simple', 'draft-model']
    >>> parse_specs("wrapper(suffix;ngram-mod:n_max=8)")[0].values
    (('inner', 'suffix;ngram-mod:n_max=8'),)

    Raises OptionError: the text is not of that form.
    """
    specs: list[Spec] = []
    for part in _split(text, ";"):
        head, *rest = _split(part, ":", 1)
        if rest:
            pairs = (_pair(item, text) for item in _split(rest[0], ",") if item.strip())
            spec = _nested(head, text, kind)
            specs.append(Spec(spec.name, (*spec.values, *pairs)))
        else:
            specs.extend(_nested(name, text, kind) for name in _split(head, ","))
    return tuple(specs)


def _split(text: str, separator: str, n_most: int = -1) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == separator and depth == 0 and len(parts) != n_most + 1:
            parts.append("")
        else:
            parts[-1] += char
    return parts if depth == 0 else text.split(separator, n_most)


def _nested(text: str, whole: str, kind: str) -> Spec:
    name, opening, inner = text.strip().partition("(")
    if opening and inner.endswith(")"):
        return Spec(_name(name.strip(), whole, kind), ((_INNER, inner[:-1].strip()),))
    return Spec(_name(text.strip(), whole, kind))


def _name(name: str, text: str, kind: str) -> str:
    if not name or not all(char.isalnum() or char in "-_." for char in name):
        if {*"()"} & {*name} and (n_open := text.count("(") - text.count(")")):
            raise OptionError(f"{text!r} has a bracket that is not {'closed' if n_open > 0 else 'opened'}; expected name(name)")
        found = f"{text!r}: {name!r}" if name else f"{text!r}"
        raise OptionError(f"{found} is not the name of a {kind}; expected name, or name:key=value,key=value")
    return name


def _pair(item: str, text: str) -> tuple[str, str]:
    key, equals, value = (piece.strip() for piece in item.partition("="))
    if not equals or not key:
        message = f"{text!r}: {item.strip()!r} is not key=value; after options, ';' separates a drafter from the next"
        raise OptionError(message)
    return key, value
