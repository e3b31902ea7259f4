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

    from augury.backends.numba_cuda.tape import Operand
    from augury.blocks import FeedForward, Linear

__all__ = ["ACTIVATIONS", "FeedForwardEmitter"]

ACTIVATIONS = tuple(activation for activation in Activation if activation.value in GATE)


class FeedForwardEmitter(Emitter):
    """Multiplies by gate and up at once, activates and quantises at once, and adds what `down` gives."""

    block: FeedForward

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        return {
            "gate and up": 4 * MAX_TOKENS * self._width,
            **Tape.operand_buffers("normed", self.block.up.n_in),
            **Tape.operand_buffers("hidden", self.block.down.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        assert self.block.norm is not None
        self.emit_products(tape, tape.norm(self.block.norm, self.inputs), tape.x, adds=True)

    @property
    def inputs(self) -> list[Linear]:
        """What is multiplied with norm(x)."""
        return [self.block.up] if self.block.gate is None else [self.block.gate, self.block.up]

    def emit_products(self, tape: Tape, normed: Operand, to: Rows, *, adds: bool) -> None:
        """Write all but the norm before it."""
        block, size = self.block, self.block.down.n_in
        rows = Rows(tape.buffers["gate and up"], self._width)
        tape.multiply(normed, [(linear, i * size) for i, linear in enumerate(self.inputs)], rows)
        hidden = tape.operand("hidden", size, (block.down,))
        places = (rows.at, hidden.floats, hidden.quantised, hidden.factors, hidden.sums)
        sizes = (rows.width, 0 if block.gate is None else size, size, hidden.width, 1)
        flags = (int(hidden.as_floats), int(hidden.as_bytes), 0, 0.0)
        grid = (warps_of(units_of(size)), tape.size.n_tokens)
        tape.add(GATE[block.activation.value], grid, WARP * WARPS, *places, *sizes, *flags)
        tape.multiply(hidden, ((block.down, 0),), to, adds=adds)

    @property
    def _width(self) -> int:
        return self.block.down.n_in * (1 if self.block.gate is None else 2)
