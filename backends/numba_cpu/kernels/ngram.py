"""A memory of n-grams: rows of a table by the last tokens, and their additions to residual streams."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels.activation import sigmoid
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import invoke, load_part, part_of, store_part
from augury.backends.numba_cpu.kernels.norm import normalise
from augury.backends.numba_cpu.kernels.simd import add, get_f32, get_i64, mul, put_f32, splat_f32, sum_lanes, zero_f32
from augury.backends.numba_cpu.kernels.step import scratch_of, share
from augury.backends.numba_cpu.kernels.struct import nested, struct
from augury.backends.numba_cpu.kernels.team import N_TOKENS, TOKENS, Record, StridedRows, ThreadRows, own, row_of

f32 = np.float32
_LEAST_SCORE = 1e-6


@struct
class PutTokens(Record):
    """Operands of `put_tokens`."""

    x: Any = nested(StridedRows)  # (n, n_each) float32
    n_each: int


@kernel(record=PutTokens)
def put_tokens(record, state, thread, n_threads):
    """X[t] = the token's id plus 1, `n_each` times."""
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
    for t in range(first, end):
        for i in range(record.n_each):
            put_f32(row_of(record.x, t) + 4 * i, f32(get_i64(get_i64(state + TOKENS) + 8 * t) + 1))


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


@struct
class LookUp(Record):
    """Operands of `look_up`."""

    embed: int  # address of a kernel, see `MatmulKernel.embed`
    table: int  # address of the packed matrix
    size: int  # floats of a row of it
    out: int  # (n, n_heads * size) float32, address
    tokens: Any = nested(StridedRows)  # (n, n_tokens) float32, the last one first, as `put_tokens` has them
    n_tokens: int
    n_heads: int
    numbers: int  # int64, address: multipliers, then the first rows of heads, then how many they have
    eos: int


@kernel(record=LookUp)
def look_up(record, state, thread, n_threads):
    """Look up the rows of all heads of each token."""
    n, n_heads = record.n_tokens, record.n_heads
    n_items = get_i64(state + N_TOKENS) * n_heads
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        tokens, head = row_of(record.tokens, item // n_heads), item % n_heads
        row = _row_of(tokens, n, n_heads // (n - 1), record.numbers, n_heads, record.eos, head)
        to = (record.table, row, record.size, record.out + 4 * item * record.size, scratch_of(state, thread))
        invoke(record.embed, to)


@struct
class GateStreams(Record):
    """Operands of `gate_streams`."""

    keys: Any = nested(StridedRows)  # (n, n_streams * size) float32
    values: Any = nested(StridedRows)  # (n, size) float32
    x: Any = nested(ThreadRows)  # (n, n_streams, size) float32
    n_streams: int
    size: int
    key_norm: int  # address, as of the others
    query_norm: int
    norm: int
    given: int  # (n, n_streams, size) float32, address
    normed: int  # likewise


@kernel(record=GateStreams)
def gate_streams(record, state, thread, n_threads):
    """Write the addition to each stream, gate * value, and its norm."""
    n, size, key = record.n_streams, record.size, scratch_of(state, thread)
    query, n_items = key + 4 * size, get_i64(state + N_TOKENS) * n
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        t, stream = item // n, item % n
        normalise(row_of(record.keys, t) + 4 * stream * size, record.key_norm, key, size, stream, 0)
        normalise(own(record.x, thread) + 4 * item * size, record.query_norm, query, size, stream, 0)
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
        gate, given = sigmoid(splat_f32(f32(root))), record.given + 4 * item * size
        for i in range(0, size, 16):
            left = size - i
            store_part(given + 4 * i, mul(gate, load_part(row_of(record.values, t) + 4 * i, left)), left)
        normalise(given, record.norm, record.normed + 4 * item * size, size, stream, 0)
