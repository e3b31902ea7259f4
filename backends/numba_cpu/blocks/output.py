"""`Output`: logits = W norm(x), of the rows that are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cpu.blocks.emitter import Emitter

if TYPE_CHECKING:
    from augury.backends.numba_cpu.tape import Tape
    from augury.blocks import Output

__all__ = ["OutputEmitter"]


class OutputEmitter(Emitter):
    """Computes logits; where to is written into the tape before every pass."""

    block: Output

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        tape.norm(self.block.norm, is_output=True)
        tape.logits = tape.multiply("output", tape.space.normed, ((self.block.weight, 0),), is_output=True)[0]
