"""How blocks read and write several residual streams: rows of S streams, E floats each; see `augury.blocks.residual`.

Rows lie in memory of a thread's own where the last operand, `is_private`, says so; see `step.py`. What a token weighs its
streams with is a row of weights, the same way.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cpu.kernels.activation import exponential, sigmoid, silu
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, load_part, part_of, store_part
from augury.backends.numba_cpu.kernels.norm import normalise
from augury.backends.numba_cpu.kernels.simd import (
    add,
    div,
    fma,
    get_f32,
    get_i64,
    load_f32,
    mul,
    put_f32,
    repeat_f32,
    splat_f32,
    store_f32,
    sub,
    sum_lanes,
    zero_f32,
)
from augury.backends.numba_cpu.kernels.step import scratch_of, share
from augury.backends.numba_cpu.kernels.team import N_TOKENS

f32 = np.float32

# Offsets into the table of `weigh_streams`: streams; weights that are gates; what coefficients are multiplied with and what is
# added, then what gates are multiplied with and what is added, (n,) float32 each; epsilon and rounds of what is balanced.
N_STREAMS, N_GATES, SCALES, BASE, FACTORS, OFFSETS, EPS, N_ROUNDS = (8 * field for field in range(8))


def scratch_bytes(n_streams: int) -> int:
    """Bytes of scratch that a thread needs: a vector of every stream."""
    return 64 * n_streams


@kernel
def repeat_rows(record, state, thread, n_threads):
    """All streams = x. Operands: x, stride, streams, stride, S, E, is_private."""
    x, streams = get_i64(record + 16) + thread * get_i64(record + 24), get_i64(record + 32) + thread * get_i64(record + 40)
    n, size = get_i64(record + 48), get_i64(record + 56)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 64))
    for t in range(first, end):
        for index in range(0, size, 16):
            left = size - index
            value = load_part(x + 4 * (t * size + index), left)
            for i in range(n):
                store_part(streams + 4 * ((t * n + i) * size + index), value, left)


@kernel
def norm_streams(record, state, thread, n_threads):
    """Out = norm(x), part by part. Operands: x, stride, out, stride, parts of a row, floats of one, norm, is_private."""
    x, out = get_i64(record + 16) + thread * get_i64(record + 24), get_i64(record + 32) + thread * get_i64(record + 40)
    n, size, norm = get_i64(record + 48), get_i64(record + 56), get_i64(record + 64)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 72))
    for t in range(first, end):
        for part in range(n):
            at = 4 * (t * n + part) * size
            normalise(x + at, norm, out + at, size, part, 0)


@helper
def _divide(comb, n, eps, step, stride):
    """Divide each of n groups of n numbers, from one to the next `step`, in a group `stride` floats, by eps plus its sum."""
    for i in range(n):
        total = eps
        for j in range(n):
            total += get_f32(comb + 4 * (i * step + j * stride))
        for j in range(n):
            place = comb + 4 * (i * step + j * stride)
            put_f32(place, get_f32(place) / total)


@kernel
def weigh_streams(record, state, thread, n_threads):
    """Coefficients → weights. Operands: coefficients, floats of a row, weights, stride, floats of a row, table, is_private."""
    coefficients, ld = get_i64(record + 16), get_i64(record + 24)
    weights, ldw, table = get_i64(record + 32) + thread * get_i64(record + 40), get_i64(record + 48), get_i64(record + 56)
    n, n_gates, eps = get_i64(table + N_STREAMS), get_i64(table + N_GATES), f32(get_f64(table + EPS))
    scales, base, n_rounds = get_i64(table + SCALES), get_i64(table + BASE), get_i64(table + N_ROUNDS)
    n_all = n_gates
    if n_rounds > 0:
        n_all += n * n
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 64))
    for t in range(first, end):
        row = weights + 4 * t * ldw
        for i in range(0, n_all, 16):
            left, value = n_all - i, load_part(coefficients + 4 * (t * ld + i), n_all - i)
            value = add(mul(value, load_part(scales + 4 * i, left)), load_part(base + 4 * i, left))
            store_part(row + 4 * i, value, left)
        for i in range(0, n_gates, 16):
            left, factors, offsets = n_gates - i, get_i64(table + FACTORS), get_i64(table + OFFSETS)
            value = mul(sigmoid(load_part(row + 4 * i, left)), load_part(factors + 4 * i, left))
            store_part(row + 4 * i, add(value, load_part(offsets + 4 * i, left)), left)
        comb = row + 4 * n_gates
        for i in range(n if n_rounds > 0 else 0):
            top, total = f32(-3e38), zero_f32()
            for j in range(n):
                top = max(top, get_f32(comb + 4 * (i * n + j)))
            for j in range(0, n, 16):
                place, left = comb + 4 * (i * n + j), n - j
                power = exponential(sub(load_part(place, left), splat_f32(top)))
                total = add(total, part_of(power, left))
                store_part(place, power, left)
            factor = div(splat_f32(f32(1)), splat_f32(sum_lanes(total)))
            for j in range(0, n, 16):
                place, left = comb + 4 * (i * n + j), n - j
                store_part(place, fma(load_part(place, left), factor, splat_f32(eps)), left)
        for turn in range(n_rounds):
            if turn > 0:
                _divide(comb, n, eps, n, 1)
            _divide(comb, n, eps, 1, n)


@kernel
def read_streams(record, state, thread, n_threads):
    """X = the sum of weighted streams.

    Operands: streams, stride, weights, stride, floats of a row, S, E, x, stride, is_private.
    """
    streams, weights = (
        get_i64(record + 16) + thread * get_i64(record + 24),
        get_i64(record + 32) + thread * get_i64(record + 40),
    )
    ldw, n, size = get_i64(record + 48), get_i64(record + 56), get_i64(record + 64)
    x = get_i64(record + 72) + thread * get_i64(record + 80)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 88))
    for t in range(first, end):
        for index in range(0, size, 16):
            left, value = size - index, zero_f32()
            for i in range(n):
                stream = load_part(streams + 4 * ((t * n + i) * size + index), left)
                value = fma(stream, repeat_f32(weights + 4 * (t * ldw + i)), value)
            store_part(x + 4 * (t * size + index), value, left)


@kernel
def silu_rows(record, state, thread, n_threads):
    """Y = silu(x). Operands: x, floats of a row, y, floats of a row."""
    x, ldx, y, size = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32), get_i64(record + 40)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
    for t in range(first, end):
        for index in range(0, size, 16):
            left = size - index
            store_part(y + 4 * (t * size + index), silu(load_part(x + 4 * (t * ldx + index), left)), left)


@kernel
def read_gated_streams(record, state, thread, n_threads):
    """X = the mean of streams times the sigmoids of gates, (n, S * E).

    Operands: streams, stride, gates, floats of a row, S, E, x, stride, is_private.
    """
    streams, gates, ld = get_i64(record + 16) + thread * get_i64(record + 24), get_i64(record + 32), get_i64(record + 40)
    n, size, x = get_i64(record + 48), get_i64(record + 56), get_i64(record + 64) + thread * get_i64(record + 72)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 80))
    factor = splat_f32(f32(1) / f32(n))
    for t in range(first, end):
        for index in range(0, size, 16):
            left, value = size - index, zero_f32()
            for i in range(n):
                at = i * size + index
                gate = sigmoid(load_part(gates + 4 * (t * ld + at), left))
                value = fma(load_part(streams + 4 * (t * n * size + at), left), gate, value)
            store_part(x + 4 * (t * size + index), mul(value, factor), left)


@kernel
def write_streams(record, state, thread, n_threads):
    """Stream j = post[j] * y + the sum over i of comb[i, j] * stream i, or + stream j where there is no comb.

    Operands: streams, stride, weights, stride, floats of a row, where post begins, where comb does or -1, S, E, y, floats of a
    row, is_private.
    """
    streams, weights = (
        get_i64(record + 16) + thread * get_i64(record + 24),
        get_i64(record + 32) + thread * get_i64(record + 40),
    )
    ldw, post, comb, n = get_i64(record + 48), get_i64(record + 56), get_i64(record + 64), get_i64(record + 72)
    size, y, ldy, held = get_i64(record + 80), get_i64(record + 88), get_i64(record + 96), scratch_of(state, thread)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 104))
    for t in range(first, end):
        shares = weights + 4 * t * ldw
        for index in range(0, size, 16):
            left = size - index
            given = load_part(y + 4 * (t * ldy + index), left)
            for i in range(n):
                store_f32(held + 64 * i, load_part(streams + 4 * ((t * n + i) * size + index), left))
            for j in range(n):
                value = load_f32(held + 64 * j)
                if comb >= 0:
                    value = mul(load_f32(held), repeat_f32(shares + 4 * (comb + j)))
                    for i in range(1, n):
                        value = fma(load_f32(held + 64 * i), repeat_f32(shares + 4 * (comb + i * n + j)), value)
                value = fma(given, repeat_f32(shares + 4 * (post + j)), value)
                store_part(streams + 4 * ((t * n + j) * size + index), value, left)
