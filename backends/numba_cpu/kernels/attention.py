"""Attention over a cache of keys and values.

Keys lie as [G][T/16][D][16]: sixteen positions to a vector, so that scores need no sums across lanes. Values lie as
[G][T][D_v padded to 16]. T is a slot's positions padded to 32; a slot's share of a layer is one run of memory.

A query row (one token, one query head) walks the positions it sees in chunks of 256 that begin at multiples of 256. Within
a chunk: scores, their maximum, exponentials, weighted sum of values, position by position; chunks are merged in order. Rows
are worked on in tiles of four that share each load; what a row computes depends on nothing but itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import exponential
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, load_part, store_part
from augury.backends.numba_cpu.kernels.norm import normalise
from augury.backends.numba_cpu.kernels.rope import rotate
from augury.backends.numba_cpu.kernels.simd import add, atomic_add, fma, get_i64, maximum, mul, sub
from augury.backends.numba_cpu.kernels.step import scratch_of
from augury.backends.numba_cpu.kernels.team import (
    CLAIMED,
    N_SEGMENTS,
    N_TOKENS,
    POSITIONS,
    SEGMENTS,
    SLOTS,
)

f32 = np.float32
CHUNK = 256
TILE = 4  # rows
TILES_AT_ONCE = 16  # of one work item: as many as share a chunk of keys and values while it is in cache
MASKED = f32(-1e30)
_SCORES = 4 * CHUNK  # bytes of a row's scores
_LOADS = {"f16": (simd.load_f16, simd.put_f16, simd.store_f16, 2), "f32": (simd.load_f32, simd.put_f32, simd.store_f32, 4)}
# Offsets into an attention layer (see `lowering.py`), which both kernels of a layer take.
(Q, K, V, LDQ, LDK, LDV, D, DV, H, G, Q_NORM, Q_EPS, K_NORM, K_EPS, TURNS, N_PAIRS, IS_INTERLEAVED) = (
    8 * field for field in range(17)
)
(KEYS, VALUES, T, SCALE, WINDOW, OUT, LAYER_BYTES) = (8 * field for field in range(17, 24))


def scratch_bytes(value_dim: int) -> int:
    """Bytes of scratch that `attend` needs per thread."""
    return TILE * _SCORES + 64 + TILES_AT_ONCE * TILE * 4 * (2 + _padded(value_dim)) + TILE * 4 * _padded(value_dim) + 256


def _padded(size: int) -> int:
    return -(-size // 16) * 16


@cache
def prepare_kernel(type_k: str, type_v: str) -> Any:
    """Make the kernel that norms and turns queries and keys, and stores keys and values. Operand: the layer."""
    put_k, bytes_k = _LOADS[type_k][1], _LOADS[type_k][3]
    store_v, bytes_v = _LOADS[type_v][2], _LOADS[type_v][3]

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
            position = get_i64(get_i64(state + POSITIONS) + 8 * t)
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


@cache
def attend_kernel(type_k: str, type_v: str) -> Any:
    """Make the kernel that computes out = softmax(scale * q k^T) v for all tokens and heads. Operand: the layer."""
    load_k, bytes_k = _LOADS[type_k][0], _LOADS[type_k][3]
    load_v, bytes_v = _LOADS[type_v][0], _LOADS[type_v][3]

    @helper
    def score(keys, q0, q1, q2, q3, d, scale, out):
        """Scores of four rows and 32 positions."""
        a0 = a1 = b0 = b1 = c0 = c1 = d0 = d1 = simd.zero_f32()
        other = keys + 16 * bytes_k * d
        for i in range(d):
            k0, k1 = load_k(keys + 16 * bytes_k * i), load_k(other + 16 * bytes_k * i)
            q = simd.repeat_f32(q0 + 4 * i)
            a0, a1 = fma(k0, q, a0), fma(k1, q, a1)
            q = simd.repeat_f32(q1 + 4 * i)
            b0, b1 = fma(k0, q, b0), fma(k1, q, b1)
            q = simd.repeat_f32(q2 + 4 * i)
            c0, c1 = fma(k0, q, c0), fma(k1, q, c1)
            q = simd.repeat_f32(q3 + 4 * i)
            d0, d1 = fma(k0, q, d0), fma(k1, q, d1)
        simd.store_f32(out, mul(a0, scale))
        simd.store_f32(out + 64, mul(a1, scale))
        simd.store_f32(out + _SCORES, mul(b0, scale))
        simd.store_f32(out + _SCORES + 64, mul(b1, scale))
        simd.store_f32(out + 2 * _SCORES, mul(c0, scale))
        simd.store_f32(out + 2 * _SCORES + 64, mul(c1, scale))
        simd.store_f32(out + 3 * _SCORES, mul(d0, scale))
        simd.store_f32(out + 3 * _SCORES + 64, mul(d1, scale))

    @helper
    def weigh(scores, first, end, values, padded, sums):
        """sums[r] = sum over positions first..end of the chunk of weight[r] * value, for four rows."""
        i = 0
        step = bytes_v * padded
        while i + 64 <= padded:
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = simd.zero_f32()
            c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = simd.zero_f32()
            v = values + step * first + bytes_v * i
            for p in range(scores + 4 * first, scores + 4 * end, 4):
                v0, v1 = load_v(v), load_v(v + 16 * bytes_v)
                v2, v3 = load_v(v + 32 * bytes_v), load_v(v + 48 * bytes_v)
                w = simd.repeat_f32(p)
                a0, a1, a2, a3 = fma(v0, w, a0), fma(v1, w, a1), fma(v2, w, a2), fma(v3, w, a3)
                w = simd.repeat_f32(p + _SCORES)
                b0, b1, b2, b3 = fma(v0, w, b0), fma(v1, w, b1), fma(v2, w, b2), fma(v3, w, b3)
                w = simd.repeat_f32(p + 2 * _SCORES)
                c0, c1, c2, c3 = fma(v0, w, c0), fma(v1, w, c1), fma(v2, w, c2), fma(v3, w, c3)
                w = simd.repeat_f32(p + 3 * _SCORES)
                d0, d1, d2, d3 = fma(v0, w, d0), fma(v1, w, d1), fma(v2, w, d2), fma(v3, w, d3)
                v += step
            for r in range(4):
                to = sums + 4 * (r * padded + i)
                if r == 0:
                    e0, e1, e2, e3 = a0, a1, a2, a3
                elif r == 1:
                    e0, e1, e2, e3 = b0, b1, b2, b3
                elif r == 2:
                    e0, e1, e2, e3 = c0, c1, c2, c3
                else:
                    e0, e1, e2, e3 = d0, d1, d2, d3
                simd.store_f32(to, e0)
                simd.store_f32(to + 64, e1)
                simd.store_f32(to + 128, e2)
                simd.store_f32(to + 192, e3)
            i += 64
        while i < padded:
            a0 = b0 = c0 = d0 = simd.zero_f32()
            v = values + step * first + bytes_v * i
            for p in range(scores + 4 * first, scores + 4 * end, 4):
                v0 = load_v(v)
                a0, b0 = fma(v0, simd.repeat_f32(p), a0), fma(v0, simd.repeat_f32(p + _SCORES), b0)
                c0, d0 = fma(v0, simd.repeat_f32(p + 2 * _SCORES), c0), fma(v0, simd.repeat_f32(p + 3 * _SCORES), d0)
                v += step
            to = sums + 4 * i
            simd.store_f32(to, a0)
            simd.store_f32(to + 4 * padded, b0)
            simd.store_f32(to + 8 * padded, c0)
            simd.store_f32(to + 12 * padded, d0)
            i += 16

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
        largest = simd.splat_f32(MASKED)
        for p in range(begin, stop, 16):
            largest = maximum(simd.load_f32(scores + 4 * p), largest)
        top = simd.max_lanes(largest)
        limit = simd.splat_f32(top)
        total = simd.zero_f32()
        for p in range(begin, stop, 16):
            weight = exponential(sub(simd.load_f32(scores + 4 * p), limit))
            simd.store_f32(scores + 4 * p, weight)
            total = add(total, weight)
        return top, simd.sum_lanes(total)

    @helper
    def merge(kept, sums, top, total, padded):
        """Add a chunk's part of one row to what is kept of it: maximum, total, weighted sum."""
        before = simd.get_f32(kept)
        now = max(before, top)
        old = exponential(sub(simd.splat_f32(before), simd.splat_f32(now)))
        new = exponential(sub(simd.splat_f32(top), simd.splat_f32(now)))
        simd.put_f32(kept, now)
        sum_now = fma(simd.splat_f32(total), new, mul(simd.repeat_f32(kept + 4), old))
        simd.put_f32(kept + 4, simd.max_lanes(sum_now))
        for i in range(8, 4 * padded + 8, 64):
            simd.store_f32(kept + i, fma(simd.load_f32(sums + i - 8), new, mul(simd.load_f32(kept + i), old)))

    @helper
    def attend_rows(layer, state, scratch, start, slot, group, row0, row1):
        """Attend with rows row0..row1 of one KV head; row r is head r % (H/G) of the group and token start + r // (H/G)."""
        d, dv, length = get_i64(layer + D), get_i64(layer + DV), get_i64(layer + T)
        n_groups, window = get_i64(layer + G), get_i64(layer + WINDOW)
        share = get_i64(layer + H) // n_groups
        padded = (dv + 15) // 16 * 16
        scores, sums = scratch, scratch + TILE * _SCORES + 64
        kept = sums + 4 * TILE * padded
        kept_bytes = 4 * (2 + padded)
        run = (slot * n_groups + group) * length
        keys = get_i64(layer + KEYS) + bytes_k * d * run
        values = get_i64(layer + VALUES) + bytes_v * padded * run
        scale = simd.splat_f32(f32(get_f64(layer + SCALE)))
        positions = get_i64(state + POSITIONS) + 8 * start
        q = get_i64(layer + Q) + 4 * (start * get_i64(layer + LDQ) + group * share * d)
        ldq = get_i64(layer + LDQ)
        for r in range(row1 - row0):
            simd.put_f32(kept + r * kept_bytes, MASKED)
            for i in range(4, kept_bytes, 4):
                simd.put_f32(kept + r * kept_bytes + i, f32(0))
        lowest = max(get_i64(positions + 8 * (row0 // share)) - window + 1, 0)
        for chunk in range(lowest // CHUNK * CHUNK, get_i64(positions + 8 * ((row1 - 1) // share)) + 1, CHUNK):
            for row in range(row0, row1, TILE):
                r1, r2, r3 = min(row + 1, row1 - 1), min(row + 2, row1 - 1), min(row + 3, row1 - 1)
                first = max(get_i64(positions + 8 * (row // share)) - window + 1 - chunk, 0)
                end = min(get_i64(positions + 8 * (r3 // share)) + 1 - chunk, CHUNK)
                if first >= end:
                    continue
                for p in range(first // 32 * 32, end, 32):
                    score(
                        keys + bytes_k * d * (chunk + p),
                        q + 4 * (row // share * ldq + row % share * d),
                        q + 4 * (r1 // share * ldq + r1 % share * d),
                        q + 4 * (r2 // share * ldq + r2 % share * d),
                        q + 4 * (r3 // share * ldq + r3 % share * d),
                        d,
                        scale,
                        scores + 4 * p,
                    )
                tops, totals = sums - 32, sums - 16
                for r in range(TILE):
                    position = get_i64(positions + 8 * (min(row + r, row1 - 1) // share))
                    low, high = max(position - window + 1 - chunk, 0), min(position + 1 - chunk, CHUNK)
                    top, total = soften(scores + r * _SCORES, first, end, low, high)
                    if low >= high:  # nothing to see here: no weights, and a total that says so
                        total = f32(-1)
                        for p in range(first // 16 * 16, (end + 15) // 16 * 16):
                            simd.put_f32(scores + r * _SCORES + 4 * p, f32(0))
                    simd.put_f32(tops + 4 * r, top)
                    simd.put_f32(totals + 4 * r, total)
                weigh(scores, first, end, values + bytes_v * padded * chunk, padded, sums)
                for r in range(min(TILE, row1 - row)):
                    if simd.get_f32(totals + 4 * r) >= 0:
                        merge(
                            kept + (row + r - row0) * kept_bytes,
                            sums + 4 * r * padded,
                            simd.get_f32(tops + 4 * r),
                            simd.get_f32(totals + 4 * r),
                            padded,
                        )
        out_row = get_i64(layer + H) * dv
        for row in range(row0, row1):
            kept_row = kept + (row - row0) * kept_bytes
            inverse = simd.splat_f32(f32(1) / simd.get_f32(kept_row + 4))
            head = group * share + row % share
            out = get_i64(layer + OUT) + 4 * ((start + row // share) * out_row + head * dv)
            for i in range(0, dv, 16):
                store_part(out + 4 * i, mul(simd.load_f32(kept_row + 8 + 4 * i), inverse), dv - i)

    def attend(record, state, thread, n_threads):
        layer = get_i64(record + 16)
        scratch = scratch_of(state, thread)
        n_groups, n_segments = get_i64(layer + G), get_i64(state + N_SEGMENTS)
        share = get_i64(layer + H) // n_groups
        n_tiles = (get_i64(state + N_TOKENS) * share + TILE - 1) // TILE
        step = TILE * min(max(n_tiles * n_groups // (4 * n_threads), 1), TILES_AT_ONCE)
        item = atomic_add(state + CLAIMED, 1)
        first = 0
        for segment in range(n_segments):
            place = get_i64(state + SEGMENTS) + 24 * segment  # first token, how many, slot
            n_rows = get_i64(place + 8) * share
            n_parts = (n_rows + step - 1) // step
            while item < first + n_parts * n_groups:
                part = (item - first) % n_parts
                row0 = part * step
                attend_rows(
                    layer,
                    state,
                    scratch,
                    get_i64(place),
                    get_i64(place + 16),
                    (item - first) // n_parts,
                    row0,
                    min(row0 + step, n_rows),
                )
                item = atomic_add(state + CLAIMED, 1)
            first += n_parts * n_groups

    attend.__name__ = attend.__qualname__ = f"attend_{type_k}_{type_v}"
    return kernel(attend)
