"""`Elementwise`: activation(norm(x))."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.blocks.feed_forward import activate
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Gate, Tape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import Elementwise

__all__ = ["ElementwiseEmitter"]


class ElementwiseEmitter(Emitter):
    """Norms, activates, and leaves the rows."""

    block: Elementwise

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        size = self.block.norm.size
        return {**Tape.operand_buffers("normed", size), **Tape.operand_buffers("hidden", size)}

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, size = self.block, self.block.norm.size
        normed, hidden = (evolve(tape.operand(name, size, ()), as_floats=True) for name in ("normed", "hidden"))
        tape.norm_seen(block.norm, normed)
        activate(tape, Gate(block.activation), Rows(normed.floats, normed.width), None, hidden, size)
        tape.leave_rows(Rows(hidden.floats, hidden.width))
