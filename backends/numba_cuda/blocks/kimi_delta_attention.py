"""`KimiDeltaAttention`: o(norm(y) * sigmoid(gate)), y what a linear recurrence with decays by key yields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.recurrent import FedRow, RecurrentEmitter, Units, columns_of
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.recurrent_ends import decay_keys
from augury.backends.numba_cuda.tape import Rows, Tape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.backends.numba_cuda.tape import Operand
    from augury.blocks import KimiDeltaAttention, Linear

__all__ = ["KimiDeltaAttentionEmitter"]


class KimiDeltaAttentionEmitter(RecurrentEmitter):
    """Keeps the last inputs of three convolutions, and a matrix for each head.

    A token's row: queries, keys and values as the convolutions leave them, then decays and betas.
    """

    known = ("decay_down", "gate_down", "floor")
    block: KimiDeltaAttention

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        widths = {"inputs": columns_of(self.block)[2], "fed": self._width, "recurred": block.o.n_in, "ends": block.beta.n_out}
        widths |= {"times": block.decay.n_out, "gates": block.gate.n_out}
        lowered = [down.n_out for down in (block.decay_down, block.gate_down) if down is not None]
        widths |= {"lowered": max(lowered, default=0)}
        return {
            **{name: 4 * MAX_TOKENS * width for name, width in widths.items()},
            **Tape.operand_buffers("normed", block.norm.size),
            **Tape.operand_buffers("low", max(lowered, default=0)),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, heads, buffers = self.block, self.block.recurrence, tape.buffers
        key, value, steps = columns_of(self.block)
        made = [block.decay_down or block.decay, block.gate_down or block.gate]
        normed = tape.norm(block.norm, (block.q, block.k, block.v, block.beta, *made))
        tape.multiply(normed, ((block.q, 0), (block.k, key), (block.v, value)), Rows(buffers["inputs"], steps))
        betas, times, gates = (
            Rows(buffers[name], n)
            for name, n in (("ends", heads.n_heads), ("times", block.decay.n_out), ("gates", block.gate.n_out))
        )
        tape.multiply(normed, ((block.beta, 0),), betas)
        self._multiply_low(tape, normed, block.decay, block.decay_down, times)
        self._multiply_low(tape, normed, block.gate, block.gate_down, gates)
        self._emit_convolutions(tape)
        fed = Rows(buffers["fed"], self._width)
        places, n = (fed.at, times.at, betas.at, tape.weights.vector(block.a)), times.width
        columns = (fed.width, n, betas.width, n, heads.key_dim, heads.n_heads, steps, steps + n)
        units = Units(heads.n_heads, heads.key_dim, block.eps)
        self._add_decays(tape, decay_keys, places, columns, n, units=units, floor=[block.floor or 0.0])
        self._emit_recurrence(tape)
        mixed, y = tape.operand("mixed", block.o.n_in, [block.o]), Rows(buffers["recurred"], block.o.n_in)
        self._gate(tape, y, gates, mixed, block.out_norm, is_sigmoid=True)
        tape.leave(mixed, block.o)

    def emit_states(self, tape: Tape) -> None:
        """See `Emitter.emit_states`."""
        self._emit_convolutions(tape)
        self._emit_recurrence(tape)

    def _multiply_low(self, tape: Tape, normed: Operand, linear: Linear, down: Linear | None, to: Rows) -> None:
        """Write a product with norm(x), or with what another one makes of it."""
        if down is not None:
            lowered = Rows(tape.buffers["lowered"], down.n_out)
            tape.multiply(normed, ((down, 0),), lowered)
            normed = tape.operand("low", down.n_out, [linear])
            tape.put(lowered, down.n_out, normed)
        tape.multiply(normed, ((linear, 0),), to)

    def _emit_convolutions(self, tape: Tape) -> None:
        block, columns = self.block, (0, *columns_of(self.block)[:2])
        inputs, fed = tape.buffers["inputs"], tape.buffers["fed"]
        for conv, column, state in zip((block.q_conv, block.k_conv, block.v_conv), columns, self._placed, strict=False):
            x, y = Rows(inputs.at(4 * column), columns_of(self.block)[2]), Rows(fed.at(4 * column), self._width)
            self._convolve(tape, conv, state, x, y, has_silu=True)

    def _emit_recurrence(self, tape: Tape) -> None:
        heads, (key, value, steps) = self.block.recurrence, columns_of(self.block)
        rows = Rows(tape.buffers["fed"], self._width)
        row = FedRow(rows, 0, key, value, steps, steps + self.block.decay.n_out)
        self._recur(tape, heads, self._placed[3], row, tape.buffers["recurred"])

    @property
    def _width(self) -> int:
        """Floats of a token's row."""
        return columns_of(self.block)[2] + self.block.decay.n_out + self.block.recurrence.n_heads
