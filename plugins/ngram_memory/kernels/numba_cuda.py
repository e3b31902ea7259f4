"""A memory of n-grams: rows of a table by the last tokens, and their values for streams; see `NgramMemory`."""

from __future__ import annotations

import numpy as np

from augury.backend import numba_cuda as gpu
from augury.backend.numba_cuda import cuda

_LEAST_SCORE = 1e-6
_WARPS = gpu.THREADS // gpu.WARP


@gpu.lane
def _number(numbers, i):
    """Number i of 64 bits, whose lower half comes first."""
    return np.uint64(numbers[2 * i]) | np.uint64(numbers[2 * i + 1]) << np.uint64(32)


@gpu.lane
def _row_of(inputs, t, tokens, base, numbers, n, n_heads, eos, head):
    """The row of the table that a head of a token looks up; `base` is the first cell of its slot."""
    length, mixed, is_cut = gpu.quotient(head, gpu.quotient(n_heads, n - 1)) + 2, np.uint64(0), False
    for i in range(length):
        position, token = inputs[gpu.POSITIONS + t] - i, np.int64(-1)
        if position >= 0:
            token = np.int64(tokens[base + gpu.cell_of(inputs, t, position)])
        if i > 0 and (token < 0 or token == eos):
            is_cut = True
        mixed ^= np.uint64(np.int64(eos) if is_cut else token) * _number(numbers, i)
    rest = gpu.remainder64(mixed, _number(numbers, n + n_heads + head))
    return np.int32(_number(numbers, n + head) + rest)


@gpu.kernel("jfwjiiii")
def find_ngrams(inputs, tokens, numbers, rows, n, n_heads, eos, length):
    """Find the rows of the table that the heads of each token look up.

    Args:
        inputs: The inputs of the pass.
        tokens: Their ids, (slots, length).
        numbers: Of 64 bits: multipliers (n,), then first rows and sizes of heads (n_heads,).
        rows: (n tokens, n_heads).
        eos: The token that stands for tokens before a sequence, or before that token.
    """
    t, head = cuda.blockIdx.y, cuda.blockIdx.x * gpu.WARP + cuda.threadIdx.x
    if t < inputs[gpu.N_TOKENS] and head < n_heads:
        base = inputs[gpu.SLOTS + t] * length
        rows[t * n_heads + head] = _row_of(inputs, t, tokens, base, numbers, n, n_heads, eos, head)


@gpu.lane
def _step(norm, stream, size):
    """Where the weights of a stream's norm begin."""
    return stream * size * (2 if norm.kind & gpu.BIASED else 1)


@gpu.lane
def _product(x, y, x_at, y_at, x_norm, y_norm, stream, size, x_moments, y_moments, first):
    """A thread's part of the product of two norms of a stream."""
    total, x_step, y_step = np.float32(0), _step(x_norm, stream, size), _step(y_norm, stream, size)
    (x_mean, x_inverse), (y_mean, y_inverse) = x_moments, y_moments
    for i in range(first, size, gpu.THREADS):
        value = gpu.normed(x, x_at + i, x_norm, x_step + i, size, x_mean, x_inverse)
        total = gpu.fma(value, gpu.normed(y, y_at + i, y_norm, y_step + i, size, y_mean, y_inverse), total)
    return total


@gpu.lane
def _gate(score, size):
    score = gpu.div(np.float32(score), gpu.root(np.float32(size)))
    far = gpu.root(gpu.larger(abs(score), np.float32(_LEAST_SCORE)))
    return gpu.sigmoid(-far if score < 0 else far if score > 0 else score)


@gpu.lane
def _give(values, values_at, gate, given, at, size, first):
    for i in range(first, size, gpu.THREADS):
        given[at + i] = gpu.mul(values[values_at + i], np.float32(gate))


@gpu.lane
def _norm(x, at, norm, step, size, mean, inverse, out, out_at, first):
    for i in range(first, size, gpu.THREADS):
        out[out_at + i] = gpu.normed(x, at + i, norm, step + i, size, mean, inverse)


Strides = gpu.record("Strides", i="keys values streams given out")
"""Values from a token's row to the next one's."""


@gpu.kernel("jfffffii", Strides, gpu.NormArgs, gpu.NormArgs, gpu.NormArgs)
def give(inputs, keys, values, streams, given, out, n, size, strides, key_norm, query_norm, norm):
    """A stream's input for a token, gate * value, and its norm; a block for each.

    Args:
        inputs: The inputs of the pass.
        keys, streams, given, out: (tokens, n * size), in rows as far apart as their strides say.
        values: (tokens, size), likewise.
        key_norm, query_norm, norm: For each stream, one after another: of keys, of streams, of inputs.
    """
    t, stream = cuda.blockIdx.x, cuda.blockIdx.y
    if t >= inputs[gpu.N_TOKENS]:
        return
    parts, thread = cuda.shared.array(_WARPS, np.float32), cuda.threadIdx.x
    at = stream * size
    keys_at, streams_at, given_at = t * strides.keys + at, t * strides.streams + at, t * strides.given + at
    of_keys = gpu.moments(keys, keys_at, size, gpu.THREADS, key_norm, parts)
    cuda.syncthreads()  # all threads have read before the next write
    of_streams = gpu.moments(streams, streams_at, size, gpu.THREADS, query_norm, parts)
    cuda.syncthreads()
    product = _product(keys, streams, keys_at, streams_at, key_norm, query_norm, stream, size, of_keys, of_streams, thread)
    gate = _gate(gpu.sum_of_block(product, parts), size)
    _give(values, t * strides.values, gate, given, given_at, size, thread)
    cuda.syncthreads()
    mean, inverse = gpu.moments(given, given_at, size, gpu.THREADS, norm, parts)
    _norm(given, given_at, norm, _step(norm, stream, size), size, mean, inverse, out, t * strides.out + at, thread)
