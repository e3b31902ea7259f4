"""The operands of products: 32 values of a token as signed bytes, a factor, the sum, and the sum of each half's bytes.

The bytes of a unit are eight words of four, which lie in the order 0, 4, 1, 5, 2, 6, 3, 7: the two that a lane gives to tensor
cores are neighbours. In a pass of few tokens the units of a token are neighbours; in one of more, the units of all tokens that
are multiplied with the same weights (`unit_of`).
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import cuda, half_warp_sums, lane, record, together, warp_barrier, warp_max
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS, MAX_TOKENS, N_TOKENS

TargetArgs = record("TargetArgs", f="floats factors sums", b="quantised", j="halves", i="width as_floats as_bytes")
"""Where rows go that products read, `width` values each: as floats, as units of bytes with factors and sums, or both."""
SEVERAL = 8  # units that a warp makes at once
_SMALLEST = 1e-35  # 32 values whose largest is below this count as zero: the inverse of their factor would overflow


@lane
def _scales(largest):
    """The multiplier of a unit's values, and the factor: 1/127 of the largest magnitude; NaN if that is."""
    largest, most = np.float32(largest), np.float32(127)
    if largest < np.float32(_SMALLEST):
        return np.float32(0), np.float32(0)
    return gpu.div(most, largest), gpu.div(largest, most)


@lane
def unit_among(n_apart, t, unit, n_units):
    """Where a unit of row t is among all: beside those of `n_apart` rows for the same weights, or if that is 0 of its row."""
    return unit * n_apart + t if n_apart else t * n_units + unit


@lane
def unit_of(inputs, t, unit, n_units):
    """Where a unit of a token's row is among all."""
    return unit * MAX_TOKENS + t if inputs[N_TOKENS] > FEW_TOKENS else t * n_units + unit


@lane
def _store_byte(byte, i, to, unit):
    word = i // 4
    to.quantised[32 * unit + 8 * (word % 4) + 4 * (word // 4) + i % 4] = byte


@lane
def _store_sums(of_half, of_all, factor, i, to, unit):
    if i % 16 == 0:
        to.halves[2 * unit + i // 16] = of_half
    if i == 0:
        to.factors[unit] = factor
        to.sums[unit] = gpu.mul(factor, np.float32(of_all))


@together
def quantise(value, i, to, unit):
    """Store the values that a warp's lanes i hold as one unit."""
    scale, factor = _scales(warp_max(abs(value)))
    byte = gpu.nearest(gpu.mul(value, scale))
    _store_byte(byte, i, to, unit)
    of_half, of_all = half_warp_sums(byte)
    _store_sums(of_half, of_all, factor, i, to, unit)


@lane
def _store_bytes(values, bytes_of_lane, i, to, unit, step, n, scales, at):
    for j in range(SEVERAL):
        bytes_of_lane[j] = gpu.nearest(gpu.mul(values[j], scales[at + j]))
        if j < n:
            _store_byte(bytes_of_lane[j], i, to, unit + j * step)


@together
def quantise_several(values, i, to, unit, step, n, scales, at):
    """The same of up to SEVERAL values, as n units that lie `step` apart: a warp waits for all of them at once.

    Its part of `scales`, which are shared, has room for twice as many numbers.
    """
    bytes_of_lane, mine = cuda.local.array(SEVERAL, np.int32), np.float32(0)
    for j in range(SEVERAL):
        most = warp_max(abs(values[j]))
        mine = most if i == j else mine
    warp_barrier()  # all threads have read the previously staged values
    if i < SEVERAL:  # a lane divides for one unit
        scales[at + i], scales[at + SEVERAL + i] = _scales(mine)
    warp_barrier()
    _store_bytes(values, bytes_of_lane, i, to, unit, step, n, scales, at)
    for j in range(SEVERAL):
        of_half, of_all = half_warp_sums(bytes_of_lane[j])
        if j < n:
            _store_sums(of_half, of_all, scales[at + SEVERAL + j], i, to, unit + j * step)


@together
def put(value, i, to, at, unit):
    """Store a lane's value as the float at a place, its warp's values as a unit, or both."""
    if to.as_floats:
        to.floats[at] = value
    if to.as_bytes:
        quantise(value, i, to, unit)
