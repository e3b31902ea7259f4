"""Metadata values that a user puts in place of a model file's own."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import frozen

from augury.errors import OptionError
from augury.options import EXPECTED, nearest

Scalar = str | int | float | bool

_TYPED = re.compile(r"([A-Za-z]\w*):(.*)", re.DOTALL)


@frozen
class Untyped:
    """A value as it was typed, to be read as the type of the file's value."""

    text: str


def parse_overrides(text: str) -> list[tuple[str, Scalar | Untyped]]:
    """Read overrides as llama.cpp spells them: `KEY=TYPE:VALUE`, several separated by commas.

    The type may be left out where the file has the key; a value with commas is quoted with its key. Raises OptionError: it is
    not of that form.

    >>> parse_overrides("tokenizer.ggml.add_bos_token=bool:false,tokenizer.ggml.pre=str:qwen2")
    [('tokenizer.ggml.add_bos_token', False), ('tokenizer.ggml.pre', 'qwen2')]
    """
    return [_parsed(item) for row in csv.reader([text]) for item in row]


def _parsed(item: str) -> tuple[str, Scalar | Untyped]:
    key, equals, said = item.partition("=")
    if not equals or not key:
        raise OptionError(f"the override {item!r} was expected to be KEY=TYPE:VALUE, with a type of {', '.join(_READ)}")
    if (typed := _TYPED.fullmatch(said)) is None:
        return key, Untyped(said)
    if typed[1] not in _READ:
        raise OptionError(
            f"the override of {key} has the type {typed[1]!r}, expected {', '.join(_READ)}, as in {key}=str:{said}"
        )
    return key, _read(key, typed[1], typed[2])


def _read(key: str, kind: str, text: str) -> Scalar:
    try:
        return _READ[kind](text)
    except (ValueError, KeyError):
        raise OptionError(f"the override of {key} is {text!r}, expected {_EXPECTED[kind]}") from None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


_READ: dict[str, Callable[[str], Scalar]] = {
    "int": int,
    "float": _finite,
    "bool": {"true": True, "false": False}.__getitem__,
    "str": str,
}
_EXPECTED = {kind.__name__: words for kind, words in EXPECTED.items()}


def overriding(metadata: Mapping[str, object], overrides: Mapping[str, Scalar | Untyped], path: Path) -> dict[str, object]:
    """Values in place of a file's own metadata, or beside it, by their full keys.

    A key that begins with a dot is one of the file's architecture. Whole numbers are also taken for others. Raises OptionError,
    which names `path`: the file has another type there, or nothing that tells the type.
    """
    of_model = metadata.get("general.architecture")
    full = {f"{of_model}{key}" if key.startswith(".") else key: value for key, value in overrides.items()}
    return {key: _checked(metadata, key, value, path) for key, value in full.items()}


def _checked(metadata: Mapping[str, object], key: str, value: Scalar | Untyped, path: Path) -> Scalar:
    has = type(metadata[key]).__name__ if key in metadata else None
    if has is not None and has not in _READ:
        raise OptionError(f"{path}: metadata key {key!r} is an array; only single values can be overridden")
    if isinstance(value, Untyped):
        if has is None:
            raise OptionError(
                f"{path}: there is no metadata key {key!r}{nearest(key, metadata).partition('; known')[0]}; to add it, say its "
                f"type, as in {key}=str:{value.text}"
            )
        return _read(key, has, value.text)
    kind = type(value).__name__
    if kind not in _READ:
        raise OptionError(f"the override of {key} is {value!r}, expected a {', a '.join(_READ)}")
    if has == "float" and kind == "int":
        return float(value)
    if has not in (None, kind):
        raise OptionError(
            f"{path}: metadata key {key!r} is {_EXPECTED[has]}; it cannot be overridden by {value!r}, {_EXPECTED[kind]}"
        )
    return value
