"""Convolutions over the tokens of a drafted block, with weights of each token's own.

Source: DFlash2, as llama.cpp computes it (`src/models/dflash.cpp`).
"""

from __future__ import annotations

from typing import Any

from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.simd import add, fma, get_f32, get_i64, load_f32, splat_f32, store_f32, zero_f32
from augury.backends.numba_cpu.kernels.struct import nested, struct
from augury.backends.numba_cpu.kernels.team import N_SEGMENTS, SEGMENTS, Record, StridedRows, row_of, segments_at

LANES = 16


@struct
class ConvolveBlock(Record):
    x: Any = nested(StridedRows)  # (n, size) float32
    weights: Any = nested(StridedRows)  # (n, n_taps * size / group) float32
    base: int  # (n_taps, size) float32, address
    out: Any = nested(StridedRows)  # (n, size) float32
    size: int
    group: int  # channels of a weight, a multiple of LANES
    n_taps: int


@kernel(record=ConvolveBlock)
def convolve_block(record, state, thread, n_threads):
    """Out[j] = the sum over taps t of (base[t] + weights[j, t]) * x[j - t], from the first token of a run on."""
    size, group, n_taps = record.size, record.group, record.n_taps
    runs, n_groups = segments_at(get_i64(state + SEGMENTS)), size // group
    for segment in range(get_i64(state + N_SEGMENTS)):
        run = runs[segment]
        for j in range(run.n * thread // n_threads, run.n * (thread + 1) // n_threads):
            i = run.first + j
            to, weights = row_of(record.out, i), row_of(record.weights, i)
            for index in range(0, size, LANES):
                total = zero_f32()
                for tap in range(min(n_taps, j + 1)):
                    own = splat_f32(get_f32(weights + 4 * (tap * n_groups + index // group)))
                    factor = add(load_f32(record.base + 4 * (tap * size + index)), own)
                    total = fma(factor, load_f32(row_of(record.x, i - tap) + 4 * index), total)
                store_f32(to + 4 * index, total)
