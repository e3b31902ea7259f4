"""Collects the operations of a block while it says how it is computed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ParamSpec, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs
import numpy as np

from augury.lowering import parts
from augury.lowering.attention import PositionChoice, PrepareHeads
from augury.lowering.operation import CachedRows, Operation, Value
from augury.lowering.operations import Add, AddStream, ComputeLogits, InitStreams, Multiply, Normalize, ScaleToLength
from augury.lowering.parts import Linear, Norm, Preparation, SequenceState
from augury.options import EXPECTED

_WORDS: Mapping[Any, str] = {**EXPECTED, float: "a finite number", NoneType: "None"}
_Fields = ParamSpec("_Fields")
_Out_co = TypeVar("_Out_co", covariant=True)


class _Makes(Protocol[_Out_co]):
    @property
    def out(self) -> _Out_co: ...


class Builder:
    """The list on which `Block.lower` writes operations.

    Attributes:
        x: The residual stream as the block sees it, (n, E).
        before: The residual stream as it was before the layer, (n, E). Only the first operations may read it.
        embedded: The embedding's output, (n, E), for blocks that say that they read it (`Block.reads_embedding`).
        operations: The added ones, in order.
    """

    def __init__(self, n_embd: int) -> None:
        self.x, self.before, self.embedded = Value(n_embd), Value(n_embd), Value(n_embd)
        self.operations: list[Operation] = []
        self._reused: list[PositionChoice] = []

    def flaws(self, states: Sequence[SequenceState], cached: tuple[tuple[str, int, int], ...]) -> Iterator[str]:
        """The misfits of operations, between them, and with the states and caches that the block declares, in words.

        Operands are looked at first: the others presuppose that each is what its operation's field says.
        """
        written: Sequence[object] = self.operations  # a package may have written anything
        for each in written:
            if not isinstance(each, Operation):
                yield f"it writes {each!r:.80}, expected an operation"
            else:
                yield from type_flaws(each, type(each).__name__)
        yield from self._misfits(states, cached)

    def _misfits(self, states: Sequence[SequenceState], cached: tuple[tuple[str, int, int], ...]) -> Iterator[str]:
        made, kept, written = {self.x, self.before, self.embedded, *self._reused}, {}, {}
        norms = {each.out for each in self.operations if isinstance(each, Normalize) and each.x in (self.x, self.before)}
        for each in self.operations:
            name = type(each).__name__
            for value in each.read:
                if value.root in (self.x, self.before) and not isinstance(each, Normalize | ComputeLogits):
                    yield f"{name} reads x as others may still add to it; let it read `normalize(x, None)`"
                elif value.root not in made:
                    yield f"{name} reads {value.width} values that nothing before it makes"
                elif not 0 <= value.first < value.first + value.width <= value.root.width:
                    yield f"{name} reads columns up to {value.first + value.width} of {value.root.width}, from {value.first} on"
            sizes = [*each.sizes()]
            if isinstance(each, Add | InitStreams):
                sizes += [("y", value.width, self.x.width) for value in each.read]
            yield from (
                f"{what} of {name} has {found} values, expected {right}" for what, found, right in sizes if found != right
            )
            if isinstance(each, ScaleToLength) and each.x.root in norms:
                yield f"{name} writes over a norm of x, which threads keep for all that read it; scale what is made of that"
            yield from _cache_flaws(each, name, cached)
            made.update(each.made)
            kept.update(each.sequence_states())
            written.update(each.cached())
        keeps_for_others = any(isinstance(each, PrepareHeads) and each.source is not None for each in self.operations)
        ends = [isinstance(each, Add | AddStream | InitStreams | ComputeLogits) for each in self.operations]
        if any(ends[:-1]) or not (all(ends[-1:]) or keeps_for_others):
            yield "it adds to x more than once, or not in the end; let its last operation add the whole result"
        if kept != dict(enumerate(states)):
            yield f"its operations keep the states {kept}, `states` says {dict(enumerate(states))}"
        expected = {i: n_heads * size for i, (_, n_heads, size) in enumerate(cached)}
        if written != expected:
            yield f"its operations keep rows of {written} values by cache, `cached` says {expected}"

    def add(self, kind: Callable[_Fields, _Makes[_Out_co]], *args: _Fields.args, **kwargs: _Fields.kwargs) -> _Out_co:
        """Add an operation of a class, with its fields; returns its `out`, the values that it makes."""
        operation = kind(*args, **kwargs)
        self.operations.append(operation)  # type: ignore[arg-type] # `flaws` says if it is none
        return operation.out

    def normalize(self, x: Value, norm: Norm | None) -> Value:
        """norm(x), by groups of `norm.size` values; x itself without a norm, unless it is the residual stream."""
        return x if norm is None and x not in (self.x, self.before) else self.add(Normalize, x, norm)

    def add_product(self, x: Value, linear: Linear, purpose: str, norm: Norm | None = None) -> None:
        """Add the product of x with a matrix, or its norm, to the residual stream."""
        (y,) = self.add(Multiply, x, (linear,), purpose)
        self.add(Add, y, norm)

    def prepare_heads(
        self,
        x: Sequence[Value],
        dims: Sequence[int],
        steps: Sequence[Preparation],
        caches: Sequence[int | None] | None = None,
        source: int | None = None,
    ) -> tuple[Value, ...]:
        """The heads of several x, prepared, and kept where there are caches; x itself if there is nothing to do."""
        caches = [None] * len(x) if caches is None else caches
        if all(each.is_nothing for each in steps) and not any(cache is not None for cache in caches):
            return tuple(x)
        return self.add(PrepareHeads, tuple(x), tuple(dims), tuple(steps), tuple(caches), source)

    def reuse_choice(self, size: int = 1) -> PositionChoice:
        """The choice of the nearest layer before that makes one, of blocks of `size` positions."""
        self._reused.append(PositionChoice(1, size=size))
        return self._reused[-1]


def _cache_flaws(each: Operation, name: str, cached: tuple[tuple[str, int, int], ...]) -> Iterator[str]:
    for place in each.seen():
        if not 0 <= place < len(cached):
            yield f"{name} reads cache {place}, `cached` says {cached}"
    for rows in (operand for operand in each.operands if isinstance(operand, CachedRows)):
        if cached[rows.cache : rows.cache + 1] != (("f32", 1, rows.width),):
            yield f"{name} has cache {rows.cache} for rows of {rows.width} floats, `cached` says {cached}"


def type_flaws(record: Any, name: str) -> Iterator[str]:
    """The fields, also of records in fields, that do not hold what their types say: no backend computes from anything else."""
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
    """A record's fields, each with its type and a test of values. Raises NameError: a type is not known where the class is."""
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
    if kind in _TESTS or kind is Any or not isinstance(kind, type):
        return _TESTS.get(kind, lambda _: True)
    # rows in a form of a backend's are a kind of values of their own, which stands for no rows of numbers
    return (lambda value: type(value) is kind) if issubclass(kind, Value) else (lambda value: isinstance(value, kind))


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, float | Real) and not isinstance(value, bool) and math.isfinite(float(value))
    except OverflowError:  # an integer that is larger than any float
        return False


_TESTS: Mapping[object, Callable[[Any], bool]] = {
    bool: lambda value: isinstance(value, bool | np.bool_),
    int: lambda value: isinstance(value, int | Integral) and not isinstance(value, bool),
    float: _is_finite,
    np.ndarray: lambda value: isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and bool(np.isfinite(value).all()),
}


def _described(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_described, args))
    if origin is tuple:
        return f"a tuple of {', '.join(_described(each) for each in args if each is not ...)}"
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(kind) or (f"a member of {name}" if isinstance(kind, type) and issubclass(kind, Enum) else f"a {name}")
