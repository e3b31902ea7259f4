"""Activations → the operands of the matrix kernels: one block of 32 columns of one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.format import ACTIVATION_BYTES, BLOCK, NEGATIVE_SUMS, SCALES, SUM
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.simd import F32, F32X16, I8, I32, I32X16, at, i64, void

_Q8_BYTES, _F32_BYTES = ACTIVATION_BYTES["q8_16"], ACTIVATION_BYTES["f32"]
_LANES = 16
_LARGEST = 127.0
# Sixteen activations whose largest magnitude is below this count as zero: their inverse scale would overflow.
_SMALLEST = 1e-35


def _lanes(b: ir.IRBuilder, first: ir.Value, second: ir.Value, lanes: Sequence[int]) -> ir.Value:
    return b.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def _reduce_both(b: ir.IRBuilder, vectors: Sequence[ir.Value], combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Reduce two vectors of 16 lanes together, each to one lane of the result."""
    half = _LANES // 2
    low, high = ([*range(start, start + half), *range(start + _LANES, start + _LANES + half)] for start in (0, half))
    both = combine(_lanes(b, *vectors, low), _lanes(b, *vectors, high))
    for step in (4, 2, 1):
        both = combine(both, _lanes(b, both, both, [lane ^ step for lane in range(_LANES)]))
    return _lanes(b, both, both, (0, half))


def _emit_round(b: ir.IRBuilder, x: ir.Value, to: ir.Value) -> None:
    pair = ir.VectorType(F32, 2)
    values = [simd.load(b, at(b, x, 4 * _LANES * half), F32X16) for half in range(2)]
    # as whole numbers, which are in the order of the magnitudes, and NaN above all
    magnitudes = [b.bitcast(simd.call(b, "llvm.fabs.v16f32", F32X16, value), I32X16) for value in values]
    largest = b.bitcast(_reduce_both(b, magnitudes, lambda p, q: b.select(b.icmp_signed(">", p, q), p, q)), pair)
    limit = simd.constant(pair, _LARGEST)
    ratios = b.fdiv(_lanes(b, limit, largest, range(4)), _lanes(b, largest, limit, range(4)))  # two inverses, two scales
    is_large = b.fcmp_ordered(">=", largest, simd.constant(pair, _SMALLEST))
    is_odd = b.fcmp_unordered(">=", largest, simd.constant(pair, _SMALLEST))  # or NaN: as a scale it says so in every product
    ratios = b.select(_lanes(b, is_large, is_odd, range(4)), ratios, ir.Constant(ratios.type, None))
    rounded = []
    for half, value in enumerate(values):
        scaled = b.fmul(value, _lanes(b, ratios, ratios, [half] * _LANES))
        rounded.append(b.fptosi(simd.call(b, "llvm.rint.v16f32", F32X16, scaled), I32X16))
        simd.store(b, at(b, to, _LANES * half), b.trunc(rounded[-1], ir.VectorType(I8, _LANES)))
    sums, scales = _reduce_both(b, rounded, b.add), _lanes(b, ratios, ratios, (2, 3))
    simd.store(b, at(b, to, NEGATIVE_SUMS), b.neg(sums))
    simd.store(b, at(b, to, SCALES), scales)
    scaled = b.fmul(scales, b.sitofp(sums, pair))
    simd.store(b, at(b, to, SUM), b.fadd(*(b.extract_element(scaled, ir.Constant(I32, half)) for half in range(2))))


_round = simd.operation("round_block", void, (i64, i64), _emit_round)  # 32 activations → a record


@kernel
def quantize_q8_16(x: int, out: int, n: int, k: int, i0: int, i1: int) -> None:
    """Round activations to signed bytes with one scale per 16, in 1/127 of the largest magnitude; NaN where one is NaN.

    Args:
        x: address of (n, k) float32; k is a multiple of 32.
        out: address of (k/32, n) records of 52 bytes, see `format.py`.
        n: tokens.
        k: columns.
        i0: first record, counted as `block * n + token`.
        i1: end of the records.
    """
    block = i0 // n
    token = i0 - block * n
    for i in range(i0, i1):
        _round(x + (token * k + block * BLOCK) * 4, out + i * _Q8_BYTES)
        token += 1
        if token == n:
            block, token = block + 1, 0


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
