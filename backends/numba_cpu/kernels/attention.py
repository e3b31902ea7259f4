"""Attention over a cache of keys and values.

Sixteen keys lie together, component by component, so that scores need no sums across lanes: [G][T/16][D][16]. Values lie as
[G][T][D_v padded to 16]; `cache_type.py` says more. T is a slot's cells padded to 64; a slot's share of a layer is one run of
memory. A token's state lies in the cell of its position or, in a tree, where several have one position, in the next free cell.

A query row (one token, one query head) walks the positions it sees in chunks of 256 that begin at multiples of 256. Within
a chunk: scores, their maximum, exponentials, weighted sum of values, position by position; chunks are merged in order. Rows
are worked on in tiles that share each load; what a row computes depends on nothing but itself. A tree's cells are scored
together; each row takes the scores of its own path, in the order of positions, and gives all other cells no weight.

The rows of a KV head are cut into blocks. Where there are enough of them for the threads, a thread takes a block and walks
its chunks. Where there are few, threads take chunks, keep each chunk's part of each row, and the one that completes a block
merges its parts, in the same order: a row's bits do not tell who computed it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.attention_layer import (
    BLOCK_ROWS,
    COUNTS,
    DV,
    HEAD,
    KEYS,
    LDQ,
    LINE,
    MANY_ROWS,
    N_PARTS,
    OUT,
    OWN_PARTS,
    PARTS,
    QUERIES,
    ROW_SCORES,
    SCALE,
    SCORES,
    VALUES,
    WINDOW,
    D,
    G,
    H,
    Q,
    T,
)
from augury.backends.numba_cpu.kernels.attention_tile import CHUNK, MAX_ROWS, POSITIONS, SCORE_BYTES, lines_of, score, weigh
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, store_part
from augury.backends.numba_cpu.kernels.simd import atomic_add, get_f32, get_i64, mul, put_f32, put_i64
from augury.backends.numba_cpu.kernels.softmax import clear, merge, soften
from augury.backends.numba_cpu.kernels.step import scratch_of
from augury.backends.numba_cpu.kernels.team import CLAIMED, N_SEGMENTS, N_TOKENS, SEGMENT_BYTES, SEGMENTS
from augury.backends.numba_cpu.kernels.team import POSITIONS as TOKEN_POSITIONS

f32 = np.float32
_ITEMS = 4  # per thread, so that they end together


@helper
def finish(layer, kept, token, head):
    """Write what a row came to."""
    dv = get_i64(layer + DV)
    inverse = simd.splat_f32(f32(1) / simd.get_f32(kept + 4))
    out = get_i64(layer + OUT) + 4 * (token * get_i64(layer + H) + head) * dv
    for i in range(0, dv, 16):
        store_part(out + 4 * i, mul(simd.load_f32(kept + HEAD + 4 * i), inverse), dv - i)


@helper
def rows_of_tile(left):
    """How many of the rows that are left share the next tile; a row alone costs as much as two or three."""
    if MAX_ROWS < 6:
        return min(left, MAX_ROWS)
    if left == 5:
        return 3
    if left in (7, 8):
        return 4
    return min(left, 6)


@helper
def share_of_lines(lines, tile, n_tiles):
    """How many of the cache lines to be fetched with each step a tile asks for."""
    each = (lines + n_tiles - 1) // n_tiles
    return each if tile * each < lines else 0


@helper
def seen_by(positions, parents, share, window, row0, row1):
    """The first position that any of the rows may see, and the last."""
    first, last = row0 // share, (row1 - 1) // share
    if parents == 0:
        return max(get_i64(positions + 8 * first) - window + 1, 0), get_i64(positions + 8 * last)
    highest = get_i64(positions)  # of a tree's tokens none is before the first, and any may be the last
    lowest = max(highest - window + 1, 0)
    for token in range(first, last + 1):
        highest = max(highest, get_i64(positions + 8 * token))
    return lowest, highest


@helper
def gather(scores, out, mark, token, position, parents, start, base, first):
    """A row's scores by cell, from `base` on → `out`, by position, from `start` on: what a node of a tree sees.

    What lies before the mark lies where its position says, the rest in the cells of the node and those above it.
    """
    for p in range(first // 16 * 16, min(mark - start, CHUNK), 16):
        simd.store_f32(out + 4 * p, simd.load_f32(scores + 4 * p))
    p = position - start
    while token >= 0 and p >= 0:
        if p < CHUNK:
            put_f32(out + 4 * p, get_f32(scores + 4 * (mark + token - base)))
        token = get_i64(parents + 8 * token)
        p -= 1


@helper
def scatter(weights, scores, mark, token, position, parents, start, base, first, end):
    """The way back of `gather`, up to cell `base + end`: what the node does not see weighs nothing."""
    for p in range(first // 16 * 16, min(mark - start, CHUNK), 16):
        simd.store_f32(scores + 4 * p, simd.load_f32(weights + 4 * p))
    for cell in range(mark - base, end, 16):
        simd.store_f32(scores + 4 * cell, simd.zero_f32())
    p = position - start
    while token >= 0 and p >= 0:
        if p < CHUNK:
            put_f32(scores + 4 * (mark + token - base), get_f32(weights + 4 * p))
        token = get_i64(parents + 8 * token)
        p -= 1


@cache
def attend_kernel(type_k: str, type_v: str) -> Any:
    """Make the kernel that computes out = softmax(scale * q k^T) v for all tokens and heads. Operand: the layer."""
    bytes_k, bytes_v, all_lines_k, all_lines_v = BYTES[type_k], BYTES[type_v], lines_of(type_k), lines_of(type_v)

    @helper
    def score_tile(n_rows, keys, queries, d, scale, out, ahead, lines):
        if n_rows == 1:
            score(type_k, 1, keys, queries, d, scale, out, ahead, lines)
        elif n_rows == 2:
            score(type_k, 2, keys, queries, d, scale, out, ahead, lines)
        elif n_rows == 3:
            score(type_k, 3, keys, queries, d, scale, out, ahead, lines)
        elif n_rows == 4:
            score(type_k, 4, keys, queries, d, scale, out, ahead, lines)
        else:
            score(type_k, 6, keys, queries, d, scale, out, ahead, lines)

    @helper
    def weigh_tile(n_rows, weights, count, values, width, out, stride, ahead, lines):
        if n_rows == 1:
            weigh(type_v, 1, weights, count, values, width, out, stride, ahead, lines)
        elif n_rows == 2:
            weigh(type_v, 2, weights, count, values, width, out, stride, ahead, lines)
        elif n_rows == 3:
            weigh(type_v, 3, weights, count, values, width, out, stride, ahead, lines)
        elif n_rows == 4:
            weigh(type_v, 4, weights, count, values, width, out, stride, ahead, lines)
        else:
            weigh(type_v, 6, weights, count, values, width, out, stride, ahead, lines)

    @helper
    def attend_chunk(
        layer, positions, parents, scratch, q, keys, values, share, row, n_rows, chunk, parts, distance, tile, n_tiles
    ):
        """Compute a chunk's part of the rows of a tile; `keys` and `values` begin at position 0, `q` at row 0.

        `n_tiles` tiles divide fetching what lies `distance` positions behind; this one is `tile`. A chunk is one of positions.
        Where rows are nodes of a tree and the chunk goes beyond the tree's first cell, all cells of the tree are scored.
        """
        d, window = get_i64(layer + D), get_i64(layer + WINDOW)
        padded = (get_i64(layer + DV) + 15) // 16 * 16
        start, bytes_of_part = CHUNK * chunk, HEAD + 4 * padded
        lowest, highest = seen_by(positions, parents, share, window, row, row + n_rows)
        first, end = max(lowest - start, 0), min(highest + 1 - start, CHUNK)
        if first >= end:
            for r in range(n_rows):
                put_f32(parts + r * bytes_of_part + 4, f32(-1))
            return
        base, cell0, cell1, mark = start, first, end, get_i64(positions)
        is_tree = parents != 0 and start + CHUNK > mark
        if is_tree:
            if mark <= start:
                base = mark // POSITIONS * POSITIONS
            cell0, cell1 = min(start + first, mark) - base, mark + (row + n_rows - 1) // share + 1 - base
        for r in range(n_rows):
            here = (row + r) // share * get_i64(layer + LDQ) + (row + r) % share * d
            put_i64(scratch + QUERIES + 8 * r, q + 4 * here)
        scores = scratch + SCORES
        scale = simd.splat_f32(f32(get_f64(layer + SCALE)))
        lines_k = lines_v = 0
        if tile < n_tiles:
            lines_k = share_of_lines(all_lines_k, tile, n_tiles)
            lines_v = share_of_lines(all_lines_v, tile, n_tiles)
        for p in range(cell0 // POSITIONS * POSITIONS, cell1, POSITIONS):
            here = keys + bytes_k * d * ((base + p) // LANES)
            ahead = here + bytes_k * d * (distance // LANES) + tile * lines_k * LINE * d
            score_tile(n_rows, here, scratch + QUERIES, d, scale, scores + 4 * p, ahead, lines_k)
        for r in range(n_rows):
            token = (row + r) // share
            position = get_i64(positions + 8 * token)
            low, high = max(position - start - window + 1, 0), min(position - start + 1, CHUNK)
            by_cell = scores + r * SCORE_BYTES
            by_position = by_cell
            if is_tree:
                by_position = scratch + ROW_SCORES
                gather(by_cell, by_position, mark, token, position, parents, start, base, first)
            top, total = soften(by_position, first, end, low, high)
            if low >= high:  # nothing to see here: no weights, and a total that says so
                total = f32(-1)
                for p in range(first // 16 * 16, (end + 15) // 16 * 16):
                    put_f32(by_position + 4 * p, f32(0))
            if is_tree:
                scatter(by_position, by_cell, mark, token, position, parents, start, base, first, cell1)
            put_f32(parts + r * bytes_of_part, top)
            put_f32(parts + r * bytes_of_part + 4, total)
        here = values + bytes_v * (padded // LANES) * (base + cell0)
        ahead = here + bytes_v * (padded // LANES) * distance + tile * lines_v * LINE * ((cell1 - cell0) * padded // POSITIONS)
        weigh_tile(n_rows, scores + 4 * cell0, cell1 - cell0, here, padded, parts + HEAD, bytes_of_part, ahead, lines_v)

    @helper
    def attend_part(layer, state, scratch, place, group, row0, row1, chunk0, chunk1, parts):
        """Attend with rows row0..row1 of a KV head to chunks chunk0..chunk1.

        Row r is head r % (H/G) of the group and token r // (H/G) of the run of tokens at `place`. Where `parts` is 0, the
        chunks are all that the rows see, and the rows are written; else what each chunk adds to them is stored there.
        """
        n_groups, start, slot = get_i64(layer + G), get_i64(place), get_i64(place + 16)
        share = get_i64(layer + H) // n_groups
        bytes_of_part = HEAD + 4 * ((get_i64(layer + DV) + 15) // 16 * 16)
        run = (slot * n_groups + group) * get_i64(layer + T)
        keys = get_i64(layer + KEYS) + bytes_k * get_i64(layer + D) * (run // LANES)
        values = get_i64(layer + VALUES) + bytes_v * ((bytes_of_part - HEAD) // 4 // LANES) * run
        positions, parents = get_i64(state + TOKEN_POSITIONS) + 8 * start, get_i64(place + 24)
        q = get_i64(layer + Q) + 4 * (start * get_i64(layer + LDQ) + group * share * get_i64(layer + D))
        own = scratch + OWN_PARTS
        kept = own + MAX_ROWS * bytes_of_part
        if parts == 0:
            for row in range(row1 - row0):
                clear(kept + row * bytes_of_part, bytes_of_part)
        for chunk in range(chunk0, chunk1):
            row, tile, n_tiles = row0, 0, 0
            if chunk + 1 < chunk1:
                n_tiles = (row1 - row0 + MAX_ROWS - 1) // MAX_ROWS
            if chunk == chunk0 or row1 - row0 <= MAX_ROWS:  # nobody has fetched this chunk: the first tile does
                tile, n_tiles = -1, n_tiles - 1
            while row < row1:
                n_rows = rows_of_tile(row1 - row)
                to = own
                if parts != 0:
                    to = parts + ((chunk - chunk0) * (row1 - row0) + row - row0) * bytes_of_part
                distance, part, n_shares = CHUNK, tile, n_tiles
                if tile < 0:
                    distance, part, n_shares = POSITIONS, 0, 1
                where = (row, n_rows, chunk, to)
                attend_chunk(layer, positions, parents, scratch, q, keys, values, share, *where, distance, part, n_shares)
                if parts == 0:
                    for r in range(n_rows):
                        merge(kept + (row + r - row0) * bytes_of_part, to + r * bytes_of_part, bytes_of_part)
                row += n_rows
                tile += 1
        if parts == 0:
            for row in range(row0, row1):
                finish(layer, kept + (row - row0) * bytes_of_part, start + row // share, group * share + row % share)

    @helper
    def count_parts(layer, state):
        """How many parts of rows there are if threads take chunks, and how many chunks of blocks."""
        n_groups, window = get_i64(layer + G), get_i64(layer + WINDOW)
        share = get_i64(layer + H) // n_groups
        n_parts = n_chunks = 0
        for segment in range(get_i64(state + N_SEGMENTS)):
            place = get_i64(state + SEGMENTS) + SEGMENT_BYTES * segment
            n_rows, positions = get_i64(place + 8) * share, get_i64(state + TOKEN_POSITIONS) + 8 * get_i64(place)
            low, high = seen_by(positions, get_i64(place + 24), share, window, 0, n_rows)
            n_seen = high // CHUNK + 1 - low // CHUNK
            n_parts += n_groups * n_rows * n_seen
            n_chunks += n_groups * ((n_rows + BLOCK_ROWS - 1) // BLOCK_ROWS) * n_seen
        return n_parts, n_chunks

    def attend(record, state, thread, n_threads):
        layer = get_i64(record + 16)
        scratch = scratch_of(state, thread)
        n_groups, window = get_i64(layer + G), get_i64(layer + WINDOW)
        share = get_i64(layer + H) // n_groups
        bytes_of_part = HEAD + 4 * ((get_i64(layer + DV) + 15) // 16 * 16)
        n_rows_all = get_i64(state + N_TOKENS) * get_i64(layer + H)
        step, run, is_cut = BLOCK_ROWS, 1, False
        if n_rows_all <= MANY_ROWS * n_threads:
            n_parts, n_all = count_parts(layer, state)
            is_cut = n_parts <= N_PARTS
            run = max(n_all // (2 * _ITEMS * n_threads), 1)  # chunks that a thread takes
        if not is_cut:
            step = min(max(n_rows_all // (_ITEMS * n_threads) // MAX_ROWS, 1) * MAX_ROWS, BLOCK_ROWS)
        kept = scratch + OWN_PARTS
        item = atomic_add(state + CLAIMED, 1)
        first, count, parts = 0, get_i64(layer + COUNTS), get_i64(layer + PARTS)
        for segment in range(get_i64(state + N_SEGMENTS)):
            place = get_i64(state + SEGMENTS) + SEGMENT_BYTES * segment
            positions = get_i64(state + TOKEN_POSITIONS) + 8 * get_i64(place)
            n_rows = get_i64(place + 8) * share
            n_blocks = (n_rows + step - 1) // step
            for block in range(n_blocks * n_groups):
                group, row0 = block // n_blocks, block % n_blocks * step
                row1 = min(row0 + step, n_rows)
                low, high = seen_by(positions, get_i64(place + 24), share, window, row0, row1)
                chunk0 = low // CHUNK
                n_chunks = high // CHUNK + 1 - chunk0
                n_items = 1
                if is_cut:
                    n_items = (n_chunks + run - 1) // run
                while item < first + n_items:
                    begin, end, here = 0, n_chunks, 0
                    if is_cut:
                        begin = (item - first) * run
                        end = min(begin + run, n_chunks)
                        here = parts + begin * (row1 - row0) * bytes_of_part
                    attend_part(layer, state, scratch, place, group, row0, row1, chunk0 + begin, chunk0 + end, here)
                    if is_cut and atomic_add(count, 1) == n_items - 1:
                        put_i64(count, 0)
                        for row in range(row0, row1):
                            clear(kept, bytes_of_part)
                            for chunk in range(n_chunks):
                                merge(kept, parts + (chunk * (row1 - row0) + row - row0) * bytes_of_part, bytes_of_part)
                            finish(layer, kept, get_i64(place) + row // share, group * share + row % share)
                    item = atomic_add(state + CLAIMED, 1)
                first += n_items
                if is_cut:
                    parts += n_chunks * (row1 - row0) * bytes_of_part
                    count += LINE

    attend.__name__ = attend.__qualname__ = f"attend_{type_k}_{type_v}"
    return kernel(attend)
