"""`Projection`: o(norm(x))."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cpu.blocks.emitter import Emitter

if TYPE_CHECKING:
    from augury.backends.numba_cpu.tape import Tape
    from augury.blocks import Projection

__all__ = ["ProjectionEmitter"]


class ProjectionEmitter(Emitter):
    """Multiplies by one matrix."""

    block: Projection

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        tape.multiply("projection", tape.norm(self.block.norm, waits=True), ((self.block.o, tape.y),))
        tape.leave(None)
