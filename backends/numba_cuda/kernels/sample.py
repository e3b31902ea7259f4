"""The most probable tokens of rows of logits, and the normalisers of their probabilities.

A row is cut into chunks, at most as many as a block has threads. The best logit of every chunk is found by a block of its own;
then one block looks for the k best of a row: each thread holds the best of one chunk, and when that was the row's best, all
look for the chunk's next one. The larger logit comes first, of equals that of the lower id.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.activation import capped
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP, better, cuda, kernel, lane, together, warp_best
from augury.backends.numba_cuda.kernels.inputs import N_ROWS

_WARPS = THREADS // WARP
_LOWEST = float("-inf")


def chunk_of(n_vocab: int) -> int:
    """How many logits a chunk has."""
    return max(THREADS, -(-n_vocab // THREADS))


@lane
def _best_after(logits, start, begin, end, n, value, index):
    """The best of a thread's logits of a chunk that come after one of a value and an index; from index -1 on, of all.

    Where there is none it is -inf at n, which is after all others; where one is NaN, -1.
    """
    value = np.float32(value)
    best, at = np.float32(_LOWEST), np.int32(n)
    for i in range(begin, end, THREADS):
        found = logits[start + i]
        if index < 0 or found != found or found < value or (found == value and i > index):  # noqa: PLR0124 - NaN
            best, at = better(best, at, found, np.int32(i))
    return best, at


@kernel("jfir")
def cap_logits(inputs, logits, n, cap):
    """Logits (rows, n) l become cap * tanh(l / cap)."""
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if t < inputs[N_ROWS] and i < n:
        logits[t * n + i] = capped(logits[t * n + i], cap)


@together
def _best_of_block(value, index, values, ids):
    """The best of all threads."""
    thread = cuda.threadIdx.x
    value, index = warp_best(value, index)
    if thread % WARP == 0:
        values[thread // WARP] = value
        ids[thread // WARP] = index
    cuda.syncthreads()
    for warp in range(_WARPS):
        value, index = better(value, index, values[warp], ids[warp])
    cuda.syncthreads()
    return value, index


@kernel("jffjiiii")
def best_of_chunks(inputs, logits, values, ids, n, stride, n_chunks, size):
    """The best of every chunk of `size` among the first n logits of each row (stride,), and its id: (rows, n_chunks)."""
    chunk, t, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    if t >= inputs[N_ROWS]:
        return
    best_of_warps = cuda.shared.array(_WARPS, np.float32)
    ids_of_warps = cuda.shared.array(_WARPS, np.int32)
    begin, end = chunk * size + thread, min(n, (chunk + 1) * size)
    value, index = _best_after(logits, t * stride, begin, end, n, np.float32(0), np.int32(-1))
    value, index = _best_of_block(value, index, best_of_warps, ids_of_warps)
    if thread == 0:
        values[t * n_chunks + chunk] = value
        ids[t * n_chunks + chunk] = index


@kernel("jffjjfiiiii")
def best_tokens(inputs, logits, chunk_values, chunk_ids, ids, values, n, stride, n_chunks, size, k):
    """The k best of the first n logits of each row, of whose chunks `best_of_chunks` found the best ones.

    Of a row with a NaN the ids are -1.
    """
    t, thread = cuda.blockIdx.x, cuda.threadIdx.x
    if t >= inputs[N_ROWS]:
        return
    best_of_warps = cuda.shared.array(_WARPS, np.float32)
    ids_of_warps = cuda.shared.array(_WARPS, np.int32)
    held, held_id = np.float32(_LOWEST), np.int32(n)
    if thread < n_chunks:
        held, held_id = chunk_values[t * n_chunks + thread], chunk_ids[t * n_chunks + thread]
    for i in range(k):
        value, index = _best_of_block(held, held_id, best_of_warps, ids_of_warps)
        if thread == 0:
            ids[t * k + i] = index
            values[t * k + i] = value
        if i + 1 < k and index >= 0:
            chunk = index // size
            begin, end = chunk * size + thread, min(n, (chunk + 1) * size)
            value, index = _best_after(logits, t * stride, begin, end, n, value, index)
            value, index = _best_of_block(value, index, best_of_warps, ids_of_warps)
            if thread == chunk:
                held, held_id = value, index


@kernel("jffdiiii")
def sums_of_chunks(inputs, logits, values, sums, n, stride, n_chunks, size):
    """The sum of e^(logit - the chunk's best) of every chunk, in double precision, for a normaliser."""
    chunk, t, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    if t >= inputs[N_ROWS]:
        return
    parts = cuda.shared.array(THREADS, np.float64)
    best = values[t * n_chunks + chunk]
    total = np.float64(0)
    if best != np.float32(_LOWEST):
        for i in range(chunk * size + thread, min(n, (chunk + 1) * size), THREADS):
            total += gpu.exp64(np.float64(logits[t * stride + i]) - np.float64(best))
    parts[thread] = total
    cuda.syncthreads()
    step = THREADS // 2
    while step:
        if thread < step:
            parts[thread] += parts[thread + step]
        cuda.syncthreads()
        step //= 2
    if thread == 0:
        sums[t * n_chunks + chunk] = parts[0]


@kernel("fjfi")
def gather_logits(logits, places, values, n):
    """The logits at n places."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < n:
        values[i] = logits[places[i]]
