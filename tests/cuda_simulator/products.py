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
from cuda_simulator.grid import WARP, meet
from cuda_simulator.lanes import lane

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


def mma32(a, b, c, d, p, q):
    """Products of a 16 x 32 and a 32 x 8 matrix of signed bytes by `mma.m16n8k32`, whose fragments the lanes hold."""
    return meet((a, b, c, d, p, q), _products)


def mma16(a, b, p):
    """The same of 16 x 16 and 16 x 8, by `mma.m16n8k16`."""
    return meet((a, b, p), _products)


def mma_halves(a, b, c, d, p, q, *sums):
    """Four floats, with the added products of 16 x 16 and 16 x 8 halves, by `mma.m16n8k16` of compute capability 9.0."""
    return meet(((a, b, c, d, p, q), sums), _added)


def added_in_turn(values):
    w, x, sums = (np.array(each) for each in zip(*values, strict=True))
    for k in range(4):
        held = np.concatenate([w[:, 4 * k : 4 * k + 4], x[:, 2 * k : 2 * k + 2]], axis=1)
        sums = _added(list(zip(held, sums, strict=True)))
    return sums


def _added(values):
    held, sums = zip(*values, strict=True)
    first, second = _matrices(np.array(held, np.uint32).view(np.uint16), 2)
    sums = np.array(sums, np.float32).reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)
    return [*map(tuple, _to_lanes(add_products(first, second, sums)))]


def _products(values):
    first, second = _matrices(np.array(values, np.uint32).view(np.int8).astype(np.int32), 4)
    return [*map(tuple, _to_lanes(first @ second).tolist())]


def _matrices(held, m):
    """Both matrices by the PTX ISA, of the lanes' words of m = 4 bytes or 2 halves, held (32, words * m).

    Lane 4 g + i has rows g and g + 8 of the first matrix, columns m i to m i + m - 1 and those 4 m further on, and of the
    second one column g and such rows.
    """
    held = held.reshape(8, 4, -1, m)
    n = held.shape[2] // 3  # times 4 m columns
    first = held[:, :, : 2 * n].reshape(8, 4, n, 2, m).transpose(3, 0, 2, 1, 4).reshape(16, 4 * m * n)
    return first, held[:, :, 2 * n :].transpose(2, 1, 3, 0).reshape(4 * m * n, 8)


def _to_lanes(product):
    """What the lanes have of a (16, 8) product: lane 4 g + i rows g and g + 8, columns 2 i and 2 i + 1."""
    return product.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(WARP, 4)
