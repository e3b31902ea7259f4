"""A memory of n-grams: rows of a table by the last tokens, and what they give to residual streams."""

from __future__ import annotations

import math

import numpy as np

from augury.backends.numba_cpu.kernels.activation import sigmoid
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import invoke, load_part, part_of, store_part
from augury.backends.numba_cpu.kernels.norm import normalise
from augury.backends.numba_cpu.kernels.simd import add, get_f32, get_i64, mul, put_f32, splat_f32, sum_lanes, zero_f32
from augury.backends.numba_cpu.kernels.step import scratch_of, share
from augury.backends.numba_cpu.kernels.team import N_TOKENS, TOKENS

f32 = np.float32
_LEAST_SCORE = 1e-6


@kernel
def put_tokens(record, state, thread, n_threads):
    """X[t] = the token's id plus 1, n times. Operands: x, floats of a row, n."""
    x, ld, n = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
    for t in range(first, end):
        for i in range(n):
            put_f32(x + 4 * (t * ld + i), f32(get_i64(get_i64(state + TOKENS) + 8 * t) + 1))


@helper
def _row_of(tokens, n, n_each, numbers, n_heads, eos, head):
    """The row of the table that a head looks up, given the tokens (n,), the last one first, as `put_tokens` has them."""
    length, mixed, is_cut = head // n_each + 2, 0, False
    for i in range(length):
        token = np.int64(get_f32(tokens + 4 * i)) - 1
        if i > 0 and (token < 0 or token == eos):
            is_cut = True
        if is_cut:
            token = eos
        mixed ^= token * get_i64(numbers + 8 * i)
    size = np.uint64(get_i64(numbers + 8 * (n + n_heads + head)))
    return get_i64(numbers + 8 * (n + head)) + np.int64(np.uint64(mixed) % size)


@kernel
def look_up(record, state, thread, n_threads):
    """Look up the rows of all heads of each token.

    Operands: the kernel that does it, table, floats of a row of it, out; tokens, floats of a row, how many, heads, the
    multipliers, the first rows and sizes of heads; what is before a sequence.
    """
    size, out, tokens, ld = get_i64(record + 32), get_i64(record + 40), get_i64(record + 48), get_i64(record + 56)
    n, n_heads, numbers, eos = get_i64(record + 64), get_i64(record + 72), get_i64(record + 80), get_i64(record + 88)
    n_items = get_i64(state + N_TOKENS) * n_heads
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        row = _row_of(tokens + 4 * (item // n_heads) * ld, n, n_heads // (n - 1), numbers, n_heads, eos, item % n_heads)
        to = (get_i64(record + 24), row, size, out + 4 * item * size, scratch_of(state, thread))
        invoke(get_i64(record + 16), to)


@kernel
def give(record, state, thread, n_threads):
    """What each stream is given, gate * value, and its norm.

    Operands: keys, floats of a row, values, likewise, streams, stride, streams of a token, floats of one, the norms of keys,
    queries and of what is given; that, and its norm.
    """
    keys, ldk, values, ldv = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32), get_i64(record + 40)
    streams, n, size = get_i64(record + 48) + thread * get_i64(record + 56), get_i64(record + 64), get_i64(record + 72)
    key = scratch_of(state, thread)
    query, n_items = key + 4 * size, get_i64(state + N_TOKENS) * n
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        t, stream = item // n, item % n
        normalise(keys + 4 * (t * ldk + stream * size), get_i64(record + 80), key, size, stream, 0)
        normalise(streams + 4 * item * size, get_i64(record + 88), query, size, stream, 0)
        total = zero_f32()
        for i in range(0, size, 16):
            left = size - i
            total = add(total, part_of(mul(load_part(key + 4 * i, left), load_part(query + 4 * i, left)), left))
        score = np.float64(sum_lanes(total)) / math.sqrt(np.float64(size))
        root = math.sqrt(max(abs(score), _LEAST_SCORE))
        if score < 0:
            root = -root
        if score == 0:
            root = 0.0
        gate, given = sigmoid(splat_f32(f32(root))), get_i64(record + 104) + 4 * item * size
        for i in range(0, size, 16):
            left = size - i
            store_part(given + 4 * i, mul(gate, load_part(values + 4 * (t * ldv + i), left)), left)
        normalise(given, get_i64(record + 96), get_i64(record + 112) + 4 * item * size, size, stream, 0)
