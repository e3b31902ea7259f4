"""`FeedForward`: down(activation(gate(n)) * up(n)) of n = norm(x), or down(activation(up(n)))."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.gate import GATE
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.tape import WARPS, Rows, Tape, units_of, warps_of
from augury.blocks import Activation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import FeedForward

__all__ = ["ACTIVATIONS", "FeedForwardEmitter"]

ACTIVATIONS = (Activation.SILU, Activation.GELU, Activation.RELU, Activation.RELU_SQUARED)


class FeedForwardEmitter(Emitter):
    """Multiplies by gate and up at once, activates and quantises at once, and adds what `down` gives."""

    block: FeedForward

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        assert self.block.norm is not None
        return {
            "gate and up": 4 * MAX_TOKENS * self._width,
            **Tape.operand_buffers("normed", self.block.norm.size),
            **Tape.operand_buffers("hidden", self.block.down.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, size = self.block, self.block.down.n_in
        assert block.norm is not None
        linears = [block.up] if block.gate is None else [block.gate, block.up]
        rows = Rows(tape.buffers["gate and up"], self._width)
        normed = tape.norm(block.norm, linears)
        tape.multiply(normed, [(linear, i * size) for i, linear in enumerate(linears)], rows)
        hidden = tape.operand("hidden", size, (block.down,))
        places = (rows.at, hidden.floats, hidden.quantised, hidden.factors, hidden.sums)
        sizes = (rows.width, 0 if block.gate is None else size, size, hidden.width)
        flags = (int(hidden.as_floats), int(hidden.as_bytes))
        grid = (warps_of(units_of(size)), tape.size.n_tokens)
        tape.add(GATE[block.activation.value], grid, WARP * WARPS, *places, *sizes, *flags)
        tape.multiply(hidden, ((block.down, 0),), tape.x, adds=True)

    @property
    def _width(self) -> int:
        return self.block.down.n_in * (1 if self.block.gate is None else 2)
