"""Rows of logits: computed in blocks; sampling asks for a row's best token, its best k, the sum of its exponentials.

Rows of a large vocabulary have left the caches when they are read. The largest logit of each block is therefore noted while the
block is in the nearest cache, and the best tokens are found by reading these and a few blocks, 64 logits at a step. Most steps
hold nothing of interest, which one comparison tells.
"""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import capped
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.simd import get_f64, invoke, put_f64
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, Entry, claim, multiply_run
from augury.backends.numba_cpu.kernels.struct import pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record

BLOCK = 256  # tokens: whole panels, as many as the kernels of tiles multiply in turns
MAX_BEST = 128  # tokens that `best` may look for: it keeps them sorted, inserting one by one
SUMS_BYTES = 128  # scratch of `sum_exponentials`

_STEP = 64  # logits that are looked at together
_BLOCK_PANELS = BLOCK // PANEL_ROWS
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


def _largest(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Return the largest of the floats of a block; NaN if one is."""
    places = [b.add(address, ir.Constant(simd.I64, 4 * i)) for i in range(0, BLOCK, _LANES)]
    vectors = [simd.load(b, place, simd.F32X16) for place in places]
    odd = [b.fcmp_unordered("uno", x, y) for x, y in zip(vectors[::2], vectors[1::2], strict=True)]  # whether either is NaN
    is_odd = b.icmp_unsigned("!=", b.bitcast(reduce(b.or_, odd), simd.I16), ir.Constant(simd.I16, 0))
    larger = partial(simd.emit_maximum, b)
    return b.select(is_odd, ir.Constant(simd.F32, math.nan), simd.emit_tree(b, reduce(larger, vectors), larger))


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
largest_of_block = simd.operation("largest_of_block", types.float32, (types.int64,), _largest)
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
def insert_best(row, first, end, n_kept, k, ids, values):
    """Insert the tokens of a part of a row that are among the k best. Returns how many there are, or -1 if a logit is NaN."""
    worst = np.float32(math.nan)  # of k tokens; all are wanted while there are fewer
    if n_kept == k:
        worst = simd.get_f32(values + 4 * (k - 1))
    for index in range(first, end, _STEP):
        bits = wanted(row, index, end, worst)
        while bits != 0:
            i = index + lowest_bit(bits)
            bits &= bits - 1
            value = simd.get_f32(row + 4 * i)
            if math.isnan(value):
                return -1
            if not value <= worst:
                n_kept = insert(ids, values, n_kept, k, i, value)
                if n_kept == k:
                    worst = simd.get_f32(values + 4 * (k - 1))
    return n_kept


@helper
def best_of_row(row, maxima, n, k, ids, values):
    """Find the k best tokens of one row; see `best`. Blocks that do not reach the k-th best of the maxima have none of them."""
    least, n_kept, n_blocks = np.float32(-math.inf), 0, n // BLOCK
    part, first, end = row, 0, min(BLOCK, n)
    if n_blocks > k:
        part, end = maxima, n_blocks
    while first < n and n_kept >= 0:  # first the maxima, then blocks: a loop, so that `insert_best` is compiled once
        # The maximum of a block that ends beyond n is also that of other tokens, if there is one.
        if part == maxima or end < first + BLOCK or not simd.get_f32(maxima + 4 * (first // BLOCK)) < least:
            n_kept = insert_best(part, first, end, n_kept, k, ids, values)
        first += BLOCK
        if part == maxima and n_kept > 0:
            least = simd.get_f32(values + 4 * (k - 1))
            for i in range(k):  # all blocks at once: one after the other they would be waited for
                block = row + 4 * BLOCK * simd.get_i32(ids + 4 * i)
                for line in range(0, 4 * BLOCK, 64):
                    simd.prefetch(block + line)
            part, first, n_kept = row, 0, 0
        end = min(first + BLOCK, n)
    if n_kept < 0:
        for place in range(k):
            simd.put_i32(ids + 4 * place, np.int32(-1))
            simd.put_f32(values + 4 * place, np.float32(math.nan))


@kernel
def best(logits, maxima, stride, rows, n_rows, n, k, ids, values):
    """Find the k best tokens of some rows, best first, equals by rising id; -1 and NaN of a row that holds a NaN.

    Args:
        logits: address of rows of float32.
        maxima: address of the largest logits of each row's whole blocks, NaN where one is NaN.
        stride: floats from one row to the next, of both.
        rows: address of (n_rows,) int64, which ones; 0: all, and from a row whose best logit is infinite -1 is chosen.
        n_rows: how many rows.
        n: logits of a row, at least k.
        k: 1 to MAX_BEST.
        ids: address of (n_rows, k) int32.
        values: address of (n_rows, k) float32.
    """
    for r in range(n_rows):
        row, to = r, 4 * r * k
        if rows != 0:
            row = simd.get_i64(rows + 8 * r)
        best_of_row(logits + 4 * row * stride, maxima + 4 * row * stride, n, k, ids + to, values + to)
        if rows == 0 and not math.isfinite(simd.get_f32(values + to)):
            simd.put_i32(ids + to, np.int32(-1))


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
class MultiplyLogits(Record):
    entries: Any = pointer_to(Entry)  # runs of panels of the output matrix, whose logits follow one another
    n_panels: int  # of all runs
    width: int  # floats from the beginning of a row to the largest of its blocks
    cap_logits: int  # address of the kernel; 0: they are not capped
    cap: float


@kernel(record=MultiplyLogits)
def cap_logits(record, logits, stride, n_rows, n):
    """Logits l → cap * tanh(l / cap), n of each row."""
    cap = record.cap
    for r in range(n_rows):
        for i in range(0, n, _LANES):
            place = logits + 4 * (r * stride + i)
            simd.store_f32(place, capped(simd.load_f32(place), cap))


@kernel(record=MultiplyLogits)
def multiply_logits(record, state, thread, n_threads):
    """Logits = W x (+ bias), capped, in blocks; the largest of each whole block goes to the end of its row."""
    entries, n_panels, maxima, cap = record.entries, record.n_panels, 4 * record.width, record.cap_logits
    logits, stride = entries.y + 4 * PANEL_ROWS * entries.first, entries.ldy
    n = state.n_rows
    if n == 0:
        return
    index = start = 0
    while True:
        first, end = claim(state, (n_panels + _BLOCK_PANELS - 1) // _BLOCK_PANELS, n_threads)
        if first == end:
            return
        for block in range(first, end):
            panel, place = _BLOCK_PANELS * block, logits + 4 * BLOCK * block
            stop = min(panel + _BLOCK_PANELS, n_panels)
            index, start = multiply_run(entries, index, start, panel, stop, n, state, thread)
            if cap != 0:
                invoke(cap, (record, place, stride, n, PANEL_ROWS * (stop - panel)))
            if stop == panel + _BLOCK_PANELS:
                for r in range(n):
                    row = 4 * r * stride
                    simd.put_f32(logits + row + maxima + 4 * block, largest_of_block(place + row))
