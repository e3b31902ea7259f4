"""Whether the fields of operations hold what their types say, so that no backend computes from anything else."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs
import numpy as np

from augury.lowering import parts
from augury.lowering.operation import Value

_WORDS: Mapping[object, str] = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "a text",
    NoneType: "None",
}


def type_flaws(record: Any, name: str) -> Iterator[str]:
    """The fields that do not hold what their types say, in words; those of records in fields, too."""
    try:
        kinds = _field_types(type(record))  # type: ignore[arg-type] # a class is hashable, which its own `__hash__` hides
    except NameError as error:
        yield f"the types of {name}'s fields are not known: {error}; import it for more than type checkers"
        return
    for field, kind, is_fit in kinds:
        value = getattr(record, field)
        if not is_fit(value):
            yield f"{field} of {name} is {value!r:.80}, expected {_described(kind)}"
            continue
        for part in value if isinstance(value, tuple) else (value,):
            if hasattr(type(part), "__attrs_attrs__"):
                yield from type_flaws(part, f"{field} of {name}")


@cache
def _field_types(cls: type[Any]) -> list[tuple[str, Any, Callable[[Any], bool]]]:
    """The fields of a record, each with its type and whether a value is of it.

    Raises:
        NameError: One is not known where the class is defined.
    """
    try:
        hints = get_type_hints(cls)
    except NameError:  # types of augury's, perhaps, that the module imports for type checkers alone
        hints = get_type_hints(cls, localns={"Value": Value, **vars(parts), **vars(sys.modules[cls.__module__])})
    kinds = [(each.name, hints[each.name]) for each in attrs.fields(cls) if each.name in hints]
    return [(name, kind, _test_of(kind)) for name, kind in kinds]


@cache
def _test_of(kind: Any) -> Callable[[Any], bool]:
    """Whether a value is of a type. A truth value is no number, and a number that is not finite is none either."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        tests = [_test_of(each) for each in args]
        return lambda value: any(test(value) for test in tests)
    if origin is tuple and args[-1] is ...:
        of_each = _test_of(args[0])
        return lambda value: isinstance(value, tuple) and all(map(of_each, value))
    if origin is tuple:
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(args)
            and all(_test_of(of_one)(each) for of_one, each in zip(args, value, strict=True))
        )
    kind = origin or kind
    if kind in _TESTS or not isinstance(kind, type):
        return _TESTS.get(kind, _is_any)
    # rows in a form of a backend's are a kind of values of their own, which stands for no rows of numbers
    return (lambda value: type(value) is kind) if issubclass(kind, Value) else (lambda value: isinstance(value, kind))


def _is_any(_value: object) -> bool:
    return True


def _is_whole(value: object) -> bool:
    return isinstance(value, int | Integral) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, float | Real) and not isinstance(value, bool) and math.isfinite(float(value))
    except OverflowError:  # an integer that is larger than any float
        return False


def _are_finite(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and bool(np.isfinite(value).all())


_TESTS: Mapping[object, Callable[[Any], bool]] = {
    Any: _is_any,
    bool: lambda value: isinstance(value, bool | np.bool_),
    int: _is_whole,
    float: _is_finite,
    np.ndarray: _are_finite,
}


def _described(kind: Any) -> str:
    """A type in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_described, args))
    if origin is tuple:
        return f"a tuple of {', '.join(_described(each) for each in args if each is not ...)}"
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(kind) or (f"a member of {name}" if isinstance(kind, type) and issubclass(kind, Enum) else f"a {name}")
