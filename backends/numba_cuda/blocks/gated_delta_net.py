"""`GatedDeltaNet`: o(norm(y) * silu(gate)), y what a linear recurrence with the delta rule yields."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.recurrent import FedRow, RecurrentEmitter
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.recurrent_ends import decay, unit_heads
from augury.backends.numba_cuda.tape import Rows, Tape

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
        widths = {"inputs": block.inputs.n_out + block.gate.n_out, "ends": 2 * block.recurrence.n_heads}
        widths |= {"fed": self._width, "recurred": block.o.n_in}
        return {
            **{name: 4 * MAX_TOKENS * width for name, width in widths.items()},
            **Tape.operand_buffers("normed", block.inputs.n_in),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, heads, buffers = self.block, self.block.recurrence, tape.buffers
        n, n_inputs = heads.n_heads, block.inputs.n_out
        inputs, ends = Rows(buffers["inputs"], n_inputs + block.gate.n_out), Rows(buffers["ends"], 2 * n)
        normed = tape.norm(block.norm, (block.inputs, block.gate, block.alpha, block.beta))
        tape.multiply(normed, ((block.inputs, 0), (block.gate, n_inputs)), inputs)
        tape.multiply(normed, ((block.alpha, 0), (block.beta, n)), ends)
        fed, y = Rows(buffers["fed"], self._width), Rows(buffers["recurred"], block.o.n_in)
        self._emit_convolution(tape)
        scale = 1.0 / math.sqrt(heads.key_dim)
        sizes = (fed.width, heads.n_key_heads, heads.key_dim, block.eps, scale)
        tape.add(unit_heads, (2 * heads.n_key_heads, tape.size.n_tokens), WARP, fed.at, *sizes)
        dt, a = (tape.weights.vector(part) for part in (block.dt, block.a))
        columns = (fed.width, ends.width, n, n_inputs, n_inputs + n)
        tape.add(decay, (-(-n // THREADS), tape.size.n_tokens), THREADS, fed.at, ends.at, dt, a, *columns, 1, 1, 1)
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
        inputs = Rows(tape.buffers["inputs"], block.inputs.n_out + block.gate.n_out)
        self._convolve(tape, block.conv, self._placed[0], inputs, Rows(tape.buffers["fed"], self._width), has_silu=True)

    def _emit_recurrence(self, tape: Tape) -> None:
        heads, n_inputs = self.block.recurrence, self.block.inputs.n_out
        n_keys = heads.n_key_heads * heads.key_dim
        row = FedRow(Rows(tape.buffers["fed"], self._width), 0, n_keys, 2 * n_keys, n_inputs, n_inputs + heads.n_heads)
        self._recur(tape, heads, self._placed[1], row, tape.buffers["recurred"])

    @property
    def _width(self) -> int:
        """Floats of a token's row."""
        return self.block.inputs.n_out + 2 * self.block.recurrence.n_heads
