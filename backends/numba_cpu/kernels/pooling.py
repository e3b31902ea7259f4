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
from augury.backends.numba_cpu.kernels.attention_layer import COMPARED, COMPARED_BYTES, KEYS, D, T
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES, store_value
from augury.backends.numba_cpu.kernels.choice import N_COUNTS, least_chosen, order_of
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, invoke, load_part, store_part
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
from augury.backends.numba_cpu.kernels.team import CELLS, N_SEGMENTS, N_TOKENS, POSITIONS, SEGMENT_BYTES, SEGMENTS, SLOTS

f32 = np.float32

# Offsets into the record of a pooling. VALUES and WEIGHTS as computed, floats of a row; how many they are; of a row that is
# pooled; positions of a block; whether it overlaps; what is added to weights, by place; what is done to values, to pooled rows,
# and by whom; what is kept, bytes of a row, cells of a slot; pooled rows, bytes from one to the next, rows of a slot, and the
# row of cell 0. Addresses of what there is not are 0.
(VALUES, LDV, WEIGHTS, LDW, N_VALUES, WIDTH, SIZE, OVERLAPS, PLACES, WAYS_VALUES, WAYS_ROWS, PREPARE_HEAD) = (
    8 * i for i in range(12)
)
(KEPT, KEPT_BYTES, LENGTH, POOLED, POOLED_BYTES, N_POOLED, FIRST) = (8 * i for i in range(12, 19))
# Then, of what chooses: queries and weights of heads, floats of a row; heads; what stands for weights where there are none;
# scores, floats of a row; how many blocks are chosen, or 0: all; lists of a token. WINDOW is 0 where tokens attend to the
# positions of chosen blocks and of the last; else they attend to so many last positions, and to pooled rows,
# those of cells from FIRST_LISTED on. Where lists go: see `attention_layer.CHOSEN`.
(QUERIES, LDQ, SHARES, LDS, N_HEADS, FACTOR, SCORES, LD_SCORES, N_CHOSEN, N_LISTS) = (8 * i for i in range(19, 29))
(WINDOW, FIRST_LISTED, CHOSEN, LD_CHOSEN, RUNS, ENDS) = (8 * i for i in range(29, 35))
N_FIELDS = 35
# Offsets into the record of a layer of compressed attention, after those of `attention_layer`: rows as computed, floats of a
# row, what is done to them; cells of a slot; the pooled row of cell 0; what is kept to be pooled, bytes of a row.
(ROWS, LD_ROWS, WAYS, N_CELLS, FIRST_POOLED, TO_POOL, TO_POOL_BYTES) = (COMPARED_BYTES + 8 * i for i in range(1, 8))


def scratch_bytes(n_rows: int, width: int) -> int:
    """Bytes of scratch that a thread needs: the cells of the rows that are pooled, a pooled row, what codes are made in."""
    return max(8 * n_rows + 4 * width, 8 * N_COUNTS) + 256


@helper
def _cell_of(place, positions, node, position):
    """The cell of a position that a token of the run at `place` sees."""
    parents, mark = get_i64(place + 24), get_i64(positions)
    if parents == 0 or position < mark:
        return position
    at = get_i64(positions + 8 * node)
    while at > position:
        node = get_i64(parents + 8 * node)
        at -= 1
    return mark + node


@kernel
def keep_to_pool(record, state, thread, n_threads):
    """Norm values, add what belongs to places to weights, and keep both. Operand: the pooling."""
    table = get_i64(record + 16)
    size, ways, places = get_i64(table + N_VALUES), get_i64(table + WAYS_VALUES), get_i64(table + PLACES)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
    for t in range(first, end):
        position, cell = get_i64(get_i64(state + POSITIONS) + 8 * t), get_i64(get_i64(state + CELLS) + 8 * t)
        cell += get_i64(get_i64(state + SLOTS) + 8 * t) * get_i64(table + LENGTH)
        x, to = (
            get_i64(table + VALUES) + 4 * t * get_i64(table + LDV),
            get_i64(table + KEPT) + get_i64(table + KEPT_BYTES) * cell,
        )
        if ways != 0:
            invoke(get_i64(table + PREPARE_HEAD), (x, ways, 0, position, size))
        for i in range(0, size, 16):
            store_part(to + 4 * i, load_part(x + 4 * i, size - i), size - i)
        if get_i64(table + WEIGHTS) == 0:
            continue
        weights = get_i64(table + WEIGHTS) + 4 * t * get_i64(table + LDW)
        for i in range(0, size, 16):
            value = load_part(weights + 4 * i, size - i)
            if places != 0:
                value = add(value, load_part(places + 4 * (position % get_i64(table + SIZE) * size + i), size - i))
            store_part(to + 4 * (size + i), value, size - i)


@helper
def _pool(table, kept, cells, n, n_before, row):
    """Pool what n cells keep, the first `n_before` of which belong to the block before, into a row."""
    width, n_values, n_bytes = get_i64(table + WIDTH), get_i64(table + N_VALUES), get_i64(table + KEPT_BYTES)
    own = n_values - width  # where values of a row's own block begin
    for i in range(0, width, 16):
        left, top, total, value = width - i, splat_f32(f32(-3e38)), zero_f32(), zero_f32()
        if get_i64(table + WEIGHTS) != 0:
            for j in range(n):
                at = kept + n_bytes * get_i64(cells + 8 * j) + 4 * (n_values + i + (0 if j < n_before else own))
                top = maximum(load_part(at, left), top)
        for j in range(n):
            at = kept + n_bytes * get_i64(cells + 8 * j) + 4 * (i + (0 if j < n_before else own))
            weight = splat_f32(f32(1))
            if get_i64(table + WEIGHTS) != 0:
                weight = exponential(sub(load_part(at + 4 * n_values, left), top))
            total, value = add(total, weight), fma(load_part(at, left), weight, value)
        store_part(row + 4 * i, div(value, total), left)


@cache
def pool_kernel(kind: str) -> Any:
    """Make the kernel that pools the blocks that tokens of the pass end. Operand: the pooling."""
    put = store_value(kind)

    def pool(record, state, thread, n_threads):
        table, cells = get_i64(record + 16), scratch_of(state, thread)
        size, width, n_counted = get_i64(table + SIZE), get_i64(table + WIDTH), 0
        for segment in range(get_i64(state + N_SEGMENTS)):
            place = get_i64(state + SEGMENTS) + SEGMENT_BYTES * segment
            positions, slot = get_i64(state + POSITIONS) + 8 * get_i64(place), get_i64(place + 16)
            kept = get_i64(table + KEPT) + get_i64(table + KEPT_BYTES) * slot * get_i64(table + LENGTH)
            for node in range(get_i64(place + 8)):
                position, n_before = get_i64(positions + 8 * node), 0
                n_counted += 1
                if n_counted % n_threads != thread:
                    continue
                row = cells + 8 * 2 * size
                at = slot * get_i64(table + N_POOLED) + get_i64(table + FIRST) + _cell_of(place, positions, node, position)
                to = get_i64(table + POOLED) + get_i64(table + POOLED_BYTES) * at
                if (position + 1) % size != 0:  # so that nothing of an earlier token of the cell is left
                    for i in range(0, width, 16):
                        simd.store_f32(row + 4 * i, zero_f32())
                    put(row, to, width, row + 4 * width)
                    continue
                if get_i64(table + OVERLAPS) != 0 and position >= size:
                    n_before = size
                n = size + n_before
                for j in range(n):
                    put_i64(cells + 8 * j, _cell_of(place, positions, node, position + 1 - n + j))
                _pool(table, kept, cells, n, n_before, row)
                if get_i64(table + WAYS_ROWS) != 0:
                    invoke(get_i64(table + PREPARE_HEAD), (row, get_i64(table + WAYS_ROWS), 0, position + 1 - size, width))
                put(row, to, width, row + 4 * width)

    pool.__name__ = pool.__qualname__ = f"pool_{kind}"
    return kernel(pool)


@kernel
def score_blocks(record, state, thread, n_threads):
    """Score the blocks that each token sees, where there are more than are chosen. Operand: what chooses."""
    table, n_heads = get_i64(record + 16), get_i64(get_i64(record + 16) + N_HEADS)
    size, width, shares, item = get_i64(table + SIZE), get_i64(table + WIDTH), get_i64(table + SHARES), 0
    for segment in range(get_i64(state + N_SEGMENTS)):
        place = get_i64(state + SEGMENTS) + SEGMENT_BYTES * segment
        start, positions = get_i64(place), get_i64(state + POSITIONS) + 8 * get_i64(place)
        keys = get_i64(table + POOLED) + get_i64(table + POOLED_BYTES) * get_i64(place + 16) * get_i64(table + N_POOLED)
        for node in range(get_i64(place + 8)):
            t, position = start + node, get_i64(positions + 8 * node)
            n_blocks = (position + 1) // size
            if n_blocks <= get_i64(table + N_CHOSEN):
                continue
            q, to = (
                get_i64(table + QUERIES) + 4 * t * get_i64(table + LDQ),
                get_i64(table + SCORES) + 4 * t * get_i64(table + LD_SCORES),
            )
            for block in range(n_blocks):
                item += 1
                if item % n_threads != thread:
                    continue
                cell, score = _cell_of(place, positions, node, (block + 1) * size - 1), f32(0)
                key = keys + get_i64(table + POOLED_BYTES) * cell
                for head in range(n_heads):
                    sums, factor = zero_f32(), f32(get_f64(table + FACTOR))
                    for i in range(0, width, 16):
                        sums = fma(simd.load_f32(key + 4 * i), simd.load_f32(q + 4 * (head * width + i)), sums)
                    if shares != 0:
                        factor = get_f32(shares + 4 * (t * get_i64(table + LDS) + head))
                    score += factor * max(sum_lanes(sums), f32(0))
                put_f32(to + 4 * block, score)


@helper
def _list(table, scratch, place, positions, node, scores, cells):
    """The cells that a token attends to; returns how many."""
    position, size, window = get_i64(positions + 8 * node), get_i64(table + SIZE), get_i64(table + WINDOW)
    n_blocks, n_chosen, least, left, n = (position + 1) // size, get_i64(table + N_CHOSEN), 0, 0, 0
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
            put_i64(cells + 8 * n, get_i64(table + FIRST_LISTED) + _cell_of(place, positions, node, end - 1))
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


@kernel
def list_cells(record, state, thread, n_threads):
    """List the cells that each token attends to. Operand: what chooses."""
    table, scratch, n_all = get_i64(record + 16), scratch_of(state, thread), get_i64(state + N_TOKENS)
    n_lists = get_i64(table + N_LISTS)
    for segment in range(get_i64(state + N_SEGMENTS)):
        place = get_i64(state + SEGMENTS) + SEGMENT_BYTES * segment
        start, positions = get_i64(place), get_i64(state + POSITIONS) + 8 * get_i64(place)
        for node in range(get_i64(place + 8)):
            t, n = start + node, 0
            if t * n_threads // n_all != thread:
                continue
            scores = get_i64(table + SCORES) + 4 * t * get_i64(table + LD_SCORES)
            for row in range(t * n_lists, (t + 1) * n_lists):
                cells = get_i64(table + CHOSEN) + 8 * row * get_i64(table + LD_CHOSEN)
                n = _list(table, scratch, place, positions, node, scores, cells)
            run = get_i64(table + RUNS) + SEGMENT_BYTES * t
            put_i64(run, t)
            put_i64(run + 8, 1)
            put_i64(run + 16, get_i64(place + 16))
            put_i64(run + 24, 0)
            put_i64(get_i64(table + ENDS) + 8 * t, n - 1)


@cache
def store_kernel(kind: str) -> Any:
    """Make the kernel that norms, turns and stores a row of each token. Operands: the layer, what does it."""
    put, n_bytes = store_value(kind), BYTES[kind]

    def store(record, state, thread, n_threads):
        layer, d = get_i64(record + 16), get_i64(get_i64(record + 16) + D)
        first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
        for t in range(first, end):
            x, position = get_i64(layer + ROWS) + 4 * t * get_i64(layer + LD_ROWS), get_i64(get_i64(state + POSITIONS) + 8 * t)
            invoke(get_i64(record + 24), (x, get_i64(layer + WAYS), 0, position, d))
            cell = get_i64(get_i64(state + SLOTS) + 8 * t) * get_i64(layer + T) + get_i64(get_i64(state + CELLS) + 8 * t)
            put(x, get_i64(layer + KEYS) + n_bytes * (d // LANES) * cell, d, scratch_of(state, thread))

    store.__name__ = store.__qualname__ = f"store_rows_{kind}"
    return kernel(store)


@helper
def _move(rows, size, source, target):
    for i in range(size):
        simd.put_u8(rows + size * target + i, simd.get_u8(rows + size * source + i))


@cache
def move_kernel(kind: str) -> Any:
    """Make the kernel that copies rows from cell to cell. Operands: layers, how many, moves (slot, from, to), how many."""
    n_bytes = BYTES[kind]

    def move(record, state, thread, n_threads):
        n_layers = get_i64(record + 24)
        for index in range(n_layers * thread // n_threads, n_layers * (thread + 1) // n_threads):
            layer = get_i64(get_i64(record + 16) + 8 * index)
            size, pooled = n_bytes * (get_i64(layer + D) // LANES), get_i64(layer + FIRST_POOLED)
            for number in range(get_i64(record + 40)):
                place = get_i64(record + 32) + 24 * number
                slot, source, target = get_i64(place), get_i64(place + 8), get_i64(place + 16)
                rows, start = get_i64(layer + KEYS) + size * slot * get_i64(layer + T), slot * get_i64(layer + N_CELLS)
                _move(rows, size, source, target)
                if pooled != 0:
                    _move(rows, size, pooled + source, pooled + target)
                n_kept, n_compared = get_i64(layer + TO_POOL_BYTES), get_i64(layer + COMPARED_BYTES)
                _move(get_i64(layer + TO_POOL), n_kept, start + source, start + target)
                _move(get_i64(layer + COMPARED), n_compared, start + source, start + target)

    move.__name__ = move.__qualname__ = f"move_rows_{kind}"
    return kernel(move)
