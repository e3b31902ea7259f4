"""Rows that are pooled of blocks of positions, see `augury.blocks.Pooling`.

What tokens keep to be pooled lies cell by cell, as float32: values, then weights. A pooled row lies by the cell of the last
token of its block, so that what branches of a tree pool lies apart, and moves with its token.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import exponential
from augury.backends.numba_cpu.kernels.cache_type import store_value
from augury.backends.numba_cpu.kernels.choice import cell_of
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.simd import (
    add,
    div,
    fma,
    get_i64,
    maximum,
    put_i64,
    splat_f32,
    sub,
    zero_f32,
)
from augury.backends.numba_cpu.kernels.step import scratch_of, share
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import (
    CELLS,
    N_SEGMENTS,
    N_TOKENS,
    POSITIONS,
    SEGMENTS,
    SLOTS,
    Record,
    StridedRows,
    segments_at,
)

f32 = np.float32


@struct
class PoolingLayer:
    """The rows to be pooled, and where pooled ones go. Addresses of missing parts are 0."""

    values: Any = nested(StridedRows)  # (n, n_values) float32
    weights: Any = nested(StridedRows)  # likewise
    n_values: int
    width: int  # of a row that is pooled
    size: int  # positions of a block
    overlaps: bool
    places: int  # (size, n_values) float32, address: added to weights
    value_steps: int  # address of the `HeadSteps` of values
    row_steps: int  # likewise, to pooled rows
    prepare_head: int  # address of the kernel
    kept: int  # address
    kept_bytes: int  # of a row
    n_kept: int  # rows of a slot
    pooled: int  # address
    pooled_bytes: int  # from one row to the next
    n_pooled: int  # rows of a slot
    first: int  # the row of cell 0


@struct
class Pool(Record):
    """Operands of `keep_to_pool`, and of kernels that pool."""

    layer: Any = pointer_to(PoolingLayer)


def scratch_bytes(n_rows: int, width: int) -> int:
    """Bytes of scratch that a thread needs: the cells of the rows that are pooled, a pooled row, what codes are made in."""
    return 8 * n_rows + 4 * width + 256


@kernel(record=Pool)
def keep_to_pool(record, state, thread, n_threads):
    """Norm values, add the row of a place to weights, and keep both."""
    table = record.layer
    size, ways, places = table.n_values, table.value_steps, table.places
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
    for t in range(first, end):
        position, cell = get_i64(get_i64(state + POSITIONS) + 8 * t), get_i64(get_i64(state + CELLS) + 8 * t)
        cell += get_i64(get_i64(state + SLOTS) + 8 * t) * table.n_kept
        x, to = (
            table.values.address + 4 * t * table.values.stride,
            table.kept + table.kept_bytes * cell,
        )
        if ways != 0:
            invoke(table.prepare_head, (x, ways, 0, position, size))
        for i in range(0, size, 16):
            store_part(to + 4 * i, load_part(x + 4 * i, size - i), size - i)
        if table.weights.address == 0:
            continue
        weights = table.weights.address + 4 * t * table.weights.stride
        for i in range(0, size, 16):
            value = load_part(weights + 4 * i, size - i)
            if places != 0:
                value = add(value, load_part(places + 4 * (position % table.size * size + i), size - i))
            store_part(to + 4 * (size + i), value, size - i)


@helper
def _pool(table, kept, cells, n, n_before, row):
    """Pool what n cells keep, the first `n_before` of which belong to the block before, into a row."""
    width, n_values, n_bytes = table.width, table.n_values, table.kept_bytes
    own = n_values - width  # where values of a row's own block begin
    for i in range(0, width, 16):
        left, top, total, value = width - i, splat_f32(f32(-3e38)), zero_f32(), zero_f32()
        if table.weights.address != 0:
            for j in range(n):
                at = kept + n_bytes * get_i64(cells + 8 * j) + 4 * (n_values + i + (0 if j < n_before else own))
                top = maximum(load_part(at, left), top)
        for j in range(n):
            at = kept + n_bytes * get_i64(cells + 8 * j) + 4 * (i + (0 if j < n_before else own))
            weight = splat_f32(f32(1))
            if table.weights.address != 0:
                weight = exponential(sub(load_part(at + 4 * n_values, left), top))
            total, value = add(total, weight), fma(load_part(at, left), weight, value)
        store_part(row + 4 * i, div(value, total), left)


@cache
def pool_kernel(kind: str) -> Any:
    """Make the kernel that pools the blocks that tokens of the pass end."""
    put = store_value(kind)

    def pool(record, state, thread, n_threads):
        table, cells = record.layer, scratch_of(state, thread)
        size, width, n_counted = table.size, table.width, 0
        for segment in range(get_i64(state + N_SEGMENTS)):
            place = segments_at(get_i64(state + SEGMENTS))[segment]
            positions, slot = get_i64(state + POSITIONS) + 8 * place.first, place.slot
            kept = table.kept + table.kept_bytes * slot * table.n_kept
            for node in range(place.n):
                position, n_before = get_i64(positions + 8 * node), 0
                n_counted += 1
                if n_counted % n_threads != thread:
                    continue
                row = cells + 8 * 2 * size
                at = slot * table.n_pooled + table.first + cell_of(place, positions, node, position)
                to = table.pooled + table.pooled_bytes * at
                if (position + 1) % size != 0:  # so that nothing of an earlier token of the cell is left
                    for i in range(0, width, 16):
                        simd.store_f32(row + 4 * i, zero_f32())
                    put(row, to, width, row + 4 * width)
                    continue
                if table.overlaps != 0 and position >= size:
                    n_before = size
                n = size + n_before
                for j in range(n):
                    put_i64(cells + 8 * j, cell_of(place, positions, node, position + 1 - n + j))
                _pool(table, kept, cells, n, n_before, row)
                if table.row_steps != 0:
                    invoke(table.prepare_head, (row, table.row_steps, 0, position + 1 - size, width))
                put(row, to, width, row + 4 * width)

    return kernel(pool, f"pool_{kind}", record=Pool)
