"""What an operation needs, and how it comes onto a tape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.blocks.recurrent import PlacedState
    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.operations.layout import Layout, Place
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.lowering import Value

__all__ = ["OperationEmitter", "Placed"]


@frozen(eq=False)
class Placed:
    """A block with its place in memory: what the emitters of its operations ask for."""

    weights: Weights
    arena: Arena
    layout: Layout
    buffers: Mapping[str, int]
    states: Sequence[PlacedState]
    n_aside: int

    def at(self, value: Value) -> Place:
        """Where a value lies."""
        return self.layout.place(value, self.buffers)


class OperationEmitter(ABC):
    """Writes the records of one operation.

    Attributes:
        needs_no_barrier: Whether the next operation may begin while threads are at this one, as long as it reads nothing that
            this one writes, and writes nothing that this one reads.
    """

    needs_no_barrier: ClassVar[bool] = False

    def __init__(self, operation: Any) -> None:
        self.operation = operation

    def kernels(self) -> Sequence[Any]:
        """Its kernels, first what takes longest to compile."""
        return ()

    def place(self, placed: Placed) -> None:
        """Keep what its records are to say."""
        self.placed = placed

    @abstractmethod
    def emit(self, tape: Tape) -> None:
        """Write its records. May be called for any number of tapes."""

    def emit_states(self, tape: Tape) -> None:  # noqa: B027 - most keep nothing
        """Write the records alone that bring its state up to date, for a pass over no tokens."""

    @property
    def written(self) -> tuple[Value, ...]:
        """The values that its records write."""
        return tuple(self.operation.made)
