"""The root mean square norm of rows, one block each, and their quantisation."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import (
    THREADS,
    WARP,
    add,
    cuda,
    div,
    fma,
    kernel,
    lane,
    mul,
    root,
    together,
    warp_sum,
)
from augury.backends.numba_cuda.kernels.inputs import N_ROWS, N_TOKENS, ROWS
from augury.backends.numba_cuda.kernels.quantise import quantise

_WARPS = THREADS // WARP


@lane
def squares(x, start, size, first, step):
    """The sum of the squares of every `step`-th value of a row, from the `first` on."""
    total = np.float32(0)
    for i in range(start + first, start + size, step):
        total = fma(x[i], x[i], total)
    return total


@lane
def inverse_root(total, size, eps):
    """1 / sqrt(total / size + eps)."""
    mean = div(np.float32(total), np.float32(size))
    return div(np.float32(1), root(add(mean, np.float32(eps))))


@lane
def _value(x, weight, start, i, size, inverse):
    return mul(mul(x[start + i], np.float32(inverse)), weight[i]) if i < size else np.float32(0)


@together
def sum_of_block(value, parts):
    """The sum of all threads' values: over warps, in order, of sums over their lanes."""
    i = cuda.threadIdx.x
    value = warp_sum(value)
    if i % WARP == 0:
        parts[i // WARP] = value
    cuda.syncthreads()
    total = parts[0]
    for warp in range(1, cuda.blockDim.x // WARP):
        total = add(total, parts[warp])
    return total


@kernel("jfffbfjiiiiir")
def norm_rows(inputs, x, weight, out, quantised, factors, sums, size, width, is_output, as_floats, as_bytes, eps):
    """Norm row t of x (n, size): x / sqrt(mean(x^2) + eps) * weight, as floats (n, width), as units, or both.

    Of the output it is row t of those that have logits. What is beyond `size` is 0.
    """
    t = cuda.blockIdx.x
    if t >= (inputs[N_ROWS] if is_output else inputs[N_TOKENS]):
        return
    start = (inputs[ROWS + t] if is_output else t) * size
    parts = cuda.shared.array(_WARPS, np.float32)
    thread = cuda.threadIdx.x
    total = sum_of_block(squares(x, start, size, thread, THREADS), parts)
    inverse = inverse_root(total, size, eps)
    i = thread % WARP
    for unit in range(thread // WARP, width // WARP, _WARPS):
        value = _value(x, weight, start, WARP * unit + i, size, inverse)
        if as_floats:
            out[t * width + WARP * unit + i] = value
        if as_bytes:
            quantise(value, i, quantised, factors, sums, t * (width // WARP) + unit)
