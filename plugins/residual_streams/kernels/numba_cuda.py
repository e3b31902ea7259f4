"""How blocks read and write several residual streams, see `connections`: rows of n streams, `size` floats each."""

from __future__ import annotations

import numpy as np

from augury.backend import numba_cuda as gpu
from augury.backend.numba_cuda import cuda

MAX_STREAMS = 8
MAX_MIXED = 64  # streams that layers begin
STREAM_THREADS = 64 if gpu.SIMULATED else 128
_SHARES = MAX_STREAMS * (2 + MAX_STREAMS)
_HELD = MAX_STREAMS * STREAM_THREADS
_WARPS = gpu.THREADS // gpu.WARP
ShareArgs = gpu.record("ShareArgs", f="coefficients scales base weights", i="n_made", r="eps post_scale post_eps")
"""The inputs of streams' weights: `coefficients` (tokens, n_made), for reading, for writing, and (n, n) for mixing.

There is one of `scales` for each of these parts; `base` is (n_made,), `weights` (tokens, n_made).
"""


@gpu.lane
def _share(params, at, i, n):
    """The weight of coefficient i: a gate, of which the first n are for reading and n more for writing, or a score."""
    part = min(gpu.quotient(i, n), 2)
    value = gpu.fma(params.coefficients[at + i], params.scales[part], params.base[i])
    if part == 0:
        value = gpu.add(gpu.sigmoid(value), np.float32(params.eps))
    elif part == 1:
        value = gpu.fma(gpu.sigmoid(value), np.float32(params.post_scale), np.float32(params.post_eps))
    return value


@gpu.lane
def _soften(comb, first, n, eps):
    """Softmax of n numbers, plus eps."""
    top, total = comb[first], np.float32(0)
    for j in range(1, n):
        top = gpu.larger(top, comb[first + j])
    for j in range(n):
        comb[first + j] = gpu.exp(gpu.add(comb[first + j], -top))
        total = gpu.add(total, comb[first + j])
    for j in range(n):
        comb[first + j] = gpu.add(gpu.div(comb[first + j], total), np.float32(eps))


@gpu.lane
def _divide(comb, first, n, step, eps):
    """Divide n numbers that are `step` apart by eps plus their sum."""
    total = np.float32(eps)
    for j in range(n):
        total = gpu.add(total, comb[first + j * step])
    for j in range(n):
        comb[first + j * step] = gpu.div(comb[first + j * step], total)


@gpu.lane
def _read(streams, start, n, size, shares, seen, y, at, first):
    for i in range(first, size, gpu.THREADS):
        value = np.float32(0)
        for stream in range(n):
            value = gpu.fma(streams[start + stream * size + i], shares[stream], value)
        seen[at + i], y[at + i] = value, np.float32(0)


@gpu.kernel("jfffiii", ShareArgs)
def read_streams(inputs, streams, seen, y, n, size, n_rounds, shared):
    """Seen = the weighted sum of a token's streams, or without coefficients their mean; y = 0. A block takes a token.

    Args:
        inputs: The inputs of the pass.
        streams: (tokens, n, size).
        seen, y: (tokens, size).
        n_rounds: How often rows and columns of weights for mixing are divided by their sums.
        shared: See `ShareArgs`.
    """
    n_made, eps = shared.n_made, shared.eps
    t, thread = cuda.blockIdx.x, cuda.threadIdx.x
    if t >= inputs[gpu.N_TOKENS]:
        return
    shares = cuda.shared.array(_SHARES, np.float32)
    for i in range(thread, n_made, gpu.THREADS):
        shares[i] = _share(shared, t * n_made, i, n)
    if n_made == 0 and thread < n:
        shares[thread] = gpu.div(np.float32(1), np.float32(n))
    cuda.syncthreads()
    if n_made > 2 * n and thread < gpu.WARP:
        if thread < n:
            _soften(shares, (2 + thread) * n, n, eps)
        for i in range(n_rounds):
            if i > 0 and thread < n:
                _divide(shares, (2 + thread) * n, n, 1, eps)
            gpu.warp_barrier()
            if thread < n:
                _divide(shares, 2 * n + thread, n, n, eps)
            gpu.warp_barrier()
    cuda.syncthreads()
    for i in range(thread, n_made, gpu.THREADS):
        shared.weights[t * n_made + i] = shares[i]
    _read(streams, t * n * size, n, size, shares, seen, y, t * size, thread)


@gpu.lane
def _gated_mean(streams, gates, start, gates_at, n, size, i):
    value = np.float32(0)
    for stream in range(n):
        at = stream * size + i
        value = gpu.fma(streams[start + at], gpu.sigmoid(gates[gates_at + at]), value)
    return gpu.mul(value, gpu.div(np.float32(1), np.float32(n)))


@gpu.kernel("j" + 6 * "f" + 4 * "i")
def read_gated_streams(inputs, streams, gates, injected, weights, seen, y, n, size, stride, has_weights):
    """Seen = the mean of streams (tokens, stride) times sigmoid(gates), y = 0, weights for writing = 2 * sigmoid(injected)."""
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * STREAM_THREADS + cuda.threadIdx.x
    if t >= inputs[gpu.N_TOKENS]:
        return
    if has_weights and i < n:
        weights[t * n + i] = gpu.mul(np.float32(2), gpu.sigmoid(injected[t * n + i]))
    if i < size:
        seen[t * size + i] = _gated_mean(streams, gates, t * stride, t * n * size, n, size, i)
        y[t * size + i] = np.float32(0)


@gpu.lane
def _write(streams, start, weights, at, given, held, first, comb, n, size):
    """Write a value of each stream; a thread's `held` has room for their previous values."""
    for stream in range(n if comb else 0):
        held[first + stream * STREAM_THREADS] = streams[start + stream * size]
    for stream in range(n):
        value = streams[start + stream * size]
        if comb:
            value = np.float32(0)
            for other in range(n):
                value = gpu.fma(held[first + other * STREAM_THREADS], weights[at + comb + other * n + stream], value)
        streams[start + stream * size] = gpu.fma(given, weights[at + stream], value)


@gpu.kernel("jfffiiiii")
def write_streams(inputs, streams, weights, y, n, size, stride, post, comb):
    """Stream j = post[j] * y + the sum over i of comb[i, j] * stream i, or + stream j; a thread takes a value of y.

    Args:
        inputs: The inputs of the pass.
        streams: (tokens, n, size).
        weights: (tokens, stride), from column `post` on those for writing, `comb` columns later those for mixing; 0: none.
        y: (tokens, size).
    """
    t, thread = cuda.blockIdx.y, cuda.threadIdx.x
    i = cuda.blockIdx.x * STREAM_THREADS + thread
    if t >= inputs[gpu.N_TOKENS] or i >= size:
        return
    held = cuda.shared.array(_HELD, np.float32)
    _write(streams, t * n * size + i, weights, t * stride + post, y[t * size + i], held, thread, comb, n, size)


@gpu.lane
def _sum_normed(x, start, norm, size, mean, inverse, first):
    total = np.float32(0)
    for i in range(first, size, gpu.THREADS):
        total = gpu.add(total, gpu.normed(x, start + i, norm, i, size, mean, inverse))
    return total


@gpu.lane
def _mix(streams, start, n, size, scores, seen, at, first):
    top, total = scores[0], np.float32(0)
    for stream in range(1, n):
        top = gpu.larger(top, scores[stream])
    for stream in range(n):
        total = gpu.add(total, gpu.exp(gpu.add(scores[stream], -top)))
    for i in range(first, size, gpu.THREADS):
        value = np.float32(0)
        for stream in range(n):
            value = gpu.fma(gpu.exp(gpu.add(scores[stream], -top)), streams[start + stream * gpu.MAX_TOKENS * size + i], value)
        seen[at + i] = gpu.div(value, total)


@gpu.kernel("jffii", gpu.NormArgs)
def mix_streams(inputs, streams, seen, n, size, norm):
    """Seen = the mean of streams (n, MAX_TOKENS, size), weighed by softmax of the sums of their norms; a block a token."""
    t, thread = cuda.blockIdx.x, cuda.threadIdx.x
    if t >= inputs[gpu.N_TOKENS]:
        return
    scores, parts = cuda.shared.array(MAX_MIXED, np.float32), cuda.shared.array(_WARPS, np.float32)
    for stream in range(n):
        start = (stream * gpu.MAX_TOKENS + t) * size
        mean, inverse = gpu.moments(streams, start, size, gpu.THREADS, norm, parts)
        cuda.syncthreads()  # all threads have read before the next write
        total = gpu.sum_of_block(_sum_normed(streams, start, norm, size, mean, inverse, thread), parts)
        cuda.syncthreads()
        if thread == 0:
            scores[stream] = total
    cuda.syncthreads()
    _mix(streams, t * size, n, size, scores, seen, t * size, thread)
