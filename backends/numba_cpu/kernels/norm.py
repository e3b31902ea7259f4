"""Norms of a row. `Weights.norm` writes the table of a norm."""

from __future__ import annotations

import math

import numpy as np

from augury.backends.numba_cpu.kernels.jit import helper
from augury.backends.numba_cpu.kernels.machine import load_part, part_of, store_part
from augury.backends.numba_cpu.kernels.simd import add, fma, mul, splat_f32, sub, sum_lanes, zero_f32
from augury.backends.numba_cpu.kernels.struct import pointer_maker, struct

_RUN = 256  # floats that are summed in float32


@struct
class NormTable:
    """The table of a norm."""

    weight: int  # float32, address
    bias: int  # likewise; 0: none
    eps: float
    is_centred: bool  # the mean is subtracted
    step: int  # floats from one head's weight to the next's


norm_at = pointer_maker(NormTable)


@helper
def mean_of(x, size):
    """The mean of `size` floats, summed as `inverse_deviation` does."""
    total = np.float64(0.0)
    for start in range(0, size, _RUN):
        sums = zero_f32()
        for index in range(start, min(start + _RUN, size), 16):
            sums = add(sums, load_part(x + 4 * index, size - index))
        total += np.float64(sum_lanes(sums))
    return np.float32(total / size)


@helper
def inverse_deviation(x, size, mean, eps):
    """1 / sqrt(mean((x - mean)^2) + eps) of `size` floats.

    Numerics: runs of 256 squares are summed in float32, 16 to a lane, the runs in float64.
    """
    total, middle = np.float64(0.0), splat_f32(mean)
    for start in range(0, size, _RUN):
        squares = zero_f32()
        for index in range(start, min(start + _RUN, size), 16):
            left = size - index
            value = part_of(sub(load_part(x + 4 * index, left), middle), left)
            squares = fma(value, value, squares)
        total += np.float64(sum_lanes(squares))
    return np.float32(1.0 / math.sqrt(total / size + eps))


@helper
def normalise(x, norm, out, size, head, added):
    """Out = (x - mean) / deviation * weight + bias, and, if that is not 0, the values at `added`; `out` may be either."""
    mean, table = np.float32(0), norm_at(norm)
    if table.is_centred != 0:
        mean = mean_of(x, size)
    middle, scale = splat_f32(mean), splat_f32(inverse_deviation(x, size, mean, table.eps))
    weight, bias = table.weight + 4 * head * table.step, table.bias
    for index in range(0, size, 16):
        left = size - index
        value = mul(sub(load_part(x + 4 * index, left), middle), scale)
        if added != 0:
            value = fma(value, load_part(weight + 4 * index, left), load_part(added + 4 * index, left))
        else:
            value = mul(value, load_part(weight + 4 * index, left))
        if bias != 0:
            value = add(value, load_part(bias + 4 * index, left))
        store_part(out + 4 * index, value, left)
