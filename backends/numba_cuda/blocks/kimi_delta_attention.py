"""`KimiDeltaAttention`: o(norm(y) * sigmoid(gate)), y what a linear recurrence with decays by key yields."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve

from augury.backends.numba_cuda.blocks.recurrent import FedRow, RecurrentEmitter, Units, columns_of
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.recurrent_ends import decay_keys
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Tape
from augury.backends.numba_cuda.weights import rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.blocks import KimiDeltaAttention, SequenceState
    from augury.types import ModelOptions

__all__ = ["KimiDeltaAttentionEmitter"]


class KimiDeltaAttentionEmitter(RecurrentEmitter):
    """Keeps the last inputs of three convolutions, side by side, and a matrix for each head.

    A token's row: queries, keys and values as the convolutions leave them, then decays and betas.
    """

    known = ("decay_down", "gate_down", "floor")
    block: KimiDeltaAttention

    def __init__(self, block: KimiDeltaAttention, options: ModelOptions) -> None:
        made = (block.beta, block.decay_down or block.decay, block.gate_down or block.gate)
        self._linears = (*made, block.q, block.k, block.v)  # v last, which often has another type than all others
        *self._columns, self._n_inputs = np.cumsum([0, *map(rows_of, self._linears)]).tolist()
        self._conv = evolve(block.q_conv, n_channels=columns_of(block)[2])  # all three, side by side
        super().__init__(block, options)

    @property
    def states(self) -> Sequence[SequenceState]:
        """See `RecurrentEmitter.states`: the convolutions' inputs are one."""
        return (self._conv.state, self.block.recurrence.state)

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        widths = {"inputs": self._n_inputs, "fed": self._width, "recurred": block.o.n_in}
        widths |= {"times": block.decay.n_out, "gates": block.gate.n_out}
        return {
            **{name: 4 * MAX_TOKENS * width for name, width in widths.items()},
            **Tape.operand_buffers("normed", block.norm.size),
            **Tape.operand_buffers("low", max(block.decay.n_in, block.gate.n_in), 2 * MAX_TOKENS),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, heads, buffers = self.block, self.block.recurrence, tape.buffers
        inputs, steps = Rows(buffers["inputs"], self._n_inputs), columns_of(self.block)[2]
        normed = tape.norm(block.norm, self._linears)
        tape.multiply(normed, list(zip(self._linears, self._columns, strict=True)), inputs)
        times, gates = self._emit_ends(tape, inputs)
        self._emit_convolution(tape)
        fed = Rows(buffers["fed"], self._width)
        places, n = (fed.at, times.at, inputs.at, tape.weights.vector(block.a)), block.decay.n_out
        columns = (fed.width, times.width, inputs.width, n, heads.key_dim, heads.n_heads, steps, steps + n)
        units = Units(heads.n_heads, heads.key_dim, block.eps)
        self._add_decays(tape, decay_keys, places, columns, n, units=units, floor=[block.floor or 0.0])
        self._emit_recurrence(tape)
        mixed, y = tape.operand("mixed", block.o.n_in, [block.o]), Rows(buffers["recurred"], block.o.n_in)
        self._gate(tape, y, gates, mixed, block.out_norm, is_sigmoid=True)
        tape.leave(mixed, block.o)

    def emit_states(self, tape: Tape) -> None:
        """See `Emitter.emit_states`."""
        self._emit_convolution(tape)
        self._emit_recurrence(tape)

    def _emit_ends(self, tape: Tape, inputs: Rows) -> list[Rows]:
        """Write what decays are made of, and gates, where these are products of products."""
        block, found = self.block, [Rows(inputs.at.at(4 * column), inputs.width) for column in self._columns[1:3]]
        ends = ((block.decay, block.decay_down, "times"), (block.gate, block.gate_down, "gates"))
        lowered = [(i, linear, name) for i, (linear, down, name) in enumerate(ends) if down is not None]
        if not lowered:
            return found
        low = tape.operand("low", lowered[0][1].n_in, [linear for _, linear, _ in lowered])
        is_there = tape.size.n_tokens == 1 and not low.as_bytes and low.width == lowered[0][1].n_in  # as one row of floats
        if not is_there:
            parts = [(None, self._columns[1 + i], linear.n_in) for i, linear, _ in lowered]
            tape.norm_parts(inputs, parts, low, n_apart=len(parts))
        for j, (i, linear, name) in enumerate(lowered):
            x = evolve(low, floats=found[i].at) if is_there else low.after(j * MAX_TOKENS)
            found[i] = Rows(tape.buffers[name], linear.n_out)
            tape.multiply(x, ((linear, 0),), found[i])
        return found

    def _emit_convolution(self, tape: Tape) -> None:
        block, x = self.block, Rows(tape.buffers["inputs"].at(4 * self._columns[3]), self._n_inputs)
        taps, fed = tape.weights.taps(block.q_conv, block.k_conv, block.v_conv), Rows(tape.buffers["fed"], self._width)
        self._convolve(tape, self._conv, self._placed[0], x, fed, has_silu=True, taps=taps)

    def _emit_recurrence(self, tape: Tape) -> None:
        heads, (key, value, steps) = self.block.recurrence, columns_of(self.block)
        rows = Rows(tape.buffers["fed"], self._width)
        row = FedRow(rows, 0, key, value, steps, steps + self.block.decay.n_out)
        self._recur(tape, heads, self._placed[1], row, tape.buffers["recurred"])

    @property
    def _width(self) -> int:
        """Floats of a token's row."""
        return columns_of(self.block)[2] + self.block.decay.n_out + self.block.recurrence.n_heads
