"""`KimiDeltaAttention`: o(norm(y) * sigmoid(gate)), y what a linear recurrence with decays by key yields."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.recurrent import (
    FedRow,
    PlacedRecurrence,
    RecurrentEmitter,
    convolve,
    place_convolution,
)
from augury.backends.numba_cpu.kernels import recurrent_ends
from augury.backends.numba_cpu.memory import bits, up
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import KimiDeltaAttention, Linear

__all__ = ["KimiDeltaAttentionEmitter"]


class KimiDeltaAttentionEmitter(RecurrentEmitter):
    """Keeps the last inputs of three convolutions, and a matrix for each head.

    A token's row: queries, keys and values as the convolutions leave them, then decays, keys times decays, and betas.
    """

    block: KimiDeltaAttention

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (*PlacedRecurrence.kernels(self.block.recurrence), recurrent_ends.unit_heads, recurrent_ends.place_rows)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        widths = {name: linear.n_out for name, linear in (self._inputs() | self._made()).items()}
        widths |= {"fed": self._row(0).stride, "mixed": self.block.o.n_in}
        widths |= {f"{name} placed": linear.n_in for name, linear in self._made().items()}
        return {name: row_bytes(width) for name, width in widths.items()}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """See `Emitter.place`."""
        block, heads = self.block, self.block.recurrence
        *inputs, matrices = self.place_states(arena)
        row = self._row(buffers["fed"])
        convolutions = (
            ("queries", block.q_conv, row.query),
            ("keys", block.k_conv, row.key),
            ("values", block.v_conv, row.value),
        )
        self._convolutions = [
            place_convolution(
                conv,
                state,
                self.n_aside,
                weights,
                arena,
                x=(buffers[name], up(conv.n_channels, 32)),
                y=(row.address + 4 * at, row.stride),
                has_silu=True,
            )
            for (name, conv, at), state in zip(convolutions, inputs, strict=True)
        ]
        self._recurrence = PlacedRecurrence(heads, matrices, self.n_aside, arena, row, buffers["mixed"])
        a = np.array(weights.values(block.a.weight, block.a.shapes[block.a.weight]), np.float32).reshape(-1)
        self._a = arena.keep(np.repeat(a, heads.key_dim), "weights")
        gates = (buffers["gates"], up(block.gate.n_out, 32))
        self._recurrence.place_gate(gates, weights.norm(block.out_norm), heads.value_dim, is_sigmoid=True)
        self.layer = self._recurrence.layer

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, heads, buffers, row = self.block, self.block.recurrence, tape.buffers, self._recurrence.row
        x = tape.norm(block.norm)
        products = [(linear, buffers[name]) for name, linear in self._inputs().items()]
        tape.multiply("queries, keys, values", x, products)
        for name, linear in self._made().items():
            made = (buffers[f"{name} down"], up(linear.n_in, 32), buffers[f"{name} placed"], linear.n_in, linear.n_in, 0)
            tape.add(Work("decays, gates"), recurrent_ends.place_rows, *made)
            tape.multiply(name, Rows(buffers[f"{name} placed"], 0, linear.n_in), ((linear, buffers[name]),))
        for conv in self._convolutions:
            convolve(tape, conv)
        sizes = (2 * heads.n_heads, heads.n_heads, heads.key_dim, bits(block.eps), bits(1.0 / math.sqrt(heads.key_dim)))
        tape.add(Work("lengths of queries and keys"), recurrent_ends.unit_heads, row.address, row.stride, *sizes)
        size = block.decay.n_out
        times, betas = (buffers["decays"], up(size, 32)), (buffers["betas"], up(heads.n_heads, 32))
        places = (4 * at for at in (row.key, row.decay, row.decayed, row.beta))
        operands = (*times, *betas, self._a, size, heads.n_heads, *places, bits(block.floor or 0.0))
        tape.add(Work("decays"), recurrent_ends.decay_keys, row.address, row.stride, *operands)
        self._recurrence.emit(tape)
        tape.multiply("recurrence's output", Rows(buffers["mixed"], 0, block.o.n_in), ((block.o, tape.y),))
        tape.leave(None)

    def emit_states(self, tape: Tape) -> None:
        """See `RecurrentEmitter.emit_states`."""
        for conv in self._convolutions:
            convolve(tape, conv)
        self._recurrence.emit_states(tape)

    def _inputs(self) -> dict[str, Linear]:
        """Products with norm(x), by the name of their buffer."""
        block = self.block
        inputs = {"queries": block.q, "keys": block.k, "values": block.v, "betas": block.beta}
        for name, linear, down in (("decays", block.decay, block.decay_down), ("gates", block.gate, block.gate_down)):
            inputs |= {name: linear} if down is None else {f"{name} down": down}
        return inputs

    def _made(self) -> dict[str, Linear]:
        """Products with what other products leave."""
        pairs = (("decays", self.block.decay, self.block.decay_down), ("gates", self.block.gate, self.block.gate_down))
        return {name: linear for name, linear, down in pairs if down is not None}

    def _row(self, address: int) -> FedRow:
        """Where a token's row has what."""
        block = self.block
        n_keys, n_values = block.q.n_out, block.v.n_out
        decay = 2 * n_keys + n_values
        beta = decay + 2 * n_keys
        width = up(beta + block.recurrence.n_heads, 16)
        return FedRow(address, width, 0, n_keys, 2 * n_keys, decay, beta, decayed=decay + n_keys)
