"""Attention over a cache of keys and values.

Sixteen keys lie together, component by component, so that scores need no sums across lanes: [G][T/16][D][16]. Values lie as
[G][T][D_v padded to 16]; `cache_type.py` says more. T is a slot's cells padded to 64; a slot's share of a layer is one run of
memory. A token's state lies in the cell of its position or, in a tree, where several have one position, in the next free cell.

A query row (one token, one query head) walks the positions it sees in chunks of 256 that begin at multiples of 256. Within
a chunk: scores, their maximum, exponentials, weighted sum of values, position by position; chunks are merged in order. Rows
are worked on in tiles that share each load; a row's result depends only on itself. A tree's cells are scored
together; each row takes the scores of its own path, in the order of positions, and gives all other cells no weight.

The rows of a KV head are cut into blocks. Where there are enough of them for the threads, a thread takes a block and walks its
chunks. If there are few, threads take chunks, keep each chunk's part of each row, and the one that completes a block merges its
parts, in the same order: a row's bits do not depend on its thread.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import attention_tile, simd
from augury.backends.numba_cpu.kernels.activation import capped, exponential
from augury.backends.numba_cpu.kernels.attention_chunk import (
    MASKED,
    Fetch,
    TileRows,
    chunk_kernel,
    gather_kernel,
    seen_by,
    unpack_kernel,
)
from augury.backends.numba_cpu.kernels.attention_tile import CHUNK, MAX_ROWS, POSITIONS
from augury.backends.numba_cpu.kernels.cache_type import BYTES, FLOATS, LANES
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.simd import atomic_add, fma, mul, put_i64, store_part
from augury.backends.numba_cpu.kernels.step import scratch_of
from augury.backends.numba_cpu.kernels.team import CLAIMED

f32 = np.float32
_ITEMS = 4  # per thread, so that they end together
_DIRECT_TILES = {"q8_0": 4, "q4_0": 2}  # each unpacks its own loads; more of them unpack faster once, into memory


@helper
def begin(layer, kept, head, bytes_of_part):
    """Begin a row of which nothing is known yet, or that its head's sink alone has been seen: a score without a value."""
    sinks = layer.sinks
    if sinks == 0:
        simd.put_f32(kept, MASKED)
        simd.put_f32(kept + attention_tile.TOTAL, f32(0))
    else:
        simd.put_f32(kept, simd.get_f32(sinks + 4 * head))
        simd.put_f32(kept + attention_tile.TOTAL, f32(1))
    for i in range(attention_tile.HEAD, bytes_of_part, 64):
        simd.store_f32(kept + i, simd.zero_f32())


@helper
def merge(kept, part, bytes_of_part):
    """Add a chunk's part of one row to the row's parts so far."""
    if simd.get_f32(part + attention_tile.TOTAL) < 0:
        return
    before, top = simd.get_f32(kept), simd.get_f32(part)
    one = simd.splat_f32(f32(1))
    if before < top:  # of the two factors the one is exp(0)
        old, new = exponential(simd.splat_f32(before - top)), one
        simd.put_f32(kept, top)
    else:
        old, new = one, exponential(simd.splat_f32(top - before))
    total = fma(simd.repeat_f32(part + attention_tile.TOTAL), new, mul(simd.repeat_f32(kept + attention_tile.TOTAL), old))
    simd.put_f32(kept + attention_tile.TOTAL, simd.max_lanes(total))
    for i in range(attention_tile.HEAD, bytes_of_part, 64):
        simd.store_f32(kept + i, fma(simd.load_f32(part + i), new, mul(simd.load_f32(kept + i), old)))


@kernel(layer=attention_tile.AttentionLayer)
def adjust_scores(layer, scores, first, end, distance, head):
    """Cap scores and lower them by how far away they are: s → cap * tanh(s / cap) + slope * distance.

    Args:
        layer: its cap (0 if none), and slopes by head (0 if none).
        scores: of a row by position, of which `first` to `end` are changed, in whole blocks of 16.
        first: see `scores`.
        end: see `scores`.
        distance: of the first score's position from the row's own; of those before it less than 0.
        head: of queries.
    """
    cap, slopes = layer.cap, layer.slopes
    for p in range(first // 16 * 16, end, 16):
        score = capped(simd.load_f32(scores + 4 * p), cap)
        if slopes != 0:
            score = fma(simd.count_from(distance + p), simd.repeat_f32(slopes + 4 * head), score)
        simd.store_f32(scores + 4 * p, score)


@helper
def finish(layer, kept, token, head):
    """Write a row's result."""
    dv = layer.dv
    inverse = simd.splat_f32(f32(1) / simd.get_f32(kept + attention_tile.TOTAL))
    out = layer.out + 4 * (token * layer.n_heads + head) * dv
    for i in range(0, dv, 16):
        store_part(out + 4 * i, mul(simd.load_f32(kept + attention_tile.HEAD + 4 * i), inverse), dv - i)


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


@cache
def attend_kernel(type_k: str, type_v: str, *, is_latent: bool = False, is_sparse: bool = False) -> Any:
    """Make the kernel that computes out = softmax(scale * q k^T) v for all tokens and heads.

    With `is_latent`, keys lie cell by cell, and values are their first numbers. With `is_sparse`, tokens attend to chosen
    cells, whose rows are gathered, chunk by chunk, as float32.
    """
    bytes_k, bytes_v = BYTES[type_k], BYTES[type_v]
    has_codes = is_sparse or type_k not in FLOATS or type_v not in FLOATS
    n_direct = _DIRECT_TILES["q4_0" if "q4_0" in (type_k, type_v) else "q8_0"] * MAX_ROWS
    read = ("q8_0", "q8_0") if is_sparse else (type_k, type_v)  # gathered floats are read like unpacked codes
    attend_chunk = chunk_kernel(*read, is_unpacked=is_sparse, is_latent=is_latent, is_sparse=is_sparse)
    attend_unpacked = (
        chunk_kernel(*read, is_unpacked=True, is_latent=is_latent) if has_codes and not is_sparse else attend_chunk
    )
    unpack_chunk = unpack_kernel(type_k, type_v, is_latent=is_latent)
    if is_sparse:
        unpack_chunk = gather_kernel(type_k, type_v, is_latent=is_latent)

    @helper
    def runs_of(layer, state):
        """The runs of tokens, how many, and the positions of the tokens."""
        if is_sparse:
            return layer.lists.runs, state.n_tokens, layer.lists.ends
        return state.segments, state.n_segments, state.positions

    @helper
    def list_of(layer, token, group):
        """The row of the list of cells that a KV head of a token attends to."""
        return token * layer.lists.n_lists + min(group, layer.lists.n_lists - 1)

    @helper
    def attend_part(layer, positions, scratch, place, group, row0, row1, chunk0, chunk1, parts):
        """Attend with rows row0..row1 of a KV head to chunks chunk0..chunk1.

        Row r is head r % (H/G) of the group and token r // (H/G) of the run of tokens at `place`. Where `parts` is 0, the
        chunks are all that the rows see, and the rows are written; else each chunk's part is stored there.
        """
        n_groups, start, slot = layer.n_kv_heads, place.first, place.slot
        share = layer.n_heads // n_groups
        bytes_of_part = attention_tile.HEAD + 4 * ((layer.dv + 15) // 16 * 16)
        run = (slot * n_groups + group) * layer.n_rows
        keys = layer.keys + bytes_k * layer.d * (run // LANES)
        values = layer.values + bytes_v * (layer.value_row // LANES) * run
        q = layer.q.address + 4 * (start * layer.q.width + group * share * layer.d)
        own = scratch + attention_tile.OWN_PARTS
        kept = own + MAX_ROWS * bytes_of_part
        if parts == 0:
            for row in range(row1 - row0):
                begin(layer, kept + row * bytes_of_part, group * share + (row0 + row) % share, bytes_of_part)
        is_unpacked = has_codes and row1 - row0 > n_direct and place.parents == 0  # a tree's cells may be more than a chunk
        if is_sparse:
            is_unpacked = True
        low, high = seen_by(layer, positions, place, share, row0, row1)
        for chunk in range(chunk0, chunk1):
            row, tile, n_tiles = row0, 0, 0
            if chunk + 1 < chunk1 and not is_sparse:
                n_tiles = (row1 - row0 + MAX_ROWS - 1) // MAX_ROWS
            if is_unpacked:
                at = CHUNK * chunk
                unpack_chunk(
                    layer, scratch, keys, values, list_of(layer, start, group), at, max(low - at, 0), min(high + 1 - at, CHUNK)
                )
            elif chunk == chunk0 or row1 - row0 <= MAX_ROWS:  # nobody has fetched this chunk: the first tile does
                tile, n_tiles = -1, n_tiles - 1
            while row < row1:
                n_rows = rows_of_tile(row1 - row)
                to = own
                if parts != 0:
                    to = parts + ((chunk - chunk0) * (row1 - row0) + row - row0) * bytes_of_part
                distance, part, n_shares = CHUNK, tile, n_tiles
                if tile < 0:
                    distance, part, n_shares = POSITIONS, 0, 1
                rows, fetch = TileRows(q, group, share, row, n_rows), Fetch(distance, part, n_shares)
                if is_unpacked:
                    attend_unpacked(layer, positions, place, scratch, rows, keys, values, chunk, to, fetch)
                else:
                    attend_chunk(layer, positions, place, scratch, rows, keys, values, chunk, to, fetch)
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
        n_groups = layer.n_kv_heads
        share = layer.n_heads // n_groups
        n_parts = n_chunks = 0
        runs, n_runs, all_positions = runs_of(layer, state)
        for segment in range(n_runs):
            place = runs[segment]
            n_rows, positions = place.n * share, all_positions + 8 * place.first
            low, high = seen_by(layer, positions, place, share, 0, n_rows)
            n_seen = high // CHUNK + 1 - low // CHUNK
            n_parts += n_groups * n_rows * n_seen
            n_chunks += n_groups * ((n_rows + attention_tile.BLOCK_ROWS - 1) // attention_tile.BLOCK_ROWS) * n_seen
        return n_parts, n_chunks

    def attend(record, state, thread, n_threads):
        layer = record.layer
        scratch = scratch_of(state, thread)
        n_groups = layer.n_kv_heads
        share = layer.n_heads // n_groups
        bytes_of_part = attention_tile.HEAD + 4 * ((layer.dv + 15) // 16 * 16)
        n_rows_all = state.n_tokens * layer.n_heads
        step, run, is_cut = attention_tile.BLOCK_ROWS, 1, False
        if n_rows_all <= attention_tile.MANY_ROWS * n_threads:
            n_parts, n_all = count_parts(layer, state)
            is_cut = n_parts <= attention_tile.N_PARTS
            run = max(n_all // (2 * _ITEMS * n_threads), 1)  # chunks that a thread takes
        if not is_cut:
            step = min(max(n_rows_all // (_ITEMS * n_threads) // MAX_ROWS, 1) * MAX_ROWS, attention_tile.BLOCK_ROWS)
        kept = scratch + attention_tile.OWN_PARTS
        item = atomic_add(state + CLAIMED, 1)
        first, count, parts = 0, layer.counts, layer.parts
        runs, n_runs, all_positions = runs_of(layer, state)
        for segment in range(n_runs):
            place = runs[segment]
            positions = all_positions + 8 * place.first
            n_rows = place.n * share
            n_blocks = (n_rows + step - 1) // step
            for block in range(n_blocks * n_groups):
                group, row0 = block // n_blocks, block % n_blocks * step
                row1 = min(row0 + step, n_rows)
                low, high = seen_by(layer, positions, place, share, row0, row1)
                chunk0 = low // CHUNK
                n_chunks = high // CHUNK + 1 - chunk0
                n_items = 1
                if is_cut:
                    n_items = (n_chunks + run - 1) // run
                while item < first + n_items:
                    start, end, here = 0, n_chunks, 0
                    if is_cut:
                        start = (item - first) * run
                        end = min(start + run, n_chunks)
                        here = parts + start * (row1 - row0) * bytes_of_part
                    attend_part(layer, positions, scratch, place, group, row0, row1, chunk0 + start, chunk0 + end, here)
                    if is_cut and atomic_add(count, 1) == n_items - 1:
                        put_i64(count, 0)
                        for row in range(row0, row1):
                            begin(layer, kept, group * share + row % share, bytes_of_part)
                            for chunk in range(n_chunks):
                                merge(kept, parts + (chunk * (row1 - row0) + row - row0) * bytes_of_part, bytes_of_part)
                            finish(layer, kept, place.first + row // share, group * share + row % share)
                    item = atomic_add(state + CLAIMED, 1)
                first += n_items
                if is_cut:
                    parts += n_chunks * (row1 - row0) * bytes_of_part
                    count += attention_tile.LINE

    form = "_sparse" * is_sparse + "_latent" * is_latent
    return kernel(attend, f"attend{form}_{type_k}_{type_v}", record=attention_tile.Attend)
