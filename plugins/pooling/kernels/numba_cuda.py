"""Rows that are pooled of blocks of positions, see `augury.plugins.pooling.Pooling`.

Tokens' values to be pooled are stored cell by cell: values, then weights. A pooled row is stored by the cell of the last token
of its block, so that the rows of a tree's branches are apart, and move with their tokens.
"""

from __future__ import annotations

import numpy as np

from augury.backend import numba_cuda as gpu
from augury.backend.numba_cuda import cuda


@gpu.kernel("jffff" + 7 * "i")
def keep_to_pool(inputs, values, weights, places, kept, stride, weight_stride, n_kept, n_values, size, length, has_places):
    """Keep a token's values and weights, with the bias of its place in a block; a thread for each number.

    Args:
        inputs: The inputs of the pass.
        values, weights: (n, stride) and (n, weight_stride).
        places: (size, n_values).
        kept: (slots, length, n_kept).
    """
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * gpu.THREADS + cuda.threadIdx.x
    if t >= inputs[gpu.N_TOKENS] or i >= n_kept:
        return
    if i < n_values:
        value = values[t * stride + i]
    else:
        value = weights[t * weight_stride + i - n_values]
        if has_places:
            value = gpu.add(value, places[gpu.remainder(inputs[gpu.POSITIONS + t], size) * n_values + i - n_values])
    kept[(inputs[gpu.SLOTS + t] * length + inputs[gpu.CELLS + t]) * n_kept + i] = value


@gpu.lane
def _place(inputs, t, base, position, n_kept, end, size, own):
    """Where a position's values begin: for positions before the last `size` the first halves, else from `own` on."""
    at = (base + gpu.cell_of(inputs, t, position)) * n_kept
    return at + own if position > end - size else at


@gpu.lane
def _pooled(inputs, t, kept, base, n_kept, n_values, width, size, first, end, has_weights, i):
    """Value i of the row of some positions, weighed by softmax, or alike."""
    own, top, total, value = n_values - width, np.float32(-3e38), np.float32(0), np.float32(0)
    if has_weights:
        for position in range(first, end + 1):
            at = _place(inputs, t, base, position, n_kept, end, size, own) + i
            top = gpu.larger(top, kept[at + n_values])
    for position in range(first, end + 1):
        at = _place(inputs, t, base, position, n_kept, end, size, own) + i
        weight = gpu.exp(gpu.add(kept[at + n_values], -top)) if has_weights else np.float32(1)
        total, value = gpu.add(total, weight), gpu.fma(kept[at], weight, value)
    return gpu.div(value, total)


@gpu.kernel("jff" + 7 * "i")
def pool(inputs, kept, out, n_kept, width, size, length, stride, overlaps, has_weights):
    """Pool the blocks that tokens end; of others 0. A thread takes a value.

    Args:
        inputs: The inputs of the pass.
        kept: See `keep_to_pool`.
        out: (n, stride), of `width` values.
    """
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * gpu.WARP + cuda.threadIdx.x
    if t >= inputs[gpu.N_TOKENS] or i >= width:
        return
    end, value = inputs[gpu.POSITIONS + t], np.float32(0)
    if gpu.remainder(end + 1, size) == 0:
        first, n_values = end + 1 - size, width
        if overlaps:
            first, n_values = max(0, first - size), 2 * width
        base = inputs[gpu.SLOTS + t] * length
        value = _pooled(inputs, t, kept, base, n_kept, n_values, width, size, first, end, has_weights, i)
    out[t * stride + i] = value
