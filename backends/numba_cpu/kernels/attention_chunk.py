"""Attention of a few rows to a chunk of positions: the parts of `attention.py`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import exponential
from augury.backends.numba_cpu.kernels.attention_tile import (
    CHUNK,
    HEAD,
    LINE,
    N_OWN_PARTS,
    OWN_PARTS,
    POSITIONS,
    QUERIES,
    ROW_SCORES,
    SCORE_BYTES,
    SCORES,
    TOTAL,
    lines_of,
    score,
    score_rows,
    unpack_keys,
    unpack_values,
    weigh,
)
from augury.backends.numba_cpu.kernels.cache_type import BLOCK, BYTES, FLOATS, LANES, load_key
from augury.backends.numba_cpu.kernels.jit import helper

f32 = np.float32
MASKED = f32(-1e30)
_FLOAT = 4


class TileRows(NamedTuple):
    """Rows of a tile: row r is head r % share of a group, of token r // share of a run."""

    q: int  # address of row 0
    group: int
    share: int  # heads of a group
    first: int
    n: int


class Fetch(NamedTuple):
    """A tile's part of the rows to fetch, so many positions ahead."""

    distance: int
    tile: int  # which one it is
    n_tiles: int


@helper
def share_of_lines(lines, tile, n_tiles):
    """How many of the cache lines to be fetched with each step a tile asks for."""
    each = (lines + n_tiles - 1) // n_tiles
    return each if tile * each < lines else 0


@helper
def first_seen(layer, position):
    """The first position that a token at `position` sees."""
    first, chunk = max(position - layer.window + 1, 0), layer.chunk
    if chunk != 0:
        return max(first, position - position % chunk)
    return first


@helper
def last_seen(layer, positions, place, token):
    """The last position that a token of a run sees; a run that is seen whole is a chain."""
    if layer.sees_run:
        return simd.get_i64(positions + 8 * (place.n - 1))
    return simd.get_i64(positions + 8 * token)


@helper
def seen_by(layer, positions, place, share, row0, row1):
    """The first position that any of the rows may see, and the last."""
    first, last = row0 // share, (row1 - 1) // share
    if place.parents == 0:
        return first_seen(layer, simd.get_i64(positions + 8 * first)), last_seen(layer, positions, place, last)
    highest = simd.get_i64(positions)  # of a tree's tokens none is before the first, and any may be the last
    lowest = first_seen(layer, highest)
    for token in range(first, last + 1):
        highest = max(highest, simd.get_i64(positions + 8 * token))
    return lowest, highest


@helper
def gather(scores, out, mark, token, position, parents, start, base, first):
    """A row's scores by cell, from `base` on → `out`, by position, from `start` on: the positions that a node of a tree sees.

    Positions before the mark are in their own cells, the rest in the cells of the node and its ancestors.
    """
    for p in range(first // 16 * 16, min(mark - start, CHUNK), 16):
        simd.store_f32(out + 4 * p, simd.load_f32(scores + 4 * p))
    p = position - start
    while token >= 0 and p >= 0:
        if p < CHUNK:
            simd.put_f32(out + 4 * p, simd.get_f32(scores + 4 * (mark + token - base)))
        token = simd.get_i64(parents + 8 * token)
        p -= 1


@helper
def scatter(weights, scores, mark, token, position, parents, start, base, first, end):
    """The way back of `gather`, up to cell `base + end`: cells that the node does not see have weight 0."""
    for p in range(first // 16 * 16, min(mark - start, CHUNK), 16):
        simd.store_f32(scores + 4 * p, simd.load_f32(weights + 4 * p))
    for cell in range(mark - base, end, 16):
        simd.store_f32(scores + 4 * cell, simd.zero_f32())
    p = position - start
    while token >= 0 and p >= 0:
        if p < CHUNK:
            simd.put_f32(scores + 4 * (mark + token - base), simd.get_f32(weights + 4 * p))
        token = simd.get_i64(parents + 8 * token)
        p -= 1


@helper
def soften(scores, first, end, low, high):
    """Scores → exponentials in place, over whole blocks that hold first..end; of them only low..high count.

    Returns the maximum and the sum.
    """
    begin, stop = first // 16 * 16, (end + 15) // 16 * 16
    for p in range(begin, min(low, stop)):
        simd.put_f32(scores + 4 * p, MASKED)
    for p in range(max(high, begin), stop):
        simd.put_f32(scores + 4 * p, MASKED)
    a = b = simd.splat_f32(MASKED)
    p = begin
    while p + 32 <= stop:
        a, b = simd.maximum(simd.load_f32(scores + 4 * p), a), simd.maximum(simd.load_f32(scores + 4 * p + 64), b)
        p += 32
    if p < stop:
        a = simd.maximum(simd.load_f32(scores + 4 * p), a)
    top = simd.max_lanes(simd.maximum(a, b))
    limit = simd.splat_f32(top)
    total = simd.zero_f32()
    for p in range(begin, stop, 16):
        weight = exponential(simd.sub(simd.load_f32(scores + 4 * p), limit))
        simd.store_f32(scores + 4 * p, weight)
        total = simd.add(total, weight)
    return top, simd.sum_lanes(total)


@helper
def unpacked_of(layer, scratch):
    """Where a chunk's numbers lie that were codes: keys, then values."""
    return scratch + OWN_PARTS + N_OWN_PARTS * (HEAD + 4 * ((layer.dv + 15) // 16 * 16))


def tile_kernel(kind: str, *, is_by_cell: bool) -> Any:
    """Make the scores of a tile of rows: up to MAX_ROWS of them, but not 5. `is_by_cell`: whether keys lie cell by cell."""
    score_keys = score_rows if is_by_cell else score

    @helper
    def score_tile(n_rows, keys, queries, d, scale, out, ahead, lines):
        if n_rows == 1:
            score_keys(kind, 1, keys, queries, d, scale, out, ahead, lines)
        elif n_rows == 2:
            score_keys(kind, 2, keys, queries, d, scale, out, ahead, lines)
        elif n_rows == 3:
            score_keys(kind, 3, keys, queries, d, scale, out, ahead, lines)
        elif n_rows == 4:
            score_keys(kind, 4, keys, queries, d, scale, out, ahead, lines)
        else:
            score_keys(kind, 6, keys, queries, d, scale, out, ahead, lines)

    return score_tile


def chunk_kernel(type_k: str, type_v: str, *, is_unpacked: bool, is_latent: bool, is_sparse: bool = False) -> Any:
    """Make the function that attends to a chunk; with `is_unpacked`, codes are read where `unpack_kernel` has put the numbers.

    With `is_latent`, keys lie cell by cell, and values are their first numbers; with `is_sparse`, they were put so.
    """
    bytes_k, bytes_v, all_lines_k, all_lines_v = BYTES[type_k], BYTES[type_v], lines_of(type_k), lines_of(type_v)
    has_keys, has_values = is_unpacked and type_k not in FLOATS, is_unpacked and type_v not in FLOATS
    read_k, read_v = "f32" if has_keys else type_k, "f32" if has_values else type_v
    score_tile, unpacked_values = tile_kernel(read_k, is_by_cell=is_latent or is_sparse), 0 if is_latent else CHUNK

    @helper
    def weigh_tile(n_rows, weights, count, values, row, width, out, stride, ahead, lines):
        if n_rows == 1:
            weigh(read_v, 1, weights, count, values, row, width, out, stride, ahead, lines)
        elif n_rows == 2:
            weigh(read_v, 2, weights, count, values, row, width, out, stride, ahead, lines)
        elif n_rows == 3:
            weigh(read_v, 3, weights, count, values, row, width, out, stride, ahead, lines)
        elif n_rows == 4:
            weigh(read_v, 4, weights, count, values, row, width, out, stride, ahead, lines)
        else:
            weigh(read_v, 6, weights, count, values, row, width, out, stride, ahead, lines)

    @helper
    def attend_chunk(layer, positions, place, scratch, rows, keys, values, chunk, parts, fetch):
        """Compute a chunk's part of the rows of a tile; `keys` and `values` begin at position 0. A chunk is one of positions.

        Where rows are nodes of a tree and the chunk goes beyond the tree's first cell, all cells of the tree are scored.
        """
        q, group, share, row, n_rows = rows
        parents = place.parents
        distance, tile, n_tiles = fetch
        d = layer.d
        padded = (layer.dv + 15) // 16 * 16
        start, bytes_of_part = CHUNK * chunk, HEAD + 4 * padded
        lowest, highest = seen_by(layer, positions, place, share, row, row + n_rows)
        first, end = max(lowest - start, 0), min(highest + 1 - start, CHUNK)
        if first >= end:
            for r in range(n_rows):
                simd.put_f32(parts + r * bytes_of_part + TOTAL, f32(-1))
            return
        base, cell0, cell1, mark = start, first, end, simd.get_i64(positions)
        is_tree = parents != 0 and start + CHUNK > mark
        if is_tree:
            if mark <= start:
                base = mark // POSITIONS * POSITIONS
            cell0, cell1 = min(start + first, mark) - base, mark + (row + n_rows - 1) // share + 1 - base
        for r in range(n_rows):
            here = (row + r) // share * layer.q.width + (row + r) % share * d
            simd.put_i64(scratch + QUERIES + 8 * r, q + 4 * here)
        scores, unpacked = scratch + SCORES, unpacked_of(layer, scratch)
        scale = simd.splat_f32(f32(layer.scale))
        adjust, lines_k, lines_v = layer.adjust_scores, 0, 0
        if tile < n_tiles:
            lines_k = share_of_lines(all_lines_k, tile, n_tiles)
            if not is_latent:  # else scoring fetches them
                lines_v = share_of_lines(all_lines_v, tile, n_tiles)
        for p in range(cell0 // POSITIONS * POSITIONS, cell1, POSITIONS):
            here = keys + bytes_k * d * ((base + p) // LANES)
            ahead = here + bytes_k * d * (distance // LANES) + tile * lines_k * LINE * d
            if has_keys:
                here = unpacked + _FLOAT * d * p
            score_tile(n_rows, here, scratch + QUERIES, d, scale, scores + 4 * p, ahead, lines_k)
        for r in range(n_rows):
            token = (row + r) // share
            position = simd.get_i64(positions + 8 * token)
            low, end_seen = max(first_seen(layer, position) - start, 0), last_seen(layer, positions, place, token) + 1
            high = min(end_seen - start, CHUNK)
            by_cell = scores + r * SCORE_BYTES
            by_position = by_cell
            if is_tree:
                by_position = scratch + ROW_SCORES
                gather(by_cell, by_position, mark, token, position, parents, start, base, first)
            if adjust != 0:
                simd.invoke(adjust, (layer, by_position, first, end, start - position, group * share + (row + r) % share))
            top, total = soften(by_position, first, end, low, high)
            if low >= high:  # nothing to see here: no weights, and a total that says so
                total = f32(-1)
                for p in range(first // 16 * 16, (end + 15) // 16 * 16):
                    simd.put_f32(by_position + 4 * p, f32(0))
            if is_tree:
                scatter(by_position, by_cell, mark, token, position, parents, start, base, first, cell1)
            simd.put_f32(parts + r * bytes_of_part, top)
            simd.put_f32(parts + r * bytes_of_part + TOTAL, total)
        width = layer.value_row
        here = values + bytes_v * (width // LANES) * (base + cell0)
        ahead = here + bytes_v * (width // LANES) * distance + tile * lines_v * LINE * ((cell1 - cell0) * padded // POSITIONS)
        if has_values:
            here = unpacked + _FLOAT * (unpacked_values * d + width * cell0)
        weigh_tile(n_rows, scores + 4 * cell0, cell1 - cell0, here, width, padded, parts + HEAD, bytes_of_part, ahead, lines_v)

    return attend_chunk


def unpack_kernel(type_k: str, type_v: str, *, is_latent: bool) -> Any:
    """Make the function that turns the codes of a chunk's positions `first` to `end` into numbers, keys before values."""
    bytes_k, bytes_v = BYTES[type_k], BYTES[type_v]

    @helper
    def nothing(layer, scratch, states, start, first, end):
        pass

    @helper
    def keys_of(layer, scratch, keys, start, first, end):
        d = layer.d
        first = first // POSITIONS * POSITIONS
        n_blocks = (end - first + POSITIONS - 1) // POSITIONS * (POSITIONS // LANES) * (d // BLOCK)
        here = keys + bytes_k * d * ((start + first) // LANES)
        unpack_keys(type_k, here, n_blocks, unpacked_of(layer, scratch) + _FLOAT * d * first)

    @helper
    def values_of(layer, scratch, values, start, first, end):
        d, width = layer.d, layer.value_row
        here = values + bytes_v * (width // LANES) * (start + first)
        unpack_values(type_v, here, end - first, width, unpacked_of(layer, scratch) + _FLOAT * (CHUNK * d + width * first))

    @helper
    def rows_of(layer, scratch, keys, start, first, end):
        d = layer.d
        first, end = first // POSITIONS * POSITIONS, (end + POSITIONS - 1) // POSITIONS * POSITIONS
        here = keys + bytes_k * (d // LANES) * (start + first)
        unpack_values(type_k, here, end - first, d, unpacked_of(layer, scratch) + _FLOAT * d * first)

    if is_latent:
        keys_of, values_of = rows_of, nothing
    unpack_all_keys, unpack_all_values = nothing if type_k in FLOATS else keys_of, nothing if type_v in FLOATS else values_of

    @helper
    def unpack_chunk(layer, scratch, keys, values, row, start, first, end):
        unpack_all_keys(layer, scratch, keys, start, first, end)
        unpack_all_values(layer, scratch, values, start, first, end)

    return unpack_chunk


def gather_kernel(type_k: str, type_v: str, *, is_latent: bool) -> Any:
    """Make the function that puts a row's chosen cells side by side, as numbers: `first` to `end` after `start`."""
    bytes_k, bytes_v, get_key = BYTES[type_k], BYTES[type_v], load_key(type_k)

    @helper
    def gather_chunk(layer, scratch, keys, values, row, start, first, end):
        d, width, to = layer.d, layer.value_row, unpacked_of(layer, scratch)
        cells = layer.lists.chosen + 8 * (row * layer.lists.ld_chosen + start)
        for i in range(first, end):
            cell = simd.get_i64(cells + 8 * i)
            if is_latent:
                unpack_values(type_k, keys + bytes_k * (d // LANES) * cell, 1, d, to + _FLOAT * d * i)
            else:
                get_key(keys + bytes_k * d * (cell // LANES), cell % LANES, d, to + _FLOAT * d * i)
                here = values + bytes_v * (width // LANES) * cell
                unpack_values(type_v, here, 1, width, to + _FLOAT * (CHUNK * d + width * i))

    return gather_chunk
