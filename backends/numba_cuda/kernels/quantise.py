"""What products multiply with: 32 values of a token as signed bytes, a factor, and a sum of each half."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import div, half_warp_sum, lane, mul, nearest, together, warp_max

_SMALLEST = 1e-35  # 32 values whose largest is below this count as zero: the inverse of their factor would overflow


@lane
def _rounded(value, largest):
    """A value's byte, and the factor: 1/127 of the largest magnitude; NaN if that is."""
    value, largest = np.float32(value), np.float32(largest)
    most = np.float32(127)
    if largest < np.float32(_SMALLEST):
        return np.int32(0), np.float32(0)
    return nearest(mul(value, div(most, largest))), div(largest, most)


@together
def quantise(value, i, quantised, factors, sums, unit):
    """Store the values that a warp's lanes i hold as one unit."""
    byte, factor = _rounded(value, warp_max(abs(value)))
    quantised[32 * unit + i] = byte
    total = half_warp_sum(byte)
    if i % 16 == 0:
        sums[2 * unit + i // 16] = total
    if i == 0:
        factors[unit] = factor
