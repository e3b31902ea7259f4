"""`ShortConvolution`: o(c * conv(b * v)) of b, c and v of norm(x)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.blocks.recurrent import RecurrentEmitter, convolve, place_convolution
from augury.backends.numba_cpu.kernels import convolution
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.tape import Rows, row_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import ShortConvolution

__all__ = ["ShortConvolutionEmitter"]


class ShortConvolutionEmitter(RecurrentEmitter):
    """Keeps the last inputs of the convolution."""

    block: ShortConvolution

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (convolution.convolve,)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        return {"inputs": row_bytes(self.block.inputs.n_out), "mixed": row_bytes(self.block.o.n_in)}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """See `Emitter.place`."""
        conv = self.block.conv
        (state,) = self.place_states(arena)
        b, c, v = (buffers["inputs"] + 4 * conv.n_channels * i for i in range(3))
        x, y = (v, up(self.block.inputs.n_out, 32)), (buffers["mixed"], conv.n_channels)
        self.layer = place_convolution(conv, state, self.n_aside, weights, arena, x=x, y=y, gates=(b, c))

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers = self.block, tape.buffers
        tape.norm(block.norm)
        tape.multiply("convolution's inputs", tape.space.normed, ((block.inputs, buffers["inputs"]),))
        self.emit_states(tape)
        tape.multiply("convolution's output", Rows(buffers["mixed"], 0, block.o.n_in), ((block.o, tape.y),))
        tape.leave(None)

    def emit_states(self, tape: Tape) -> None:
        """See `RecurrentEmitter.emit_states`."""
        convolve(tape, self.layer)
