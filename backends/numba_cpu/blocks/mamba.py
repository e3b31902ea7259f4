"""`Mamba2` and `Mamba`: a gated linear recurrence whose steps, keys and queries depend on the token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.recurrent import (
    FedRow,
    PlacedRecurrence,
    RecurrentEmitter,
    convolve,
    place_convolution,
)
from augury.backends.numba_cpu.kernels import recurrence, recurrent_ends
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import Mamba, Mamba2, Vector

__all__ = ["Mamba2Emitter", "MambaEmitter"]

_GROUP = 256  # values that a thread gates at once where no norm says how many


class Mamba2Emitter(RecurrentEmitter):
    """Keeps the last inputs of the convolution, and a matrix for each head.

    A token's row: decays and betas, then values, keys and queries as the convolution leaves them.
    """

    block: Mamba2

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return PlacedRecurrence.kernels(self.block.recurrence)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        widths = {"inputs": self.block.inputs.n_out, "fed": self._width(), "mixed": self.block.o.n_in}
        return {name: row_bytes(width) for name, width in widths.items()}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """See `Emitter.place`."""
        block, heads, norm = self.block, self.block.recurrence, self.block.out_norm
        inputs, matrices = self.place_states(arena)
        n_heads, n_values, n_conv = heads.n_heads, block.o.n_in, block.conv.n_channels
        stride = up(block.inputs.n_out, 32)
        gates, x, t = ((buffers["inputs"] + 4 * at, stride) for at in (0, n_values, n_values + n_conv))
        y = (buffers["fed"] + 8 * n_heads, self._width())
        self._conv = place_convolution(block.conv, inputs, self.n_aside, weights, arena, x=x, y=y, has_silu=True)
        first, n_keys = 2 * n_heads, heads.n_key_heads * heads.key_dim
        row = FedRow(buffers["fed"], self._width(), first + n_values + n_keys, first + n_values, first, 0, n_heads)
        self._recurrence = PlacedRecurrence(heads, matrices, self.n_aside, arena, row, buffers["mixed"])
        dt, a = (arena.keep(_floats(weights, part), "weights") for part in (block.dt, block.a))
        self._recurrence.place_decays(n_heads, t, dt=dt, a=a)
        skip = np.repeat(_floats(weights, block.d), heads.value_dim)
        group = _GROUP if norm is None else norm.size
        self._recurrence.place_gate(gates, weights.norm(norm), group, skip=skip, is_gated_first=True)
        self.layer = self._recurrence.layer

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers = self.block, tape.buffers
        tape.norm(block.norm)
        tape.multiply("recurrence's inputs", tape.space.normed, ((block.inputs, buffers["inputs"]),))
        convolve(tape, self._conv)
        self._recurrence.emit(tape)
        tape.multiply("recurrence's output", Rows(buffers["mixed"], 0, block.o.n_in), ((block.o, tape.y),))
        tape.leave(None)

    def emit_states(self, tape: Tape) -> None:
        """See `RecurrentEmitter.emit_states`."""
        convolve(tape, self._conv)
        self._recurrence.emit_states(tape)

    def _width(self) -> int:
        """Floats of a token's row."""
        return up(self.block.conv.n_channels + 2 * self.block.recurrence.n_heads, 16)


class MambaEmitter(RecurrentEmitter):
    """Keeps the last inputs of the convolution, and a matrix for each head.

    A token's row: decays, where they are by head, betas, keys and values, then queries.
    """

    block: Mamba

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (*PlacedRecurrence.kernels(self.block.recurrence), recurrent_ends.place_rows)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        widths = {"inputs": block.value.n_out, "gates": block.gate.n_out, "convolved": block.o.n_in, "fed": self._row(0).stride}
        widths |= {"t": block.t.n_out, "keys": block.key.n_out, "queries": block.query.n_out, "times": block.dt.n_in}
        return {name: row_bytes(width) for name, width in (widths | {"steps": block.dt.n_out, "mixed": block.o.n_in}).items()}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """See `Emitter.place`."""
        block, heads = self.block, self.block.recurrence
        inputs, matrices = self.place_states(arena)
        x, y = (buffers["inputs"], up(block.value.n_out, 32)), (buffers["convolved"], block.o.n_in)
        self._conv = place_convolution(block.conv, inputs, self.n_aside, weights, arena, x=x, y=y, has_silu=True)
        a = _floats(weights, block.a)
        table = arena.keep(_by_block(a.reshape(block.o.n_in, -1)), "weights") if heads.is_by_channel else 0
        row = self._row(buffers["fed"])
        self._recurrence = PlacedRecurrence(heads, matrices, self.n_aside, arena, row, buffers["mixed"], table)
        steps = (buffers["steps"], up(block.dt.n_out, 32))
        self._recurrence.place_decays(block.dt.n_out, steps, a=0 if heads.is_by_channel else arena.keep(a, "weights"))
        skip = np.repeat(_floats(weights, block.d), block.o.n_in // block.d.size)
        self._recurrence.place_gate((buffers["gates"], up(block.gate.n_out, 32)), 0, _GROUP, skip=skip)
        self.layer = self._recurrence.layer

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, row = self.block, tape.buffers, self._recurrence.row
        tape.norm(block.norm)
        products = ((block.value, buffers["inputs"]), (block.gate, buffers["gates"]))
        tape.multiply("recurrence's inputs", tape.space.normed, products)
        convolve(tape, self._conv)
        mixed = ((block.t, buffers["t"]), (block.key, buffers["keys"]), (block.query, buffers["queries"]))
        tape.multiply("steps, keys, queries", Rows(buffers["convolved"], 0, block.o.n_in), mixed)
        times, norms = (buffers["times"], block.dt.n_in), (block.t_norm, block.key_norm, block.query_norm)
        places = (times, *((row.address + 4 * at, row.stride) for at in (row.key, row.query)))
        for (linear, x), to, norm in zip(mixed, places, norms, strict=True):
            operands = (x, up(linear.n_out, 32), *to, linear.n_out, tape.weights.norm(norm))
            tape.add(Work("steps, keys, queries"), recurrent_ends.place_rows, *operands, is_private=True)
        operands = (buffers["convolved"], block.o.n_in, row.address + 4 * row.value, row.stride, block.o.n_in, 0)
        tape.add(Work("values"), recurrent_ends.place_rows, *operands)
        tape.multiply("steps", Rows(times[0], 0, times[1]), ((block.dt, buffers["steps"]),))
        self._recurrence.emit(tape)
        tape.multiply("recurrence's output", Rows(buffers["mixed"], 0, block.o.n_in), ((block.o, tape.y),))
        tape.leave(block.post_norm)

    def emit_states(self, tape: Tape) -> None:
        """See `RecurrentEmitter.emit_states`."""
        convolve(tape, self._conv)
        self._recurrence.emit_states(tape)

    def _row(self, address: int) -> FedRow:
        """Where a token's row has what; its decays are at its beginning, where there are any."""
        block = self.block
        beta = 0 if block.recurrence.is_by_channel else block.dt.n_out
        key = beta + block.dt.n_out
        value = key + block.key.n_out
        query = value + block.o.n_in
        return FedRow(address, up(query + block.query.n_out, 16), query, key, value, 0, beta)


def _floats(weights: Weights, part: Vector) -> np.ndarray:
    """The numbers of a small tensor, (n,) float32."""
    return np.array(weights.values(part.weight, part.shapes[part.weight]), np.float32).reshape(-1)


def _by_block(a: np.ndarray) -> np.ndarray:
    """What makes decays, (V, K), in the order of a recurrence's matrix: (blocks, K, columns)."""
    width = recurrence.BLOCK_COLUMNS
    padded = np.zeros((up(len(a), width), a.shape[1]), np.float32)
    padded[: len(a)] = a
    return np.ascontiguousarray(padded.reshape(-1, width, a.shape[1]).transpose(0, 2, 1))
