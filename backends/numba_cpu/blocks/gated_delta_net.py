"""`GatedDeltaNet`: o(norm(y) * silu(gate)), y what a linear recurrence with the delta rule yields."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

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
    from augury.blocks import GatedDeltaNet

__all__ = ["GatedDeltaNetEmitter"]


class GatedDeltaNetEmitter(RecurrentEmitter):
    """Keeps the last inputs of the convolution, and a matrix for each head.

    A token's row: queries, keys and values as the convolution leaves them, then decays and betas.
    """

    block: GatedDeltaNet

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (*PlacedRecurrence.kernels(self.block.recurrence), recurrent_ends.unit_heads)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        widths = {name: linear.n_out for name, linear in self._inputs().items()}
        return {name: row_bytes(width) for name, width in (widths | {"fed": self._width(), "mixed": self.block.o.n_in}).items()}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """See `Emitter.place`."""
        block, heads = self.block, self.block.recurrence
        inputs, matrices = self.place_states(arena)
        n_heads, n_keys = heads.n_heads, heads.n_key_heads * heads.key_dim
        x, fed = (buffers["inputs"], up(block.inputs.n_out, 32)), (buffers["fed"], self._width())
        self._conv = place_convolution(block.conv, inputs, self.n_aside, weights, arena, x=x, y=fed, has_silu=True)
        row = FedRow(*fed, 0, n_keys, 2 * n_keys, block.inputs.n_out, block.inputs.n_out + n_heads)
        self._recurrence = PlacedRecurrence(heads, matrices, self.n_aside, arena, row, buffers["mixed"])
        alpha, beta = ((buffers[name], up(n_heads, 32)) for name in ("alpha", "beta"))
        dt, a = (weights.vector(part.weight, n_heads) for part in (block.dt, block.a))
        self._recurrence.place_decays(n_heads, alpha, beta, dt=dt, a=a)
        gates = (buffers["gates"], up(block.gate.n_out, 32))
        self._recurrence.place_gate(gates, weights.norm(block.out_norm), heads.value_dim, is_sigmoid=block.has_sigmoid)
        self.layer = self._recurrence.layer

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, heads, buffers = self.block, self.block.recurrence, tape.buffers
        products = [(linear, buffers[name]) for name, linear in self._inputs().items()]
        tape.multiply("queries, keys, values, gates", tape.norm(block.norm), products)
        convolve(tape, self._conv)
        sizes = (2 * heads.n_key_heads, heads.n_key_heads, heads.key_dim, bits(block.eps), bits(1.0 / math.sqrt(heads.key_dim)))
        places = (buffers["fed"], self._width())
        tape.add(Work("lengths of queries and keys"), recurrent_ends.unit_heads, *places, *sizes, is_private=True)
        self._recurrence.emit(tape)
        tape.multiply("recurrence's output", Rows(buffers["mixed"], 0, block.o.n_in), ((block.o, tape.y),))
        tape.leave(None)

    def emit_states(self, tape: Tape) -> None:
        """See `RecurrentEmitter.emit_states`."""
        convolve(tape, self._conv)
        self._recurrence.emit_states(tape)

    def _inputs(self) -> Mapping[str, Any]:
        """Products with norm(x), by the name of their buffer."""
        block = self.block
        return {"inputs": block.inputs, "gates": block.gate, "alpha": block.alpha, "beta": block.beta}

    def _width(self) -> int:
        """Floats of a token's row."""
        return up(self.block.inputs.n_out + 2 * self.block.recurrence.n_heads, 16)
