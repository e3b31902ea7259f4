"""`Embedding`: x = norm(scale * W[token] + positions[p])."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.emitter import Emitter
from augury.backends.numba_cpu.kernels.head import prepare_head, prepare_heads
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.simd import fma, get_i64, mul, splat_f32
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, add_rows, scratch_of, share
from augury.backends.numba_cpu.kernels.struct import nested, struct
from augury.backends.numba_cpu.kernels.team import N_TOKENS, POSITIONS, TOKENS, Record, ThreadRows, own
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.operations.layout import INPUTS
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes
from augury.blocks import Linear

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.tape import Tape
    from augury.blocks import Embedding, LayerInputs

__all__ = ["EmbeddingEmitter"]


@struct
class Embed(Record):
    """Operands of `embed`."""

    embed: int  # address of a kernel, see `MatmulKernel.embed`
    weights: int  # address of the packed matrix
    size: int  # E
    x: Any = nested(ThreadRows)  # (n, E) float32
    is_private: bool
    scale: float
    ids_at: int  # offset into the state, of the ids' address


@kernel(record=Embed)
def embed(record: Any, state: int, thread: int, n_threads: int) -> None:
    """x[t] = scale * W[id t]."""
    size, x = record.size, own(record.x, thread)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, record.is_private)
    scale = splat_f32(np.float32(record.scale))
    for t in range(first, end):
        row = x + 4 * t * size
        row_id = get_i64(get_i64(state + record.ids_at) + 8 * t)
        invoke(record.embed, (record.weights, row_id, size, row, scratch_of(state, thread)))
        for index in range(0, size, 16):
            left = size - index
            store_part(row + 4 * index, mul(load_part(row + 4 * index, left), scale), left)


@struct
class AddRowsOfTable(Record):
    """Operands of `add_rows_of_table`."""

    e: int  # (n, ld) float32, address
    ld: int
    rows: int  # (n, size) float32 of the table, address
    size: int
    scale: float
    factor: float


@kernel(record=AddRowsOfTable)
def add_rows_of_table(record: Any, state: int, thread: int, n_threads: int) -> None:
    """E = scale * (e + factor * row)."""
    e, ld, rows, size = record.e, record.ld, record.rows, record.size
    scale, factor = splat_f32(np.float32(record.scale)), splat_f32(np.float32(record.factor))
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
    for t in range(first, end):
        for index in range(0, size, 16):
            left, place = size - index, e + 4 * (t * ld + index)
            value = fma(load_part(rows + 4 * (t * size + index), left), factor, load_part(place, left))
            store_part(place, mul(scale, value), left)


class EmbeddingEmitter(Emitter):
    """Looks up the rows of tokens, and of positions."""

    block: Embedding

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        of_positions = () if self.block.positions is None else (add_rows,)
        of_inputs = () if self.block.layer_inputs is None else (add_rows_of_table, prepare_head, prepare_heads)
        return (embed, *of_positions, *of_inputs)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        if (inputs := self.block.layer_inputs) is None:
            return {}
        return dict.fromkeys((INPUTS, "rows of layer inputs"), row_bytes(inputs.table.n_in))

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block = self.block
        if block.weight is None:
            return
        self._look_up(tape, Linear(block.weight, block.n_embd, block.n_vocab), tape.space.x, TOKENS, block.scale)
        if block.positions is not None:
            self._look_up(tape, block.positions, tape.space.normed, POSITIONS)
            tape.add_to_x(tape.space.normed)
        tape.norm_x(block.norm)
        if block.layer_inputs is not None:
            self._emit_inputs(tape, block.layer_inputs)

    def _emit_inputs(self, tape: Tape, inputs: LayerInputs) -> None:
        """Write the inputs of all layers."""
        e, size = tape.buffers[INPUTS], inputs.table.n_in
        ld, rows = up(size, PANEL_ROWS), Rows(tape.buffers["rows of layer inputs"], 0, size)
        tape.multiply("inputs of layers", tape.space.x, ((inputs.projection, e),))
        tape.norm_parts(Rows(e, 0, size), inputs.norm)
        self._look_up(tape, inputs.table, rows, TOKENS, is_private=False)
        operands = {"e": e, "ld": ld, "rows": rows.address, "size": size, "scale": inputs.scale, "factor": inputs.table_scale}
        tape.add(Work("inputs of layers"), add_rows_of_table, **operands)

    @staticmethod
    def _look_up(tape: Tape, table: Linear, to: Rows, ids: int, scale: float = 1.0, *, is_private: bool | None = None) -> None:
        """Write that rows of a matrix are looked up; every thread for itself where its rows are its own."""
        matrix, private = tape.weights.matrix(table), tape.space.is_private if is_private is None else is_private
        rows = {"weights": matrix.address, "size": table.n_in, "x": to, "is_private": private}
        kernel = tape.weights.address(matrix.kind, "embed")
        tape.add(Work("embedding"), embed, embed=kernel, **rows, scale=scale, ids_at=ids)
