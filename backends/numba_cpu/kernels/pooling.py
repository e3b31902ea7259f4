"""Rows that are pooled of blocks of positions, and the choice of blocks by pooled keys; see `augury.blocks.Pooling`.

What tokens keep to be pooled lies cell by cell, as float32: values, then weights. A pooled row lies by the cell of the last
token of its block, so that what branches of a tree pool lies apart, and moves with its token.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import exponential
from augury.backends.numba_cpu.kernels.attention_layer import Lists
from augury.backends.numba_cpu.kernels.cache_type import store_value
from augury.backends.numba_cpu.kernels.choice import N_COUNTS, least_chosen, order_of
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.simd import (
    add,
    div,
    fma,
    get_f32,
    get_i64,
    maximum,
    put_f32,
    put_i64,
    splat_f32,
    sub,
    sum_lanes,
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


@struct
class BlockChoice:
    """What scores blocks by pooled keys, and chooses."""

    queries: Any = nested(StridedRows)  # (n, n_heads * width) float32
    weights: Any = nested(StridedRows)  # (n, n_heads) float32, address 0: `factor` stands for them
    n_heads: int
    width: int
    factor: float
    keys: int  # address
    key_bytes: int  # from one to the next
    n_rows: int  # of a slot
    size: int  # positions of a block
    scores: int  # (n, ld_scores) float32, address
    ld_scores: int
    n_chosen: int  # 0: all
    n_lists: int  # of a token
    window: int  # 0: tokens attend to positions of chosen blocks and of the last; else to so many, and to pooled rows
    first_listed: int  # the pooled row of cell 0, as lists have it
    lists: Any = nested(Lists)


@struct
class ChooseBlocks(Record):
    """Operands of `score_blocks` and `list_cells`."""

    choice: Any = pointer_to(BlockChoice)


def scratch_bytes(n_rows: int, width: int) -> int:
    """Bytes of scratch that a thread needs: the cells of the rows that are pooled, a pooled row, what codes are made in."""
    return max(8 * n_rows + 4 * width, 8 * N_COUNTS) + 256


@helper
def _cell_of(place, positions, node, position):
    """The cell of a position that a token of the run at `place` sees."""
    parents, mark = place.parents, get_i64(positions)
    if parents == 0 or position < mark:
        return position
    at = get_i64(positions + 8 * node)
    while at > position:
        node = get_i64(parents + 8 * node)
        at -= 1
    return mark + node


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
                at = slot * table.n_pooled + table.first + _cell_of(place, positions, node, position)
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
                    put_i64(cells + 8 * j, _cell_of(place, positions, node, position + 1 - n + j))
                _pool(table, kept, cells, n, n_before, row)
                if table.row_steps != 0:
                    invoke(table.prepare_head, (row, table.row_steps, 0, position + 1 - size, width))
                put(row, to, width, row + 4 * width)

    return kernel(pool, f"pool_{kind}", record=Pool)


@kernel(record=ChooseBlocks)
def score_blocks(record, state, thread, n_threads):
    """Score the blocks that each token sees, where there are more than are chosen."""
    table, n_heads = record.choice, record.choice.n_heads
    size, width, shares, item = table.size, table.width, table.weights.address, 0
    for segment in range(get_i64(state + N_SEGMENTS)):
        place = segments_at(get_i64(state + SEGMENTS))[segment]
        start, positions = place.first, get_i64(state + POSITIONS) + 8 * place.first
        keys = table.keys + table.key_bytes * place.slot * table.n_rows
        for node in range(place.n):
            t, position = start + node, get_i64(positions + 8 * node)
            n_blocks = (position + 1) // size
            if n_blocks <= table.n_chosen:
                continue
            q, to = (
                table.queries.address + 4 * t * table.queries.stride,
                table.scores + 4 * t * table.ld_scores,
            )
            for block in range(n_blocks):
                item += 1
                if item % n_threads != thread:
                    continue
                cell, score = _cell_of(place, positions, node, (block + 1) * size - 1), f32(0)
                key = keys + table.key_bytes * cell
                for head in range(n_heads):
                    sums, factor = zero_f32(), f32(table.factor)
                    for i in range(0, width, 16):
                        sums = fma(simd.load_f32(key + 4 * i), simd.load_f32(q + 4 * (head * width + i)), sums)
                    if shares != 0:
                        factor = get_f32(shares + 4 * (t * table.weights.stride + head))
                    score += factor * max(sum_lanes(sums), f32(0))
                put_f32(to + 4 * block, score)


@helper
def _list(table, scratch, place, positions, node, scores, cells):
    """The cells that a token attends to; returns how many."""
    position, size, window = get_i64(positions + 8 * node), table.size, table.window
    n_blocks, n_chosen, least, left, n = (position + 1) // size, table.n_chosen, 0, 0, 0
    is_all = n_chosen == 0 or n_blocks <= n_chosen
    if not is_all:
        least, left = least_chosen(scores, n_blocks, n_chosen, scratch)
    if window != 0:
        for p in range(max(position + 1 - window, 0), position + 1):
            put_i64(cells + 8 * n, _cell_of(place, positions, node, p))
            n += 1
    for block in range(n_blocks):
        if not is_all:
            rank = order_of(scores + 4 * block)
            if rank < least or (rank == least and left == 0):
                continue
            if rank == least:
                left -= 1
        end = (block + 1) * size
        if window != 0:
            put_i64(cells + 8 * n, table.first_listed + _cell_of(place, positions, node, end - 1))
            n += 1
            continue
        for p in range(end - size, end):
            put_i64(cells + 8 * n, _cell_of(place, positions, node, p))
            n += 1
    if window == 0:
        for p in range(n_blocks * size, position + 1):
            put_i64(cells + 8 * n, _cell_of(place, positions, node, p))
            n += 1
    return n


@kernel(record=ChooseBlocks)
def list_cells(record, state, thread, n_threads):
    """List the cells that each token attends to."""
    table, scratch, n_all = record.choice, scratch_of(state, thread), get_i64(state + N_TOKENS)
    n_lists = table.n_lists
    for segment in range(get_i64(state + N_SEGMENTS)):
        place = segments_at(get_i64(state + SEGMENTS))[segment]
        start, positions = place.first, get_i64(state + POSITIONS) + 8 * place.first
        for node in range(place.n):
            t, n = start + node, 0
            if t * n_threads // n_all != thread:
                continue
            scores = table.scores + 4 * t * table.ld_scores
            for row in range(t * n_lists, (t + 1) * n_lists):
                cells = table.lists.chosen + 8 * row * table.lists.ld_chosen
                n = _list(table, scratch, place, positions, node, scores, cells)
            run = table.lists.runs[t]
            run.first = t
            run.n = 1
            run.slot = place.slot
            run.parents = 0
            put_i64(table.lists.ends + 8 * t, n - 1)
