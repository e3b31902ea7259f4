"""Activations → what the matrix kernels multiply with: one block of 32 columns of one token at a time."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.format import (
    ACTIVATION_BYTES,
    BLOCK,
    NEGATIVE_SUMS,
    SCALES,
    SUM,
)
from augury.backends.numba_cpu.kernels.jit import helper, kernel

_Q8_BYTES, _F32_BYTES = ACTIVATION_BYTES["q8_16"], ACTIVATION_BYTES["f32"]
_LARGEST = np.float32(127)
# A block whose largest magnitude is below this counts as zero: its inverse scale would overflow.
_SMALLEST = np.float32(1e-35)


@helper
def _round_half(x, to, negative_sum, to_scale):
    """Round 16 activations at x; returns the sum of what they became."""
    values = simd.load_f32(x)
    largest = simd.max_lanes(simd.absolute(values))
    inverse = np.float32(0)
    scale = np.float32(0)
    if largest >= _SMALLEST:
        inverse = _LARGEST / largest
        scale = largest / _LARGEST
    rounded = simd.to_i32(simd.mul(values, simd.splat_f32(inverse)))
    simd.store_i8(to, rounded)
    total = simd.sum_lanes_i32(rounded)
    simd.put_i32(negative_sum, -total)
    simd.put_f32(to_scale, scale)
    return scale * np.float32(total)


@kernel
def quantize_q8_16(x: int, out: int, n: int, k: int, i0: int, i1: int) -> None:
    """Round activations to signed bytes with one scale per 16, in 1/127 of the largest magnitude.

    Args:
        x: address of (n, k) float32; k is a multiple of 32.
        out: address of (k/32, n) records of 52 bytes, see `format.py`.
        n: tokens.
        k: columns.
        i0: first record, counted as `block * n + token`.
        i1: end of the records.
    """
    for i in range(i0, i1):
        block = i // n
        source = x + ((i - block * n) * k + block * BLOCK) * 4
        to = out + i * _Q8_BYTES
        first = _round_half(source, to, to + NEGATIVE_SUMS, to + SCALES)
        second = _round_half(source + 64, to + 16, to + NEGATIVE_SUMS + 4, to + SCALES + 4)
        simd.put_f32(to + SUM, first + second)


@kernel
def quantize_f32(x: int, out: int, n: int, k: int, i0: int, i1: int) -> None:
    """Copy float32 activations block by block, with zeros after the last column; arguments as `quantize_q8_16`, any k."""
    for i in range(i0, i1):
        block = i // n
        source = x + ((i - block * n) * k + block * BLOCK) * 4
        to = out + i * _F32_BYTES
        here = min(BLOCK, k - block * BLOCK)
        for j in range(here):
            simd.put_f32(to + 4 * j, simd.get_f32(source + 4 * j))
        for j in range(here, BLOCK):
            simd.put_f32(to + 4 * j, np.float32(0))
