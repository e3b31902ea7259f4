"""`LightningAttention`: o(out_norm(y) * sigmoid(gate)), y what a linear recurrence with constant decays yields."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cuda.blocks.recurrent import FedRow, RecurrentEmitter, columns_of
from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.recurrent_ends import light
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Tape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import LightningAttention

__all__ = ["LightningAttentionEmitter"]


class LightningAttentionEmitter(RecurrentEmitter):
    """Keeps a matrix for each head. A token's row: queries, keys and values, then decays and betas."""

    known = ("norm",)
    block: LightningAttention

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        widths = {"fed": self._width, "gates": block.gate.n_out, "recurred": block.o.n_in}
        return {
            **{name: 4 * MAX_TOKENS * width for name, width in widths.items()},
            **Tape.operand_buffers("normed", block.q.n_in),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, decays = self.block, tape.buffers, self.block.decays
        fed, gates = Rows(buffers["fed"], self._width), Rows(buffers["gates"], block.gate.n_out)
        normed = tape.norm(block.norm, (block.q, block.k, block.v, block.gate))
        key, value, steps = columns_of(self.block)
        tape.multiply(normed, ((block.q, 0), (block.k, key), (block.v, value)), fed)
        tape.multiply(normed, ((block.gate, 0),), gates)
        ends = tape.weights.constant(("decays", decays), lambda: np.array([*decays, *[1.0] * len(decays)], np.float32))
        tape.add(light, (-(-fed.width // THREADS), tape.size.n_tokens), THREADS, fed.at, ends, fed.width, steps)
        self.emit_states(tape)
        mixed = tape.operand("mixed", block.o.n_in, [block.o])
        self._gate(tape, Rows(buffers["recurred"], block.o.n_in), gates, mixed, block.out_norm, is_sigmoid=True)
        tape.leave(mixed, block.o)

    def emit_states(self, tape: Tape) -> None:
        """See `Emitter.emit_states`."""
        heads, (key, value, steps) = self.block.recurrence, columns_of(self.block)
        row = FedRow(Rows(tape.buffers["fed"], self._width), 0, key, value, steps, steps + heads.n_heads)
        self._recur(tape, heads, self._placed[0], row, tape.buffers["recurred"])

    @property
    def _width(self) -> int:
        """Floats of a token's row."""
        return columns_of(self.block)[2] + 2 * self.block.recurrence.n_heads
