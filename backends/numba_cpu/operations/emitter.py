"""Emitters of operations: they tell the memory that an operation needs, and write its records."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from attrs import frozen

from augury import lowering
from augury.backends.numba_cpu.kernels.struct import table
from augury.backends.numba_cpu.memory import Arena, State
from augury.backends.numba_cpu.operations.layout import Layout
from augury.backends.numba_cpu.tape import Tape, ThreadRows
from augury.backends.numba_cpu.weights import Weights
from augury.errors import UnsupportedError
from augury.lowering import Emitters, Operation, Value

_Emitted = TypeVar("_Emitted", bound=Operation)
_Writer = TypeVar("_Writer", bound=Callable[..., None])
EMITTERS = Emitters("numba-cpu")


@frozen(eq=False)
class Placed:
    """A block with its place in memory, as the emitters of its operations need it."""

    weights: Weights
    arena: Arena
    layout: Layout
    buffers: Mapping[str, int]
    states: Sequence[State]

    def at(self, value: Value | None) -> ThreadRows:
        """Where a value lies; nowhere, if there is none."""
        return ThreadRows(0, 0) if value is None else self.layout.place(value, self.buffers)

    def rows(self, value: Value, tape: Tape) -> ThreadRows:
        """Likewise, of any value: also of x and its norms, and of sums to be added to it, which the tape keeps."""
        if value in tape.kept:
            return tape.kept[value]
        if value in self.layout.begun:
            return tape.space.x
        return ThreadRows(tape.y if value in self.layout.added else self.at(value).address, value.width)

    def constant(self, key: Hashable, make: Callable[[], np.ndarray]) -> int:
        """The address of numbers that are made when they are first asked for, and then shared by their key."""
        return self.arena.shared(key, make, "weights")

    def table(self, *structs: Any) -> int:
        """The address of structs of one kind that follow one another; equal ones share it."""
        return self.arena.shared(structs, lambda: table(structs), "scratch")


class OperationEmitter(lowering.OperationEmitter[_Emitted]):
    """Writes the records of one operation.

    Attributes:
        kernels: Its kernels, the slowest to compile first.
        placed: Its block's memory, before it writes records.
        needs_no_barrier: Whether the next operation may begin while threads are at this one, as long as it reads nothing that
            this one writes, and writes nothing that this one reads.
    """

    kernels: Sequence[Any] = ()
    needs_no_barrier: ClassVar[bool] = False
    placed: Placed

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - for operations whose threads have some each
        """Bytes of memory that it works in, beside its values, by name. Operations share the memory of one name."""
        return {}

    def scratch_bytes(self) -> int:
        """Bytes that each thread needs for itself while it runs a kernel of the operation."""
        return 0

    def tables(self) -> Mapping[Hashable, int]:
        """Bytes of tables while they are made, by a key: operations share tables of the same key."""
        return {}

    @property
    def written(self) -> tuple[Value, ...]:
        """The values that its records write."""
        return tuple(self.operation.made)


def records(*operations: type[Operation], **attributes: Any) -> Callable[[_Writer], _Writer]:
    """Register the decorated function of an operation, its place and a tape, which writes the records of operations.

    `attributes` are those of an `OperationEmitter`, as of its class.
    """
    return EMITTERS.function(OperationEmitter, "placed", operations, attributes)


def require_multiple(n: int, of: int, what: str) -> None:
    """Refuse a size that kernels take only in whole parts, with UnsupportedError."""
    if n % of:
        raise UnsupportedError(f"{what}, expected a multiple of {of}; use backend reference")
