"""Emitters of operations: they tell the memory that an operation needs, and write its records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from attrs import frozen

from augury.backends.numba_cpu.cache import Cache
from augury.backends.numba_cpu.memory import Arena
from augury.backends.numba_cpu.operations.layout import Layout
from augury.backends.numba_cpu.state import State
from augury.backends.numba_cpu.tape import Place, Rows, Tape
from augury.backends.numba_cpu.weights import Weights
from augury.errors import UnsupportedError
from augury.lowering import Operation, Value
from augury.types import ModelOptions

_Emitted = TypeVar("_Emitted", bound="Operation")
__all__ = ["Emitters", "OperationEmitter", "Placed", "Scope", "require_multiple"]


@frozen(eq=False)
class Placed:
    """A block with its place in memory, as the emitters of its operations need it."""

    weights: Weights
    arena: Arena
    layout: Layout
    buffers: Mapping[str, int]
    states: Sequence[State]
    n_aside: int

    def at(self, value: Value) -> Place:
        """Where a value lies."""
        return self.layout.place(value, self.buffers)

    def rows(self, value: Value, tape: Tape) -> Rows:
        """Likewise, of any value: also of x and its norms, and of sums to be added to it, which the tape keeps."""
        if value in tape.kept:
            return tape.kept[value]
        if value in self.layout.begun:
            return tape.space.x
        return Rows(tape.y if value in self.layout.added else self.at(value).address, 0, value.width)


@frozen(eq=False)
class Scope:
    """The part of a block that its emitters share, before it has its place.

    Attributes:
        options: How the model is loaded.
        caches: The block's caches of positions.
        sources: The caches of the mixers of all layers before.
    """

    options: ModelOptions
    caches: Sequence[Cache]
    sources: Sequence[Sequence[Cache]]

    def cache(self, place: int, source: int | None = None) -> Cache:
        """A cache of the block, or of the mixer of a layer."""
        return (self.caches if source is None else self.sources[source])[place]


class OperationEmitter(ABC, Generic[_Emitted]):
    """Writes the records of one operation.

    Attributes:
        kernels: Its kernels, the slowest to compile first.
        needs_no_barrier: Whether the next operation may begin while threads are at this one, as long as it reads nothing that
            this one writes, and writes nothing that this one reads.
    """

    kernels: Sequence[Any] = ()
    needs_no_barrier: ClassVar[bool] = False

    def __init__(self, operation: Any, scope: Scope) -> None:
        self.operation: _Emitted = operation
        self.scope = scope

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - for operations whose threads have some each
        """Bytes of memory that it works in, beside its values, by name. Operations share the memory of one name."""
        return {}

    def scratch_bytes(self) -> int:
        """Bytes that each thread needs for itself while it runs a kernel of the operation."""
        return 0

    def tables(self) -> Mapping[Hashable, int]:
        """Bytes of tables while they are made, by a key: operations share tables of the same key."""
        return {}

    def place(self, placed: Placed) -> None:
        """Keep the operands of its records."""
        self.placed = placed

    @abstractmethod
    def emit(self, tape: Tape) -> None:
        """Write its records. May be called for any number of tapes."""

    def emit_states(self, tape: Tape) -> None:
        """Write only the records that bring its state up to date, for a pass over no tokens."""

    @property
    def written(self) -> tuple[Value, ...]:
        """The values that its records write."""
        return tuple(self.operation.made)


Emitters = dict[type["Operation"], type[OperationEmitter[Any]]]
"""Classes by the operations that they emit."""


def require_multiple(n: int, of: int, what: str) -> None:
    """Refuse a size that kernels take only in whole parts.

    Raises:
        UnsupportedError: It is no multiple.
    """
    if n % of:
        raise UnsupportedError(f"{what}, expected a multiple of {of}; use backend reference")
