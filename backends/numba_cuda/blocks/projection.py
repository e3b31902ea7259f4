"""`Projection`: o(norm(x))."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.tape import Tape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import Projection

__all__ = ["ProjectionEmitter"]


class ProjectionEmitter(Emitter):
    """Multiplies by one matrix."""

    block: Projection

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        return Tape.operand_buffers("normed", self.block.norm.size)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        tape.leave(tape.norm(self.block.norm, (self.block.o,)), self.block.o)
