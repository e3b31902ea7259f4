"""Attention over a cache of keys and values.

Keys lie as [G][T/16][D][16]: sixteen positions to a vector, so that scores need no sums across lanes. Values lie as
[G][T][D_v padded to 16]. T is a slot's positions padded to 64; a slot's share of a layer is one run of memory.

A query row (one token, one query head) walks the positions it sees in chunks of 256 that begin at multiples of 256. Within
a chunk: scores, their maximum, exponentials, weighted sum of values, position by position; chunks are merged in order. Rows
are worked on in tiles that share each load; what a row computes depends on nothing but itself.

The rows of a KV head are cut into blocks. Where there are enough of them for the threads, a thread takes a block and walks
its chunks. Where there are few, threads take chunks, keep each chunk's part of each row, and the one that completes a block
merges its parts, in the same order: a row's bits do not tell who computed it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import exponential
from augury.backends.numba_cpu.kernels.attention_tile import BYTES, CHUNK, MAX_ROWS, POSITIONS, SCORE_BYTES, score, weigh
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, load_part, store_part
from augury.backends.numba_cpu.kernels.norm import normalise
from augury.backends.numba_cpu.kernels.rope import rotate
from augury.backends.numba_cpu.kernels.simd import add, atomic_add, fma, get_i64, maximum, mul, put_i64, sub
from augury.backends.numba_cpu.kernels.step import scratch_of
from augury.backends.numba_cpu.kernels.team import (
    CLAIMED,
    N_SEGMENTS,
    N_TOKENS,
    SEGMENTS,
    SLOTS,
)
from augury.backends.numba_cpu.kernels.team import POSITIONS as TOKEN_POSITIONS

f32 = np.float32
MASKED = f32(-1e30)
_STORES = {"f16": (simd.put_f16, simd.store_f16), "f32": (simd.put_f32, simd.store_f32)}
_BLOCK_ROWS = 96  # rows that share a chunk of keys and values while it is in cache
_MANY_ROWS = 96  # per thread: from here on, threads take rows, not chunks
_ITEMS = 4  # per thread, so that they end together
_N_PARTS = 16384  # chunks' parts of rows that there is memory for
_QUERY_BYTES = 64  # addresses of a tile's queries
_LINE = 64
_HEAD = 64  # bytes before a part's weighted sum: maximum, total (-1 where a row sees nothing of a chunk)
# Offsets into an attention layer (see `lowering.py`), which both kernels of a layer take.
(Q, K, V, LDQ, LDK, LDV, D, DV, H, G, Q_NORM, Q_EPS, K_NORM, K_EPS, TURNS, N_PAIRS, IS_INTERLEAVED) = (
    8 * field for field in range(17)
)
(KEYS, VALUES, T, SCALE, WINDOW, OUT, PARTS, COUNTS) = (8 * field for field in range(17, 25))


def scratch_bytes(value_dim: int) -> int:
    """Bytes of scratch that `attend` needs per thread."""
    return _QUERY_BYTES + MAX_ROWS * SCORE_BYTES + (MAX_ROWS + _BLOCK_ROWS) * _part_bytes(value_dim)


def parts_bytes(value_dim: int, n_ctx: int, n_threads: int) -> int:
    """Bytes that the threads need for the parts of rows; a layer after the other uses them."""
    return min(_N_PARTS, _MANY_ROWS * n_threads * -(-n_ctx // CHUNK)) * _part_bytes(value_dim)


def counts_bytes(n_threads: int) -> int:
    """Bytes that the threads need for how far each block of rows has come, zero at first; a block has a row at least."""
    return _MANY_ROWS * n_threads * _LINE


def _part_bytes(value_dim: int) -> int:
    return _HEAD + 4 * (-(-value_dim // 16) * 16)


@cache
def prepare_kernel(type_k: str, type_v: str) -> Any:
    """Make the kernel that norms and turns queries and keys, and stores keys and values. Operand: the layer."""
    put_k, bytes_k = _STORES[type_k][0], BYTES[type_k]
    store_v, bytes_v = _STORES[type_v][1], BYTES[type_v]

    @helper
    def ready(x, layer, norm, eps, turns):
        """Norm and turn one head in place."""
        if norm != 0:
            normalise(x, norm, x, get_i64(layer + D), eps)
        rotate(x, turns, get_i64(layer + N_PAIRS), get_i64(layer + IS_INTERLEAVED))

    def prepare(record, state, thread, n_threads):
        layer = get_i64(record + 16)
        n, n_heads, n_groups = get_i64(state + N_TOKENS), get_i64(layer + H), get_i64(layer + G)
        d, dv, length = get_i64(layer + D), get_i64(layer + DV), get_i64(layer + T)
        padded = (dv + 15) // 16 * 16
        n_items = n * (n_heads + n_groups)
        for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
            t = item // (n_heads + n_groups)
            head = item - t * (n_heads + n_groups)
            position = get_i64(get_i64(state + TOKEN_POSITIONS) + 8 * t)
            turns = get_i64(layer + TURNS) + 8 * position * get_i64(layer + N_PAIRS)
            if head < n_heads:
                q = get_i64(layer + Q) + 4 * (t * get_i64(layer + LDQ) + head * d)
                ready(q, layer, get_i64(layer + Q_NORM), get_f64(layer + Q_EPS), turns)
            else:
                head -= n_heads
                run = get_i64(get_i64(state + SLOTS) + 8 * t) * n_groups + head
                k = get_i64(layer + K) + 4 * (t * get_i64(layer + LDK) + head * d)
                ready(k, layer, get_i64(layer + K_NORM), get_f64(layer + K_EPS), turns)
                to = get_i64(layer + KEYS) + bytes_k * (d * (run * length + position // 16 * 16) + position % 16)
                for i in range(d):
                    put_k(to + 16 * bytes_k * i, simd.get_f32(k + 4 * i))
                v = get_i64(layer + V) + 4 * (t * get_i64(layer + LDV) + head * dv)
                to = get_i64(layer + VALUES) + bytes_v * padded * (run * length + position)
                for i in range(0, dv, 16):
                    store_v(to + bytes_v * i, load_part(v + 4 * i, dv - i))

    prepare.__name__ = prepare.__qualname__ = f"prepare_{type_k}_{type_v}"
    return kernel(prepare)


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
        a, b = maximum(simd.load_f32(scores + 4 * p), a), maximum(simd.load_f32(scores + 4 * p + 64), b)
        p += 32
    if p < stop:
        a = maximum(simd.load_f32(scores + 4 * p), a)
    top = simd.max_lanes(maximum(a, b))
    limit = simd.splat_f32(top)
    total = simd.zero_f32()
    for p in range(begin, stop, 16):
        weight = exponential(sub(simd.load_f32(scores + 4 * p), limit))
        simd.store_f32(scores + 4 * p, weight)
        total = add(total, weight)
    return top, simd.sum_lanes(total)


@helper
def clear(kept, bytes_of_part):
    """Begin a row of which nothing is known yet."""
    simd.put_f32(kept, MASKED)
    simd.put_f32(kept + 4, f32(0))
    for i in range(_HEAD, bytes_of_part, 64):
        simd.store_f32(kept + i, simd.zero_f32())


@helper
def merge(kept, part, bytes_of_part):
    """Add a chunk's part of one row to what is kept of it."""
    if simd.get_f32(part + 4) < 0:
        return
    before, top = simd.get_f32(kept), simd.get_f32(part)
    one = simd.splat_f32(f32(1))
    if before < top:  # of the two factors the one is exp(0)
        old, new = exponential(simd.splat_f32(before - top)), one
        simd.put_f32(kept, top)
    else:
        old, new = one, exponential(simd.splat_f32(top - before))
    total = fma(simd.repeat_f32(part + 4), new, mul(simd.repeat_f32(kept + 4), old))
    simd.put_f32(kept + 4, simd.max_lanes(total))
    for i in range(_HEAD, bytes_of_part, 64):
        simd.store_f32(kept + i, fma(simd.load_f32(part + i), new, mul(simd.load_f32(kept + i), old)))


@helper
def finish(layer, kept, token, head):
    """Write what a row came to."""
    dv = get_i64(layer + DV)
    inverse = simd.splat_f32(f32(1) / simd.get_f32(kept + 4))
    out = get_i64(layer + OUT) + 4 * (token * get_i64(layer + H) + head) * dv
    for i in range(0, dv, 16):
        store_part(out + 4 * i, mul(simd.load_f32(kept + _HEAD + 4 * i), inverse), dv - i)


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
def chunks_of(positions, share, window, row0, row1):
    """The first and the last chunk that any of the rows sees."""
    lowest = max(get_i64(positions + 8 * (row0 // share)) - window + 1, 0)
    return lowest // CHUNK, get_i64(positions + 8 * ((row1 - 1) // share)) // CHUNK


@cache
def attend_kernel(type_k: str, type_v: str) -> Any:
    """Make the kernel that computes out = softmax(scale * q k^T) v for all tokens and heads. Operand: the layer."""
    bytes_k, bytes_v = BYTES[type_k], BYTES[type_v]

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
    def attend_chunk(layer, positions, scratch, q, keys, values, share, row, n_rows, chunk, parts, distance, tile, n_tiles):
        """Compute a chunk's part of the rows of a tile; `keys` and `values` begin at position 0, `q` at row 0.

        `n_tiles` tiles divide fetching what lies `distance` positions behind; this one is `tile`.
        """
        d, window = get_i64(layer + D), get_i64(layer + WINDOW)
        padded = (get_i64(layer + DV) + 15) // 16 * 16
        start, bytes_of_part = CHUNK * chunk, _HEAD + 4 * padded
        first = max(get_i64(positions + 8 * (row // share)) - window + 1 - start, 0)
        end = min(get_i64(positions + 8 * ((row + n_rows - 1) // share)) + 1 - start, CHUNK)
        if first >= end:
            for r in range(n_rows):
                simd.put_f32(parts + r * bytes_of_part + 4, f32(-1))
            return
        for r in range(n_rows):
            here = (row + r) // share * get_i64(layer + LDQ) + (row + r) % share * d
            put_i64(scratch + 8 * r, q + 4 * here)
        scores = scratch + _QUERY_BYTES
        scale = simd.splat_f32(f32(get_f64(layer + SCALE)))
        lines_k = lines_v = 0
        if tile < n_tiles:
            lines_k = share_of_lines(POSITIONS * bytes_k // _LINE, tile, n_tiles)
            lines_v = share_of_lines(POSITIONS * bytes_v // _LINE, tile, n_tiles)
        for p in range(first // POSITIONS * POSITIONS, end, POSITIONS):
            here = keys + bytes_k * d * (start + p)
            ahead = here + bytes_k * d * distance + tile * lines_k * _LINE * d
            score_tile(n_rows, here, scratch, d, scale, scores + 4 * p, ahead, lines_k)
        for r in range(n_rows):
            position = get_i64(positions + 8 * ((row + r) // share)) - start
            low, high = max(position - window + 1, 0), min(position + 1, CHUNK)
            top, total = soften(scores + r * SCORE_BYTES, first, end, low, high)
            if low >= high:  # nothing to see here: no weights, and a total that says so
                total = f32(-1)
                for p in range(first // 16 * 16, (end + 15) // 16 * 16):
                    simd.put_f32(scores + r * SCORE_BYTES + 4 * p, f32(0))
            simd.put_f32(parts + r * bytes_of_part, top)
            simd.put_f32(parts + r * bytes_of_part + 4, total)
        here = values + bytes_v * padded * (start + first)
        ahead = here + bytes_v * padded * distance + tile * lines_v * _LINE * ((end - first) * padded // POSITIONS)
        weigh_tile(n_rows, scores + 4 * first, end - first, here, padded, parts + _HEAD, bytes_of_part, ahead, lines_v)

    @helper
    def attend_part(layer, state, scratch, place, group, row0, row1, chunk0, chunk1, parts):
        """Attend with rows row0..row1 of a KV head to chunks chunk0..chunk1.

        Row r is head r % (H/G) of the group and token r // (H/G) of the run of tokens at `place`. Where `parts` is 0, the
        chunks are all that the rows see, and the rows are written; else what each chunk adds to them is stored there.
        """
        n_groups, start, slot = get_i64(layer + G), get_i64(place), get_i64(place + 16)
        share = get_i64(layer + H) // n_groups
        bytes_of_part = _HEAD + 4 * ((get_i64(layer + DV) + 15) // 16 * 16)
        run = (slot * n_groups + group) * get_i64(layer + T)
        keys = get_i64(layer + KEYS) + bytes_k * get_i64(layer + D) * run
        values = get_i64(layer + VALUES) + bytes_v * (bytes_of_part - _HEAD) // 4 * run
        positions = get_i64(state + TOKEN_POSITIONS) + 8 * start
        q = get_i64(layer + Q) + 4 * (start * get_i64(layer + LDQ) + group * share * get_i64(layer + D))
        own = scratch + _QUERY_BYTES + MAX_ROWS * SCORE_BYTES
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
                attend_chunk(
                    layer, positions, scratch, q, keys, values, share, row, n_rows, chunk, to, distance, part, n_shares
                )
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
            place = get_i64(state + SEGMENTS) + 24 * segment
            n_rows = get_i64(place + 8) * share
            low, high = chunks_of(get_i64(state + TOKEN_POSITIONS) + 8 * get_i64(place), share, window, 0, n_rows)
            n_parts += n_groups * n_rows * (high + 1 - low)
            n_chunks += n_groups * ((n_rows + _BLOCK_ROWS - 1) // _BLOCK_ROWS) * (high + 1 - low)
        return n_parts, n_chunks

    def attend(record, state, thread, n_threads):
        layer = get_i64(record + 16)
        scratch = scratch_of(state, thread)
        n_groups, window = get_i64(layer + G), get_i64(layer + WINDOW)
        share = get_i64(layer + H) // n_groups
        bytes_of_part = _HEAD + 4 * ((get_i64(layer + DV) + 15) // 16 * 16)
        n_rows_all = get_i64(state + N_TOKENS) * get_i64(layer + H)
        step, run, is_cut = _BLOCK_ROWS, 1, False
        if n_rows_all <= _MANY_ROWS * n_threads:
            n_parts, n_all = count_parts(layer, state)
            is_cut = n_parts <= _N_PARTS
            run = max(n_all // (2 * _ITEMS * n_threads), 1)  # chunks that a thread takes
        if not is_cut:
            step = min(max(n_rows_all // (_ITEMS * n_threads) // MAX_ROWS, 1) * MAX_ROWS, _BLOCK_ROWS)
        kept = scratch + _QUERY_BYTES + MAX_ROWS * SCORE_BYTES
        item = atomic_add(state + CLAIMED, 1)
        first, count, parts = 0, get_i64(layer + COUNTS), get_i64(layer + PARTS)
        for segment in range(get_i64(state + N_SEGMENTS)):
            place = get_i64(state + SEGMENTS) + 24 * segment  # first token, how many, slot
            positions = get_i64(state + TOKEN_POSITIONS) + 8 * get_i64(place)
            n_rows = get_i64(place + 8) * share
            n_blocks = (n_rows + step - 1) // step
            for block in range(n_blocks * n_groups):
                group, row0 = block // n_blocks, block % n_blocks * step
                row1 = min(row0 + step, n_rows)
                chunk0, last = chunks_of(positions, share, window, row0, row1)
                n_chunks = last + 1 - chunk0
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
                    count += _LINE

    attend.__name__ = attend.__qualname__ = f"attend_{type_k}_{type_v}"
    return kernel(attend)
