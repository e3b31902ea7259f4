"""The parent of all operations, and the values that they read and make."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, MappingProxyType
from typing import Any, ClassVar, Self

from attrs import Factory, evolve, field, fields, frozen

from augury.lowering.parts import SequenceState


@frozen(eq=False)
class Value:
    """Rows of a pass, (n, width) float32, or the columns from `first` on of such rows, which are `whole`."""

    width: int
    whole: Value | None = None
    first: int = 0

    def split(self, *widths: int) -> tuple[Value, ...]:
        """Its columns in parts of these widths, from the first one on."""
        starts = [self.first + sum(widths[:i]) for i in range(len(widths))]
        return tuple(Value(width, self.root, start) for width, start in zip(widths, starts, strict=True))

    def overlaps(self, other: Value) -> bool:
        """Whether both have a column."""
        return self.root is other.root and self.first < other.first + other.width and other.first < self.first + self.width

    @property
    def root(self) -> Value:
        """The rows that it is a part of, or itself."""
        return self if self.whole is None else self.whole


@frozen
class CachedRows:
    """Rows that tokens keep in a cache of a block, of type `f32` and with one head, as an operation reads or fills them.

    A token sees (T, width) float32 of the positions up to its own, which is the last.
    """

    cache: int  # a place in `Block.cached`
    width: int


def makes(out: Callable[[Any], Any]) -> Any:
    """A field `out` that is made of the operation's other fields, if it is not given."""
    return field(default=Factory(out, takes_self=True))


class HasKernels:
    """A part that backends need not know, because its package says how they compute it."""

    __slots__ = ()
    kernels: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """By the name of a backend, its kernel or emitter there, or where models with it import that from, see `resolve_name`."""

    @classmethod
    def kernel_for(cls, backend: str) -> Any:
        """The entry of `kernels` for a backend, or None."""
        found = cls.kernels.get(backend)
        return resolve_name(found) if isinstance(found, str) else found


@frozen(eq=False)
class Operation(HasKernels):
    """A step of a block. A field `out`, the last, has the value or values that it makes; its other values are read.

    Attributes:
        kernels: See `HasKernels`: a function of one row, or a class that writes the calls of kernels.

            `numba-cpu` and `numba-cuda` take a class, an `OperationEmitter` of their `operations`. `reference` and `numba-cpu`
            take a function, to which the operation's fields are given in their order, those of `out` last: values as rows
            (width,), to be read or, of `out`, to be filled; vectors as arrays of their numbers; numbers as they are. Rows are
            float64 on `reference`, which gives norms as functions of a row, too, matrices as arrays (n_out, n_in), and
            `CachedRows` as an array (T, width), whose last row is filled by the operation that keeps it (`cached`). They are
            float32 on `numba-cpu`, where numba compiles the function.
    """

    @property
    def out(self) -> Any:
        """The value that it makes, or the values; those without such a field make none."""
        return ()

    @property
    def made(self) -> tuple[Value, ...]:
        """The values that it makes."""
        return tuple(_values(self.out))

    @property
    def read(self) -> tuple[Value, ...]:
        """The values that it reads; parts of others as parts."""
        return tuple(value for operand in self.operands for value in _values(operand))

    @property
    def operands(self) -> tuple[Any, ...]:
        """The arguments of a function of its `kernels`, before the rows that it makes."""
        return tuple(getattr(self, each.name) for each in fields(type(self)) if each.name != "out")

    def with_values(self, others: Mapping[Value, Value]) -> Self:
        """The same operation, which reads other values in place of some."""
        names = [each.name for each in fields(type(self)) if each.name != "out"]
        read = {name: field for name, field in zip(names, self.operands, strict=True) if any(_values(field))}
        return evolve(self, **{name: _replaced(field, others) for name, field in read.items()}) if others else self

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        """Its arguments in words, each with the width that it has and the width that it must have."""
        yield from ()

    def sequence_states(self) -> dict[int, SequenceState]:
        """The states of sequences that it keeps, by their places in `Block.states`."""
        return {}

    def seen(self) -> tuple[int, ...]:
        """The caches of the block that it reads, by their places in `Block.cached`; beside `CachedRows`."""
        return ()

    def cached(self) -> dict[int, int]:
        """The caches of the block that it writes, by their places in `Block.cached`, and the values of a row of all heads."""
        return {}


def source_key(function: Any) -> str:
    """A name for the code compiled of a package's function: another one whenever its file is another.

    The name of a function that is in no file is made of its code, which differs between versions of Python.
    """
    code, file = function.__code__, Path(function.__code__.co_filename)
    constants = [repr(each) for each in code.co_consts if not isinstance(each, CodeType)]
    source = file.read_bytes() if file.is_file() else (code.co_code, code.co_names, constants)
    return hashlib.sha256(repr((function.__module__, function.__qualname__, source)).encode()).hexdigest()[:24]


def _replaced(field: Any, others: Mapping[Value, Value]) -> Any:
    return tuple(others.get(each, each) for each in field) if isinstance(field, tuple) else others.get(field, field)


def _values(field: object) -> Iterator[Value]:
    if isinstance(field, Value):
        yield field
    elif isinstance(field, tuple):
        yield from (each for each in field if isinstance(each, Value))
