"""`LightningAttention`: o(out_norm(y) * sigmoid(gate)), y what a linear recurrence with constant decays yields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.recurrent import FedRow, PlacedRecurrence, RecurrentEmitter
from augury.backends.numba_cpu.kernels import recurrent_ends
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import LightningAttention

__all__ = ["LightningAttentionEmitter"]


class LightningAttentionEmitter(RecurrentEmitter):
    """Keeps a matrix for each head. A token's row: queries, keys and values, then decays and betas."""

    block: LightningAttention

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (*PlacedRecurrence.kernels(self.block.recurrence), recurrent_ends.place_rows)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        widths = {"queries": block.q.n_out, "keys": block.k.n_out, "inputs": block.v.n_out, "gates": block.gate.n_out}
        widths |= {"fed": self._row(0).stride, "mixed": block.o.n_in}
        return {name: row_bytes(width) for name, width in widths.items()}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """See `Emitter.place`."""
        block, heads = self.block, self.block.recurrence
        (matrices,) = self.place_states(arena)
        row = self._row(buffers["fed"])
        self._recurrence = PlacedRecurrence(heads, matrices, self.n_aside, arena, row, buffers["mixed"])
        self._steps = arena.keep(np.array([*block.decays, *[1.0] * heads.n_heads], np.float32), "weights")
        gates = (buffers["gates"], up(block.gate.n_out, 32))
        self._recurrence.place_gate(gates, weights.norm(block.out_norm), block.out_norm.size, is_sigmoid=True)
        self.layer = self._recurrence.layer

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, row = self.block, tape.buffers, self._recurrence.row
        x = tape.norm(block.norm)
        fed = (
            (block.q, buffers["queries"], row.query),
            (block.k, buffers["keys"], row.key),
            (block.v, buffers["inputs"], row.value),
        )
        products = [*((linear, to) for linear, to, _ in fed), (block.gate, buffers["gates"])]
        tape.multiply("queries, keys, values, gates", x, products)
        for linear, made, at in fed:
            operands = (made, up(linear.n_out, 32), row.address + 4 * at, row.stride, linear.n_out, 0, 1)
            tape.add(Work("queries, keys, values"), recurrent_ends.place_rows, *operands, is_private=True)
        operands = (self._steps, 0, row.address + 4 * row.decay, row.stride, 2 * block.recurrence.n_heads, 0, 0)
        tape.add(Work("decays"), recurrent_ends.place_rows, *operands)
        self._recurrence.emit(tape)
        tape.multiply("recurrence's output", Rows(buffers["mixed"], 0, block.o.n_in), ((block.o, tape.y),))
        tape.leave(None)

    def emit_states(self, tape: Tape) -> None:
        """See `RecurrentEmitter.emit_states`."""
        self._recurrence.emit_states(tape)

    def _row(self, address: int) -> FedRow:
        """Where a token's row has what."""
        block, n_heads = self.block, self.block.recurrence.n_heads
        key = block.q.n_out
        value = key + block.k.n_out
        decay = value + block.v.n_out
        return FedRow(address, up(decay + 2 * n_heads, 16), 0, key, value, decay, decay + n_heads)
