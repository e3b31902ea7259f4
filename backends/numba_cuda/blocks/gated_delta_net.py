"""`GatedDeltaNet`: o(norm(y) * silu(gate)), y what a linear recurrence with the delta rule yields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.recurrent import FedRow, RecurrentEmitter, Units
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.recurrent_ends import decay
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Tape
from augury.backends.numba_cuda.weights import rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import GatedDeltaNet

__all__ = ["GatedDeltaNetEmitter"]


class GatedDeltaNetEmitter(RecurrentEmitter):
    """Keeps the last inputs of the convolution, and a matrix for each head.

    A token's row: queries, keys and values as the convolution leaves them, then decays and betas.
    """

    known = ("norm", "has_sigmoid")
    block: GatedDeltaNet

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        widths = {"inputs": self._n_inputs, "fed": self._width, "recurred": block.o.n_in}
        return {
            **{name: 4 * MAX_TOKENS * width for name, width in widths.items()},
            **Tape.operand_buffers("normed", block.inputs.n_in),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, heads, buffers = self.block, self.block.recurrence, tape.buffers
        n, n_inputs = heads.n_heads, block.inputs.n_out
        inputs, ends = Rows(buffers["inputs"], self._n_inputs), buffers["inputs"].at(4 * (n_inputs + block.gate.n_out))
        normed = tape.norm(block.norm, (block.inputs, block.gate, block.alpha, block.beta))
        ends_at = n_inputs + block.gate.n_out
        products = [
            (block.inputs, 0),
            (block.gate, n_inputs),
            (block.alpha, ends_at),
            (block.beta, ends_at + rows_of(block.alpha)),
        ]
        tape.multiply(normed, products, inputs)
        fed, y = Rows(buffers["fed"], self._width), Rows(buffers["recurred"], block.o.n_in)
        self._emit_convolution(tape)
        dt, a = (tape.weights.vector(part) for part in (block.dt, block.a))
        columns = (fed.width, inputs.width, n, n_inputs, n_inputs + n, 1, rows_of(block.alpha))
        units = Units(heads.n_key_heads, heads.key_dim, block.eps)
        self._add_decays(tape, decay, (fed.at, ends, dt, a), columns, n, units=units)
        self._emit_recurrence(tape)
        mixed, gates = tape.operand("mixed", block.o.n_in, [block.o]), Rows(inputs.at.at(4 * n_inputs), inputs.width)
        self._gate(tape, y, gates, mixed, block.out_norm, is_sigmoid=block.has_sigmoid)
        tape.leave(mixed, block.o)

    def emit_states(self, tape: Tape) -> None:
        """See `Emitter.emit_states`."""
        self._emit_convolution(tape)
        self._emit_recurrence(tape)

    def _emit_convolution(self, tape: Tape) -> None:
        block = self.block
        inputs = Rows(tape.buffers["inputs"], self._n_inputs)
        self._convolve(tape, block.conv, self._placed[0], inputs, Rows(tape.buffers["fed"], self._width), has_silu=True)

    def _emit_recurrence(self, tape: Tape) -> None:
        heads, n_inputs = self.block.recurrence, self.block.inputs.n_out
        n_keys = heads.n_key_heads * heads.key_dim
        row = FedRow(Rows(tape.buffers["fed"], self._width), 0, n_keys, 2 * n_keys, n_inputs, n_inputs + heads.n_heads)
        self._recur(tape, heads, self._placed[1], row, tape.buffers["recurred"])

    @property
    def _n_inputs(self) -> int:
        """Floats of a token's row of products."""
        return self.block.inputs.n_out + self.block.gate.n_out + rows_of(self.block.alpha) + self.block.beta.n_out

    @property
    def _width(self) -> int:
        """Floats of a token's row."""
        return self.block.inputs.n_out + 2 * self.block.recurrence.n_heads
