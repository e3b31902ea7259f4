"""What adapters add to products of a matrix: rows of low rank times the scales of each token's slot, then back to full width.

A row is one sum by sixteen lanes, and every value takes the rows in their order, so both have the same bits beside any others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import load_part, store_part
from augury.backends.numba_cpu.kernels.simd import fma, get_f32, get_i64, put_f32, splat_f32, sum_lanes, zero_f32
from augury.backends.numba_cpu.kernels.struct import nested, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, own_row

f32 = np.float32


@struct
class LowRankRows(Record):
    """Rows between a matrix's input and its products, and how much each counts."""

    x: Any = nested(StridedRows)  # (n, n_in) float32
    y: Any = nested(StridedRows)  # (n, n_out) float32
    down: int  # (R, n_in) float32, address
    up: int  # (R, n_out) float32, address
    low: int  # (n, R) float32, address: the scaled products with `down`
    adapters: int  # (R,) int64, address: the adapter of each row
    scales: int  # (slots, n_adapters) float32, address
    n_adapters: int
    n_ranks: int  # R
    n_in: int
    n_out: int


@helper
def scale_of(record, state, t, rank):
    """How much a row counts for a token."""
    slot, adapter = get_i64(state.slots + 8 * t), get_i64(record.adapters + 8 * rank)
    return get_f32(record.scales + 4 * (slot * record.n_adapters + adapter))


@kernel(record=LowRankRows)
def low_rank_down(record, state, thread, n_threads):
    """Low = scale * (down x)."""
    n_ranks, size = record.n_ranks, record.n_in
    n = state.n_tokens * n_ranks
    for i in range(n * thread // n_threads, n * (thread + 1) // n_threads):
        t, rank = i // n_ranks, i % n_ranks
        scale = scale_of(record, state, t, rank)
        if scale != f32(0):
            x, row, total = own_row(record.x, thread, t), record.down + 4 * rank * size, zero_f32()
            for index in range(0, size, 16):
                left = size - index
                total = fma(load_part(x + 4 * index, left), load_part(row + 4 * index, left), total)
            put_f32(record.low + 4 * i, scale * sum_lanes(total))


@kernel(record=LowRankRows)
def low_rank_up(record, state, thread, n_threads):
    """Y += low up; every thread has some columns."""
    n_ranks, size = record.n_ranks, record.n_out
    n_blocks = (size + 15) // 16
    first, end = 16 * (n_blocks * thread // n_threads), min(16 * (n_blocks * (thread + 1) // n_threads), size)
    for t in range(state.n_tokens):
        y = own_row(record.y, thread, t)
        for rank in range(n_ranks):
            if scale_of(record, state, t, rank) != f32(0):
                low, row = splat_f32(get_f32(record.low + 4 * (t * n_ranks + rank))), record.up + 4 * rank * size
                for index in range(first, end, 16):
                    place, left = y + 4 * index, end - index
                    store_part(place, fma(low, load_part(row + 4 * index, left), load_part(place, left)), left)
