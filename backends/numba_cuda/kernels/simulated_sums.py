"""How the tensor cores of an H100 and an H200 add products of halves, to the bit, for the simulator.

The products and the number that they are added to are brought to the largest of their exponents, cut off two bits below the
last one of a float32 there, and added without error. The sum is cut off, not rounded, to a float32. Products that are 0 do not
count, so a sum depends on nothing but its own other products, in any order. Older generations add fewer at once, with fewer
bits.

Source: Khattak and Mikaitis 2025, "Accurate Models of NVIDIA Tensor Cores" (arXiv 2512.07004), and the results of both GPUs
that are published with it, of which tests/data/tensor_cores.npz has some.
"""

from __future__ import annotations

from math import inf, ldexp, nan

import numpy as np

from augury.backends.numba_cuda.kernels.instructions import lane

_N_CUT = 2  # bits that are kept below those of a float32
_LEAST = -133  # of the exponents that terms are brought to
_NONE = -1000  # in place of the exponent of 0


@lane
def _parts_of(number, n_bits, n_exponent, sign):
    """The whole number and the exponent of the first of its bits that a float of so many bits is made of."""
    exponent, mantissa = number >> n_bits & (1 << n_exponent) - 1, number & (1 << n_bits) - 1
    whole = np.int64(mantissa | (1 << n_bits if exponent else 0))
    return -whole if number >> sign & 1 else whole, np.int64(max(exponent, 1) - (1 << n_exponent - 1) + 1)


@lane
def add_products(first, second, sums):
    """Add the products of two matrices to numbers.

    Args:
        first: (16, 16) uint16, halves.
        second: (16, 8) uint16, halves.
        sums: (16, 8) float32.

    Returns:
        (16, 8) float32.
    """
    whole, exponents = np.empty(17, np.int64), np.empty(17, np.int64)
    before, after = sums.view(np.uint32), np.empty((16, 8), np.float32)
    for row in range(16):
        for column in range(8):
            number, top, special = np.int64(before[row, column]), np.int64(_LEAST), 0.0
            whole[16], exponents[16] = _parts_of(number, 23, 8, 31)
            whole[16] <<= _N_CUT
            if number >> 23 & 255 == 255:
                special += sums[row, column]
            for k in range(16):
                a, b = np.int64(first[row, k]), np.int64(second[k, column])
                (x, x_exponent), (y, y_exponent) = _parts_of(a, 10, 5, 15), _parts_of(b, 10, 5, 15)
                whole[k], exponents[k] = x * y << 3 + _N_CUT, x_exponent + y_exponent
                if a >> 10 & 31 == 31 or b >> 10 & 31 == 31:
                    special += _special(a, x) * _special(b, y)
            for k in range(17):
                if whole[k] == 0:
                    exponents[k] = _NONE
                top = max(top, exponents[k])
            total = np.int64(0)
            for k in range(17):
                n_cut = min(top - exponents[k], 62)
                total += whole[k] >> n_cut if whole[k] > 0 else -(-whole[k] >> n_cut)
            after[row, column] = _cut_off(total, top - 23 - _N_CUT) if special == 0 else special
    return after


@lane
def _special(half, whole):
    """A number of the kind that a half is: infinite, none, or finite of its sign."""
    if half >> 10 & 31 < 31:
        return float(whole)
    return nan if half & 1023 else -inf if half >> 15 else inf


@lane
def _cut_off(total, exponent):
    """A whole number times a power of two, without the bits that a float32 does not have."""
    n_cut = np.int64(max(0, -149 - exponent))
    while abs(total) >> n_cut >= 1 << 24:
        n_cut += 1
    cut = abs(total) >> n_cut << n_cut
    return np.float32(ldexp(float(cut if total > 0 else -cut), exponent))
