"""The mean of several residual streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels.activation import exponential
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import load_part, part_of, store_part
from augury.backends.numba_cpu.kernels.norm import mean_of, normalise
from augury.backends.numba_cpu.kernels.simd import (
    add,
    div,
    fma,
    get_i64,
    mul,
    put_f32,
    repeat_f32,
    splat_f32,
    sub,
    sum_lanes,
    zero_f32,
)
from augury.backends.numba_cpu.kernels.step import scratch_of, share
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import N_TOKENS, Record, ThreadRows, own

f32 = np.float32


def scratch_bytes(n_streams: int, size: int) -> int:
    """Bytes of scratch that `mix_rows` needs per thread: a row, and the weights of its streams."""
    return 4 * (size + n_streams) + 128


@struct
class MixRows(Record):
    """Operands of `mix_rows`."""

    streams: int = pointer_to(ThreadRows)  # (n, E) float32 each
    n_streams: int
    size: int  # E
    norm: int  # address
    out: Any = nested(ThreadRows)  # (n, E) float32
    is_private: bool


@kernel(record=MixRows)
def mix_rows(record, state, thread, n_threads):
    """Out[t] = the mean of the rows t of all streams, weighed by softmax of the sums of their norms."""
    streams, n, size, norm = record.streams, record.n_streams, record.size, record.norm
    out = own(record.out, thread)
    normed = scratch_of(state, thread)
    shares = normed + 4 * size
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, record.is_private)
    for t in range(first, end):
        top = f32(-3e38)
        for i in range(n):
            row = own(streams[i], thread) + 4 * t * size
            normalise(row, norm, normed, size, 0, 0)
            score = f32(mean_of(normed, size) * size)
            put_f32(shares + 4 * i, score)
            top = max(top, score)
        total = zero_f32()
        for i in range(0, n, 16):
            power = exponential(sub(load_part(shares + 4 * i, n - i), splat_f32(top)))
            store_part(shares + 4 * i, power, n - i)
            total = add(total, part_of(power, n - i))
        factor = div(splat_f32(f32(1)), splat_f32(sum_lanes(total)))
        for index in range(0, size, 16):
            left, value = size - index, zero_f32()
            for i in range(n):
                row = own(streams[i], thread) + 4 * (t * size + index)
                value = fma(load_part(row, left), mul(repeat_f32(shares + 4 * i), factor), value)
            store_part(out + 4 * (t * size + index), value, left)
