"""Root-mean-square norm of a row."""

from __future__ import annotations

import math

import numpy as np

from augury.backends.numba_cpu.kernels.jit import helper
from augury.backends.numba_cpu.kernels.machine import load_part, store_part
from augury.backends.numba_cpu.kernels.simd import fma, mul, splat_f32, sum_lanes, zero_f32


@helper
def inverse_rms(x, size, eps):
    """1 / sqrt(mean(x^2) + eps) of `size` floats.

    Numerics: runs of 256 squares are summed in float32, 16 to a lane, the runs in float64.
    """
    total = np.float64(0.0)
    for start in range(0, size, 256):
        squares = zero_f32()
        for index in range(start, min(start + 256, size), 16):
            value = load_part(x + 4 * index, size - index)
            squares = fma(value, value, squares)
        total += np.float64(sum_lanes(squares))
    return splat_f32(np.float32(1.0 / math.sqrt(total / size + eps)))


@helper
def normalise(x, weight, out, size, eps):
    """Out = x * inverse_rms(x) * weight; `out` may be `x`."""
    scale = inverse_rms(x, size, eps)
    for index in range(0, size, 16):
        left = size - index
        value = mul(mul(load_part(x + 4 * index, left), scale), load_part(weight + 4 * index, left))
        store_part(out + 4 * index, value, left)
