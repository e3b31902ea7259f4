"""Emitters of operations: they tell the memory that an operation needs, and write its launches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import frozen

from augury.backends.numba_cuda.cache import Cache
from augury.backends.numba_cuda.operations.layout import Layout
from augury.backends.numba_cuda.state import State
from augury.backends.numba_cuda.tape import Tape
from augury.lowering import Operation
from augury.types import ModelOptions

_Emitted = TypeVar("_Emitted", bound="Operation")
__all__ = ["Emitters", "OperationEmitter", "Scope"]


@frozen(eq=False)
class Scope:
    """The common data of a block's operations: the places of values, its caches, and the caches of layers' first blocks."""

    layout: Layout
    options: ModelOptions
    caches: Sequence[Cache]
    sources: Sequence[Sequence[Cache]]

    def cache(self, place: int, source: int | None = None) -> Cache:
        """A cache by its place in `Block.cached`, of the block or of a layer."""
        return (self.caches if source is None else self.sources[source])[place]


class OperationEmitter(ABC, Generic[_Emitted]):
    """Writes the launches of one operation.

    Attributes:
        place: Which of its block's states it keeps; None: none.
        state: That state.
    """

    place: int | None = None
    state: State

    def __init__(self, operation: Any, scope: Scope) -> None:
        self.operation: _Emitted = operation
        self.layout, self.scope = scope.layout, scope

    def buffers(self) -> Mapping[str, int]:
        """Bytes of memory that it works in, beside its values, by name. Operations share the memory of one name."""
        return {}

    @abstractmethod
    def emit(self, tape: Tape) -> None:
        """Write its launches. May be called for any number of tapes."""

    def emit_states(self, tape: Tape) -> None:
        """Write only the launches that bring its state up to date, for a pass over no tokens."""


Emitters = dict[type["Operation"], type[OperationEmitter[Any]]]
"""Classes by the operations that they emit."""
