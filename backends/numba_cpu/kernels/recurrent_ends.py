"""The steps before and after a linear recurrence: keys and decays of tokens, and the gates of its output."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import exponential, sigmoid, softplus
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.step import inverse_deviation, normalise, scale_row
from augury.backends.numba_cpu.kernels.struct import nested, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, row_of

f32 = np.float32
SILU, SIGMOID, SOFTPLUS = range(3)


@struct
class Decay(Record):
    """Operands of `decay`. Addresses are 0 where there is no such thing; places are bytes from the beginning of a row on."""

    rows: Any = nested(StridedRows)  # float32, where results go; with keys, where decays are by key
    t: Any = nested(StridedRows)  # (n, size) float32
    b: Any = nested(StridedRows)  # (n, n_betas) float32
    dt: int  # (size,) float32, address
    a: int  # likewise
    size: int  # heads, channels, or keys of all heads
    n_betas: int
    decays_at: int
    betas_at: int
    keys_at: int
    products_at: int  # of keys with their decays; 0: decays are not by key
    floor: float  # 0: none


@kernel(record=Decay)
def decay(record, state, thread, n_threads):
    """Decays exp(a * s), s = softplus(t + dt), or exp(floor * sigmoid(a * t)); and betas of all tokens: sigmoid(b), or s.

    Where decays are by key, also keys times these.
    """
    size, floor = record.size, record.floor
    n_blocks = (size + 15) // 16
    n_items = state.n_tokens * n_blocks
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        i = item // n_blocks
        block = item - i * n_blocks
        row, at, left = row_of(record.rows, i), 64 * block, size - 16 * block
        step = simd.load_part(row_of(record.t, i) + at, left)
        if record.dt != 0:
            step = simd.add(step, simd.load_part(record.dt + at, left))
        if floor == 0.0:
            step = softplus(step)
        if record.a != 0:
            exponent = simd.mul(simd.load_part(record.a + at, left), step)
            if floor != 0.0:
                exponent = simd.mul(simd.splat_f32(f32(floor)), sigmoid(exponent))
            decays = exponential(exponent)
            simd.store_part(row + record.decays_at + at, decays, left)
            if record.products_at != 0:
                products = simd.mul(decays, simd.load_part(row + record.keys_at + at, left))
                simd.store_part(row + record.products_at + at, products, left)
        left = record.n_betas - 16 * block
        if left > 0:
            if record.b.address != 0:
                step = sigmoid(simd.load_part(row_of(record.b, i) + at, left))
            simd.store_part(row + record.betas_at + at, step, left)


@struct
class UnitHeads(Record):
    x: Any = nested(StridedRows)  # (n, n_heads * size) float32
    n_heads: int
    n_scaled: int  # of them, the first
    size: int
    eps: float  # added to the square of a length
    scale: float


@kernel(record=UnitHeads)
def unit_heads(record, state, thread, n_threads):
    """Divide the heads of all rows by their lengths, and multiply the first of them by a scale."""
    n_heads, n_scaled, size = record.n_heads, record.n_scaled, record.size
    n_items = state.n_tokens * n_heads
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        t = item // n_heads
        head = item - t * n_heads
        place = row_of(record.x, t) + 4 * head * size
        factor = np.float64(inverse_deviation(place, size, f32(0), record.eps / size)) / math.sqrt(float(size))
        if head < n_scaled:
            factor *= record.scale
        scale_row(place, size, simd.splat_f32(f32(factor)))


@helper
def gated(record, y, gates, size):
    """Multiply a row by a function of its gates, or of its single gate."""
    for index in range(0, size, 16):
        at, left = 4 * index, size - index
        value = simd.load_part(gates + at, left) if record.is_by_group == 0 else simd.splat_f32(simd.get_f32(gates))
        factor = softplus(value) if record.function == SOFTPLUS else sigmoid(value)
        if record.function == SILU:
            factor = simd.mul(factor, value)
        simd.store_part(y + at, simd.mul(simd.load_part(y + at, left), factor), left)


@struct
class Gate(Record):
    y: Any = nested(StridedRows)  # (n, size) float32
    size: int
    skip: int  # (size,) float32, address; 0: none
    values: Any = nested(StridedRows)  # (n, size) float32
    gates: Any = nested(StridedRows)  # likewise
    norm: int  # address; 0: none
    group: int  # floats that are normed together
    is_gated_first: bool
    function: int  # of the gates: SILU, SIGMOID or SOFTPLUS
    is_by_group: bool  # whether there is one gate for each group


@kernel(record=Gate)
def gate(record, state, thread, n_threads):
    """Y += skip * values; y = norm(y) times the gates, or the other way round, by groups."""
    size, group = record.size, record.group
    n_groups = (size + group - 1) // group
    n_items = state.n_tokens * n_groups
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        i = item // n_groups
        number = item - i * n_groups
        first, n = 4 * number * group, min(group, size - number * group)
        y = row_of(record.y, i) + first
        gates = row_of(record.gates, i) + (first if record.is_by_group == 0 else 4 * number)
        if record.skip != 0:
            values, skip = row_of(record.values, i) + first, record.skip + first
            for index in range(0, n, 16):
                at, left = 4 * index, n - index
                simd.store_part(
                    y + at,
                    simd.fma(simd.load_part(skip + at, left), simd.load_part(values + at, left), simd.load_part(y + at, left)),
                    left,
                )
        if record.is_gated_first != 0:
            gated(record, y, gates, n)
        if record.norm != 0:
            normalise(y, record.norm, y, n, number, 0)
        if record.is_gated_first == 0:
            gated(record, y, gates, n)
