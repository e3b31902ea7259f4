"""Which cells tokens attend to: those of blocks of positions that an indexer gives the highest scores.

Keys are stored cell by cell, see `cache_type.py`. A token's cells are left in the order of positions, so that it attends to a
chain of its own in any pass.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd, team
from augury.backends.numba_cpu.kernels.attention_chunk import gather, tile_kernel
from augury.backends.numba_cpu.kernels.attention_tile import CHUNK, MAX_ROWS, POSITIONS as STEP, SCORE_BYTES, Lists
from augury.backends.numba_cpu.kernels.cache_type import CachedRows, cached_row, cell_of
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.simd import atomic_add, fma, get_i64, maximum, put_i64, repeat_f32, sum_lanes, zero_f32
from augury.backends.numba_cpu.kernels.step import scratch_of
from augury.backends.numba_cpu.kernels.struct import nested, struct

f32 = np.float32


@struct
class Choose(team.Record):
    """Operands of kernels that score, and of `choose`."""

    queries: Any = nested(team.StridedRows)  # (n, n_heads * width) float32
    weights: Any = nested(team.StridedRows)  # (n, n_heads) float32; address 0: `factor` stands for them
    factor: float
    n_heads: int
    width: int  # of a key
    keys: Any = nested(CachedRows)
    scores: int  # (n, n_lists, ld_scores) float32, address: of blocks; with `n_local` of positions
    ld_scores: int
    size: int  # positions of a block
    n_chosen: int  # blocks; 0: all
    n_local: int  # how many of the last blocks, which need not be whole, are chosen anyway; 0: of whole blocks, and the rest
    window: int  # 0: lists have the positions of chosen blocks; else so many of the last ones, and the blocks' pooled rows
    first_row: int  # the pooled row of cell 0, as lists have it
    lists: Any = nested(Lists)


# Offsets into scratch: addresses of a tile's queries, its scores, the sums of all tiles; elsewhere, counts.
_TILE, _SUMS = 64, 64 + MAX_ROWS * SCORE_BYTES
N_COUNTS = 256
_ALWAYS = f32(3e38)


def scratch_bytes(n_blocks: int) -> int:
    """Bytes that a thread needs for itself, for tokens that see so many blocks."""
    return max(_SUMS + SCORE_BYTES, 8 * N_COUNTS + 4 * n_blocks) + 64


@helper
def _put(out, scores, is_tree, mark, token, position, parents, start, base, end):
    """Scores by cell → by position; see `attend_chunk` for how a tree's cells are scored."""
    if is_tree:
        gather(scores, out, mark, token, position, parents, start, base, 0)
    else:
        for p in range(0, end, 16):
            simd.store_f32(out + 4 * p, simd.load_f32(scores + 4 * p))


@cache
def score_kernel(kind: str, *, is_by_head: bool) -> Any:
    """Make the kernel that scores the positions that each token sees, where these are more than are chosen.

    With `is_by_head`, each head's products are scores for themselves; else they are summed with weights.
    """
    score_tile = tile_kernel(kind, is_by_cell=True)

    @helper
    def score_chunk(table, scratch, keys, place, token, position, mark, chunk):
        """The scores of a chunk of positions."""
        n_heads, width, t = table.n_heads, table.width, place.first + token
        parents, start = place.parents, CHUNK * chunk
        base, cell0, cell1 = start, 0, min(position + 1 - start, CHUNK)
        is_tree = parents != 0 and start + CHUNK > mark
        if is_tree:
            if mark <= start:
                base = mark // STEP * STEP
            cell0, cell1 = min(start, mark) - base, mark + token + 1 - base
        cell0 = cell0 // STEP * STEP
        sums, step = scratch + _SUMS, table.keys.row_bytes
        for p in range(cell0, cell1, 16):
            simd.store_f32(sums + 4 * p, zero_f32())
        q = table.queries.address + 4 * t * table.queries.width
        weights, head = table.weights.address + 4 * t * table.weights.width, 0
        out, lds = table.scores + 4 * start, table.ld_scores
        while head < n_heads:
            n_rows = min(n_heads - head, MAX_ROWS)
            if n_rows == 5:
                n_rows = 4
            for r in range(n_rows):
                put_i64(scratch + 8 * r, q + 4 * (head + r) * width)
            for p in range(cell0, cell1, STEP):
                score_tile(
                    n_rows, keys + step * (base + p), scratch, width, simd.splat_f32(f32(1)), scratch + _TILE + 4 * p, 0, 0
                )
            for r in range(n_rows if is_by_head else 0):
                to, row = out + 4 * (t * n_heads + head + r) * lds, scratch + _TILE + r * SCORE_BYTES
                _put(to, row, is_tree, mark, token, position, parents, start, base, cell1)
            for r in range(0 if is_by_head else n_rows):
                weight = repeat_f32(weights + 4 * (head + r))
                for p in range(cell0, cell1, 16):
                    score = maximum(simd.load_f32(scratch + _TILE + r * SCORE_BYTES + 4 * p), zero_f32())
                    simd.store_f32(sums + 4 * p, fma(score, weight, simd.load_f32(sums + 4 * p)))
            head += n_rows
        if not is_by_head:
            _put(out + 4 * t * lds, sums, is_tree, mark, token, position, parents, start, base, cell1)

    def score(record, state, thread, n_threads):
        scratch = scratch_of(state, thread)
        item, first = atomic_add(state + team.CLAIMED, 1), 0
        for segment in range(state.n_segments):
            place = state.segments[segment]
            positions = state.positions + 8 * place.first
            keys = cached_row(record.keys, place.slot, 0)
            for token in range(place.n):
                position, n_items = get_i64(positions + 8 * token), 0
                if position >= record.n_chosen * record.size:
                    n_items = position // CHUNK + 1
                while item < first + n_items:
                    score_chunk(record, scratch, keys, place, token, position, get_i64(positions), item - first)
                    item = atomic_add(state + team.CLAIMED, 1)
                first += n_items

    return kernel(score, f"score_compared_{kind}" + "_by_head" * is_by_head, record=Choose)


@kernel(record=Choose)
def score_blocks(record, state, thread, n_threads):
    """Score the whole blocks that each token sees by the float32 keys of their last positions, where not all are chosen."""
    item = 0
    n_heads, width, size, shares = record.n_heads, record.width, record.size, record.weights.address
    for segment in range(state.n_segments):
        place = state.segments[segment]
        positions = state.positions + 8 * place.first
        for node in range(place.n):
            t, n_blocks = place.first + node, (get_i64(positions + 8 * node) + 1) // size
            if n_blocks <= record.n_chosen:
                continue
            q, to = record.queries.address + 4 * t * record.queries.width, record.scores + 4 * t * record.ld_scores
            for block in range(n_blocks):
                item += 1
                if item % n_threads != thread:
                    continue
                cell, score = cell_of(place, positions, node, (block + 1) * size - 1), f32(0)
                key = cached_row(record.keys, place.slot, cell)
                for head in range(n_heads):
                    sums, factor = zero_f32(), f32(record.factor)
                    for i in range(0, width, 16):
                        sums = fma(simd.load_f32(key + 4 * i), simd.load_f32(q + 4 * (head * width + i)), sums)
                    if shares != 0:
                        factor = simd.get_f32(shares + 4 * (t * record.weights.width + head))
                    score += factor * max(sum_lanes(sums), f32(0))
                simd.put_f32(to + 4 * block, score)


@helper
def order_of(place):
    """A float32 as a whole number that is larger for larger ones."""
    bits = np.int64(simd.get_u32(place))
    if bits >= 2147483648:
        return 4294967295 - bits
    return bits + 2147483648


@helper
def least_chosen(scores, n, n_chosen, counts):
    """The least score that is chosen, in order, and how many of that score are: byte by byte, from the highest on."""
    prefix, left = 0, n_chosen
    for step in range(4):
        shift = 24 - 8 * step
        for i in range(N_COUNTS):
            put_i64(counts + 8 * i, 0)
        for p in range(n):
            order = order_of(scores + 4 * p)
            if order >> (shift + 8) == prefix:
                place = counts + 8 * (order >> shift & 255)
                put_i64(place, get_i64(place) + 1)
        digit = N_COUNTS - 1
        while digit > 0 and get_i64(counts + 8 * digit) < left:
            left -= get_i64(counts + 8 * digit)
            digit -= 1
        prefix = prefix << 8 | digit
    return prefix, left


@helper
def _best_of_blocks(scores, n, size, n_blocks, n_local, out):
    """The largest score of each block of positions; the last ones have a value that is no score."""
    for block in range(n_blocks):
        best = simd.get_f32(scores + 4 * block * size)
        for p in range(block * size + 1, min((block + 1) * size, n)):
            best = max(best, simd.get_f32(scores + 4 * p))
        if block >= n_blocks - n_local:
            best = _ALWAYS
        simd.put_f32(out + 4 * block, best)


@helper
def _list(table, scratch, scores, place, positions, node, cells):
    """The cells that a token attends to; returns how many."""
    n, size, window, at = get_i64(positions + 8 * node) + 1, table.size, table.window, 0
    n_blocks, n_chosen, n_local, least, left = n // size, table.n_chosen, table.n_local, 0, 0
    if n_local != 0:
        n_blocks = (n + size - 1) // size
    is_all = n_chosen == 0 or n_blocks <= n_chosen
    if not is_all:
        if n_local != 0:
            best = scratch + 8 * N_COUNTS
            _best_of_blocks(scores, n, size, n_blocks, n_local, best)
            scores = best
        least, left = least_chosen(scores, n_blocks, n_chosen, scratch)
    for p in range(max(n - window, 0), n if window != 0 else 0):
        put_i64(cells + 8 * at, cell_of(place, positions, node, p))
        at += 1
    for block in range(n_blocks):
        if not is_all:
            order = order_of(scores + 4 * block)
            if order < least or (order == least and left == 0):
                continue
            if order == least:
                left -= 1
        end = (block + 1) * size
        if window != 0:
            put_i64(cells + 8 * at, table.first_row + cell_of(place, positions, node, end - 1))
            at += 1
            continue
        for p in range(end - size, min(end, n)):
            put_i64(cells + 8 * at, cell_of(place, positions, node, p))
            at += 1
    for p in range(n_blocks * size, n if window == 0 else 0):
        put_i64(cells + 8 * at, cell_of(place, positions, node, p))
        at += 1
    return at


@kernel(record=Choose)
def choose(record, state, thread, n_threads):
    """List the cells that each token attends to."""
    scratch, n_all = scratch_of(state, thread), state.n_tokens
    n_lists = record.lists.n_lists
    for segment in range(state.n_segments):
        place = state.segments[segment]
        positions = state.positions + 8 * place.first
        for node in range(place.n):
            t, n = place.first + node, 0
            if t * n_threads // n_all != thread:
                continue
            for row in range(t * n_lists, (t + 1) * n_lists):
                cells = record.lists.chosen + 8 * row * record.lists.ld_chosen
                scores = record.scores + 4 * row * record.ld_scores
                n = _list(record, scratch, scores, place, positions, node, cells)
            run = record.lists.runs[t]
            run.first = t
            run.n = 1
            run.slot = place.slot
            run.parents = 0
            put_i64(record.lists.ends + 8 * t, n - 1)
