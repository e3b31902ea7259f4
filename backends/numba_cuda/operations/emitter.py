"""Emitters of operations: they tell the memory that an operation needs, and write its launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attrs import frozen

from augury import lowering
from augury.backends.numba_cuda.operations.layout import Layout
from augury.backends.numba_cuda.slot_memory import State
from augury.lowering import Emitters, Operation

_Emitted = TypeVar("_Emitted", bound=Operation)
_Writer = TypeVar("_Writer", bound=Callable[..., None])
EMITTERS = Emitters("numba-cuda")


@frozen(eq=False)
class Scope(lowering.Scope):
    """With the places of values."""

    layout: Layout


class OperationEmitter(lowering.OperationEmitter[_Emitted]):
    """Writes the launches of one operation.

    Attributes:
        place: Which of its block's states it keeps; None: none.
        state: That state.
    """

    place: int | None = None
    state: State

    def __init__(self, operation: Any, scope: Scope) -> None:
        super().__init__(operation, scope)
        self.layout = scope.layout

    def buffers(self) -> Mapping[str, int]:
        """Bytes of memory that it works in, beside its values, by name. Operations share the memory of one name."""
        return {}


def launches(*operations: type[Operation], **attributes: Any) -> Callable[[_Writer], _Writer]:
    """Register the decorated function of an operation, its layout and a tape, which writes the launches of operations.

    `attributes` are those of an `OperationEmitter`, as of its class.
    """
    return EMITTERS.function(OperationEmitter, "layout", operations, attributes)
