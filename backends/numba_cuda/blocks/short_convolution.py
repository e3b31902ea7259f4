"""`ShortConvolution`: o(c * conv(b * v)) of b, c and v of norm(x)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.recurrent import RecurrentEmitter
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Tape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import ShortConvolution

__all__ = ["ShortConvolutionEmitter"]


class ShortConvolutionEmitter(RecurrentEmitter):
    """Keeps the last inputs of the convolution."""

    block: ShortConvolution

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        return {
            "inputs": 4 * MAX_TOKENS * block.inputs.n_out,
            "fed": 4 * MAX_TOKENS * block.o.n_in,
            **Tape.operand_buffers("normed", block.norm.size),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block = self.block
        inputs = Rows(tape.buffers["inputs"], block.inputs.n_out)
        tape.multiply(tape.norm(block.norm, [block.inputs]), [(block.inputs, 0)], inputs)
        self.emit_states(tape)
        mixed = tape.operand("mixed", block.o.n_in, [block.o])
        tape.put(Rows(tape.buffers["fed"], block.o.n_in), block.o.n_in, mixed)
        tape.leave(mixed, block.o)

    def emit_states(self, tape: Tape) -> None:
        """See `Emitter.emit_states`."""
        block, (state,) = self.block, self._placed
        b, c, v = (tape.buffers["inputs"].at(4 * i * block.conv.n_channels) for i in range(3))
        x, y = Rows(v, block.inputs.n_out), Rows(tape.buffers["fed"], block.o.n_in)
        self._convolve(tape, block.conv, state, x, y, gates=(b, c))
