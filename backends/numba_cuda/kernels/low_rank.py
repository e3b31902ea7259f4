"""What adapters add to products of a matrix: rows of low rank times the scales of each token's slot, then back to full width.

A row is one sum of a warp, and every value takes the rows in their order, so both have the same bits beside any others.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane, record, warp_sum
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, SLOTS

LowRankArgs = record(
    "LowRankArgs", f="x y down up low scales", j="adapters", i="x_stride y_stride n_in n_out n_ranks n_adapters"
)
"""Rows x (n, x_stride) and products y (n, y_stride); `down` (R, n_in), `up` (R, n_out), and `low` (n, R) between them.

Row r has the scale of adapter `adapters[r]`, which is in `scales` (slots, n_adapters).
"""


@lane
def _scale_of(inputs, t, rank, params):
    """How much a row counts for a token."""
    return params.scales[inputs[SLOTS + t] * params.n_adapters + params.adapters[rank]]


@kernel("j", LowRankArgs)
def low_rank_down(inputs, params):
    """Low = scale * (down x); a warp takes a row."""
    i, rank, t = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
    if t >= inputs[N_TOKENS]:
        return
    scale, total = _scale_of(inputs, t, rank, params), np.float32(0)
    if scale == np.float32(0):
        return
    for k in range(i, params.n_in, WARP):
        total = gpu.fma(params.x[t * params.x_stride + k], params.down[rank * params.n_in + k], total)
    total = warp_sum(total)
    if i == 0:
        params.low[t * params.n_ranks + rank] = gpu.mul(scale, total)


@kernel("j", LowRankArgs)
def low_rank_up(inputs, params):
    """Y += low up; a thread takes a value."""
    c, t = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, cuda.blockIdx.y
    if t >= inputs[N_TOKENS] or c >= params.n_out:
        return
    value = params.y[t * params.y_stride + c]
    for rank in range(params.n_ranks):
        if _scale_of(inputs, t, rank, params) != np.float32(0):
            value = gpu.fma(params.low[t * params.n_ranks + rank], params.up[rank * params.n_out + c], value)
    params.y[t * params.y_stride + c] = value
