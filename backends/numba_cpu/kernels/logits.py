"""Rows of logits: they are capped, and sampling asks for a row's best token, its best k, the sum of its exponentials.

A row is read once, 64 logits at a step; most steps hold nothing of interest, which one comparison tells.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import hyperbolic_tangent
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, load_part, put_f64, store_part
from augury.backends.numba_cpu.kernels.step import Entry
from augury.backends.numba_cpu.kernels.struct import pointer_to, struct
from augury.backends.numba_cpu.kernels.team import N_ROWS, Record

MAX_BEST = 128  # tokens that `best` may look for: it keeps them sorted, inserting one by one
SUMS_BYTES = 128  # scratch of `sum_exponentials`

_STEP = 64  # logits that are looked at together
_RUN = 1024  # logits that a thread caps at once
_LANES = 16
_MANY = ir.VectorType(simd.F32, _STEP)
_F32S, _F64S, _I64S = (ir.VectorType(kind, _LANES) for kind in (simd.F32, ir.DoubleType(), simd.I64))
_LOG2_E = 1.4426950408889634
_LN2 = (0.6931471803691238, 1.9082149292705877e-10)  # in two parts: products of the first with exponents are exact
_LOWEST = -700.0  # the exponential of less is nothing beside that of the largest logit, which is 1
_DEGREE = 13  # of the exponential's series: for |x| <= ln(2)/2 the next term is below 1e-17


def _not_at_most(b: ir.IRBuilder, address: ir.Value, limit: ir.Value) -> ir.Value:
    """Return a bit for each of 64 floats that is above the limit, or not a number."""
    is_wanted = b.fcmp_unordered(">", simd.load(b, address, _MANY), simd.splat(b, limit, _MANY))
    return b.bitcast(is_wanted, simd.I64)


def _add_exponentials(b: ir.IRBuilder, address: ir.Value, count: ir.Value, largest: ir.Value, sums: ir.Value) -> None:
    """Add exp(x - largest) of up to 16 floats to sums (16,) float64."""
    is_there = b.icmp_signed("<", ir.Constant(_I64S, list(range(_LANES))), simd.splat(b, count, _I64S))
    arguments = (simd.pointer(b, address, _F32S), ir.Constant(simd.I32, 1), is_there, ir.Constant(_F32S, None))
    x = b.fpext(simd.call(b, "llvm.masked.load.v16f32.p0", _F32S, *arguments), _F64S)
    x, lowest = b.fsub(x, simd.splat(b, largest, _F64S)), simd.constant(_F64S, _LOWEST)
    x = b.select(b.fcmp_ordered("<", x, lowest), lowest, x)
    n = simd.call(b, "llvm.rint.v16f64", _F64S, b.fmul(x, simd.constant(_F64S, _LOG2_E)))
    for part in _LN2:
        x = simd.call(b, "llvm.fma.v16f64", _F64S, n, simd.constant(_F64S, -part), x)
    value: ir.Value = simd.constant(_F64S, 1 / math.factorial(_DEGREE))
    for power in reversed(range(_DEGREE)):
        value = simd.call(b, "llvm.fma.v16f64", _F64S, value, x, simd.constant(_F64S, 1 / math.factorial(power)))
    power_of_two = b.shl(b.add(b.fptosi(n, _I64S), simd.constant(_I64S, 1023)), simd.constant(_I64S, 52))
    value = b.fmul(value, b.bitcast(power_of_two, _F64S))
    value = b.select(is_there, value, ir.Constant(_F64S, None))
    simd.store(b, sums, b.fadd(simd.load(b, sums, _F64S), value))


def _lowest_bit(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    return simd.call(b, "llvm.cttz.i64", simd.I64, bits, ir.Constant(simd.I1, 0))


not_at_most = simd.operation("not_at_most", types.int64, (types.int64, types.float32), _not_at_most)
lowest_bit = simd.operation("lowest_bit", types.int64, (types.int64,), _lowest_bit)
add_exponentials = simd.operation(
    "add_exponentials", types.void, (types.int64, types.int64, types.float64, types.int64), _add_exponentials
)


@helper
def wanted(row, index, n, limit):
    """A bit for each of the 64 logits from `index` on that is above the limit, or not a number."""
    if index + _STEP <= n:
        return not_at_most(row + 4 * index, limit)
    bits = 0
    for i in range(index, n):
        if not simd.get_f32(row + 4 * i) <= limit:
            bits |= 1 << (i - index)
    return bits


@kernel
def argmax(logits, width, n_rows, n, out):
    """Find the best token of each row; of equals the lowest id, -1 where a logit is NaN or the best is infinite.

    Args:
        logits: address of rows of float32.
        width: floats from one row to the next.
        n_rows: how many rows.
        n: logits of a row, at least one.
        out: address of (n_rows,) int32.
    """
    for r in range(n_rows):
        row = logits + 4 * r * width
        best, at_best = simd.get_f32(row), 0
        index = 0
        while index < n and not math.isnan(best):
            bits = wanted(row, index, n, best)
            while bits != 0:
                i = index + lowest_bit(bits)
                value = simd.get_f32(row + 4 * i)
                if not value <= best:
                    best, at_best = value, i
                    if math.isnan(value):
                        break
                bits &= bits - 1
            index += _STEP
        simd.put_i32(out + 4 * r, np.int32(at_best if math.isfinite(best) else -1))


@helper
def insert(ids, values, n_kept, k, token, value):
    """Insert a token after the tokens that are at least as good; of k tokens the last falls off. Returns how many there are."""
    place = n_kept
    if n_kept == k:
        place -= 1
    while place > 0 and simd.get_f32(values + 4 * (place - 1)) < value:
        if place < k:
            simd.put_f32(values + 4 * place, simd.get_f32(values + 4 * (place - 1)))
            simd.put_i32(ids + 4 * place, simd.get_i32(ids + 4 * (place - 1)))
        place -= 1
    simd.put_f32(values + 4 * place, value)
    simd.put_i32(ids + 4 * place, np.int32(token))
    return min(n_kept + 1, k)


@helper
def best_of_row(row, n, k, ids, values):
    """Find the k best tokens of one row; see `best`."""
    odd = False
    n_kept = index = 0
    while index < k and not odd:
        value = simd.get_f32(row + 4 * index)
        odd = math.isnan(value)
        n_kept = insert(ids, values, n_kept, k, index, value)
        index += 1
    worst = simd.get_f32(values + 4 * (k - 1))
    while index < n and not odd:
        bits = wanted(row, index, n, worst)
        while bits != 0:
            i = index + lowest_bit(bits)
            bits &= bits - 1
            value = simd.get_f32(row + 4 * i)
            if math.isnan(value):
                odd = True
                break
            if value > worst:
                insert(ids, values, k, k, i, value)
                worst = simd.get_f32(values + 4 * (k - 1))
        index += _STEP
    if odd:
        for place in range(k):
            simd.put_i32(ids + 4 * place, np.int32(-1))
            simd.put_f32(values + 4 * place, np.float32(math.nan))


@kernel
def best(logits, width, rows, n_rows, n, k, ids, values):
    """Find the k best tokens of some rows, best first, equals by rising id; -1 and NaN of a row that holds a NaN.

    Args:
        logits: address of rows of float32.
        width: floats from one row to the next.
        rows: address of (n_rows,) int64, which ones.
        n_rows: how many rows.
        n: logits of a row, at least k.
        k: 1 to MAX_BEST.
        ids: address of (n_rows, k) int32.
        values: address of (n_rows, k) float32.
    """
    for r in range(n_rows):
        best_of_row(logits + 4 * simd.get_i64(rows + 8 * r) * width, n, k, ids + 4 * r * k, values + 4 * r * k)


@kernel
def sum_exponentials(row, n, largest, sums, out):
    """Sum exp(logit - largest) over a row, into a float64 at `out`.

    Args:
        row: address of (n,) float32.
        n: logits.
        largest: address of the largest logit, float32, a finite number.
        sums: address of SUMS_BYTES of scratch.
        out: address of the result.

    Numerics: exponentials in float64, relative error below 1e-15, added in 16 lanes and then lane by lane.
    """
    for lane in range(_LANES):
        put_f64(sums + 8 * lane, 0.0)
    for index in range(0, n, _LANES):
        add_exponentials(row + 4 * index, n - index, np.float64(simd.get_f32(largest)), sums)
    total = 0.0
    for lane in range(_LANES):
        total += get_f64(sums + 8 * lane)
    put_f64(out, total)


@struct
class CapLogits(Record):
    entry: Any = pointer_to(Entry)  # of the matrix that made them; the first field, as of `Multiply`
    cap: float


@kernel(record=CapLogits)
def cap_logits(record, state, thread, n_threads):
    """Logits l → cap * tanh(l / cap)."""
    entry, cap = record.entry, record.cap
    top, inverse = simd.splat_f32(np.float32(cap)), simd.splat_f32(np.float32(1 / cap))
    y, ld, size = entry.y, entry.ldy, entry.n_rows
    n_runs = (size + _RUN - 1) // _RUN
    n_items = simd.get_i64(state + N_ROWS) * n_runs
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        row, start = y + 4 * (item // n_runs) * ld, item % n_runs * _RUN
        for i in range(start, min(start + _RUN, size), 16):
            left = size - i
            store_part(row + 4 * i, simd.mul(hyperbolic_tangent(simd.mul(load_part(row + 4 * i, left), inverse)), top), left)
