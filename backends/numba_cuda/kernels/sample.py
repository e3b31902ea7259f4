"""The most probable tokens of rows of logits, one block each."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import capped
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP, better, cuda, kernel, lane, warp_best
from augury.backends.numba_cuda.kernels.inputs import N_ROWS

_WARPS = THREADS // WARP
_LOWEST = float("-inf")


@lane
def _best_after(logits, start, n, thread, value, index):
    """The best of a thread's logits that come after one of a value and an index, in order; from index -1 on, of all.

    Where there is none it is -inf at n, which is after all others; where one is NaN, -1.
    """
    value = np.float32(value)
    best, at = np.float32(_LOWEST), np.int32(n)
    for i in range(thread, n, THREADS):
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


@kernel("jfjjfiiii")
def best_tokens(inputs, logits, rows, ids, values, n, stride, k, is_whole):
    """The k best of n logits of each row: of all rows of the pass in turn, or of those that `rows` names.

    Of a row with a NaN the ids are -1.
    """
    t = cuda.blockIdx.x
    if is_whole and t >= inputs[N_ROWS]:
        return
    start = (t if is_whole else rows[t]) * stride
    best_of_warps = cuda.shared.array(_WARPS, np.float32)
    ids_of_warps = cuda.shared.array(_WARPS, np.int32)
    thread = cuda.threadIdx.x
    value, index = np.float32(0), np.int32(-1)
    for round_ in range(k):
        value, index = _best_after(logits, start, n, thread, value, index)
        value, index = warp_best(value, index)
        if thread % WARP == 0:
            best_of_warps[thread // WARP] = value
            ids_of_warps[thread // WARP] = index
        cuda.syncthreads()
        for warp in range(_WARPS):
            value, index = better(value, index, best_of_warps[warp], ids_of_warps[warp])
        cuda.syncthreads()
        if thread == 0:
            ids[t * k + round_] = index
            values[t * k + round_] = value
