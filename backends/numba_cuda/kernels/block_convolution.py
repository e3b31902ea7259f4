"""Convolutions over the tokens of a drafted block, with weights of each token's own.

Source: DFlash2, as llama.cpp computes it (`src/models/dflash.cpp`).
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, SLOTS
from augury.backends.numba_cuda.kernels.quantise import TargetArgs, put, unit_of


@lane
def _before(inputs, t):
    """The token of the same slot before token t of a pass, or -1."""
    before = t - 1
    while before >= 0 and inputs[SLOTS + before] != inputs[SLOTS + t]:
        before -= 1
    return before


@lane
def _convolved(inputs, x, weights, base, t, i, x_stride, at, size, group, n_taps):
    """Value i of token t, whose weights begin at a place; 0 beyond `size`."""
    total = np.float32(0)
    if i >= size:
        return total
    n_groups, of, tap = gpu.quotient(size, group), t, 0
    at += gpu.quotient(i, group)
    while tap < n_taps and of >= 0:
        total = gpu.fma(gpu.add(base[tap * size + i], weights[at + tap * n_groups]), x[of * x_stride + i], total)
        of, tap = _before(inputs, of), tap + 1
    return total


@kernel("jfffiiiii", TargetArgs)
def convolve_block(inputs, x, weights, base, x_stride, weights_stride, size, group, n_taps, to):
    """Out[t] = the sum over taps j of (base[j] + weights[t, j]) * x of the j-th token before t; a warp takes 32 values.

    Values beyond `size` are 0.

    Args:
        inputs: The inputs of the pass.
        x: (n, x_stride); before the first token that the pass has of a slot there are none.
        weights: (n, weights_stride), each beginning with (n_taps, size / group), each of `group` neighbouring values.
        base: (n_taps, size).
        to: See `TargetArgs`.
    """
    t = cuda.blockIdx.y
    if t >= inputs[N_TOKENS]:
        return
    thread = cuda.threadIdx.x
    unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
    if WARP * unit >= size:
        return
    i = WARP * unit + thread % WARP
    value = _convolved(inputs, x, weights, base, t, i, x_stride, t * weights_stride, size, group, n_taps)
    put(value, thread % WARP, to, t * to.width + i, unit_of(inputs, t, unit, to.width // WARP))
