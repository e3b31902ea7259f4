"""How blocks read and write several residual streams: rows of S streams, E floats each; see `augury.blocks.residual`.

Rows lie in memory of a thread's own where the field `is_private` says so; see `step.py`. A token weighs its
streams with a row of weights, which lies the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels.activation import exponential, sigmoid, silu
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import load_part, part_of, store_part
from augury.backends.numba_cpu.kernels.norm import normalise
from augury.backends.numba_cpu.kernels.simd import (
    add,
    div,
    fma,
    get_f32,
    get_i64,
    load_f32,
    mul,
    put_f32,
    repeat_f32,
    splat_f32,
    store_f32,
    sub,
    sum_lanes,
    zero_f32,
)
from augury.backends.numba_cpu.kernels.step import scratch_of, share
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import N_TOKENS, Record, StridedRows, ThreadRows, own

f32 = np.float32


def scratch_bytes(n_streams: int) -> int:
    """Bytes of scratch that a thread needs: a vector of every stream."""
    return 64 * n_streams


@struct
class RepeatRows(Record):
    """Operands of `repeat_rows`."""

    x: Any = nested(ThreadRows)  # (n, E) float32
    streams: Any = nested(ThreadRows)  # (n, S, E) float32
    n_streams: int  # S
    size: int  # E
    is_private: bool


@kernel(record=RepeatRows)
def repeat_rows(record, state, thread, n_threads):
    """All streams = x."""
    x, streams = own(record.x, thread), own(record.streams, thread)
    n, size = record.n_streams, record.size
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, record.is_private)
    for t in range(first, end):
        for index in range(0, size, 16):
            left = size - index
            value = load_part(x + 4 * (t * size + index), left)
            for i in range(n):
                store_part(streams + 4 * ((t * n + i) * size + index), value, left)


@struct
class NormStreams(Record):
    """Operands of `norm_streams`."""

    x: Any = nested(ThreadRows)  # (n, n_parts, size) float32
    out: Any = nested(ThreadRows)
    n_parts: int
    size: int
    norm: int  # address
    is_private: bool


@kernel(record=NormStreams)
def norm_streams(record, state, thread, n_threads):
    """Out = norm(x), part by part."""
    x, out = own(record.x, thread), own(record.out, thread)
    n, size, norm = record.n_parts, record.size, record.norm
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, record.is_private)
    for t in range(first, end):
        for part in range(n):
            at = 4 * (t * n + part) * size
            normalise(x + at, norm, out + at, size, part, 0)


@helper
def _divide(comb, n, eps, step, stride):
    """Divide each of n groups of n numbers, from one to the next `step`, in a group `stride` floats, by eps plus its sum."""
    for i in range(n):
        total = eps
        for j in range(n):
            total += get_f32(comb + 4 * (i * step + j * stride))
        for j in range(n):
            place = comb + 4 * (i * step + j * stride)
            put_f32(place, get_f32(place) / total)


@struct
class Weighing:
    """How a connection makes weights of coefficients; addresses of float32."""

    n_streams: int  # S
    n_gates: int  # weights that are gates
    scales: int  # (n,), factors of coefficients
    base: int  # (n,), added to them
    factors: int  # (n_gates,), factors of gates
    offsets: int  # (n_gates,), added to them
    eps: float  # of the balanced matrix
    n_rounds: int  # likewise


@struct
class WeighStreams(Record):
    """Operands of `weigh_streams`."""

    coefficients: Any = nested(StridedRows)  # float32
    weights: Any = nested(ThreadRows)  # (n, ldw) float32
    ldw: int
    weighing: int = pointer_to(Weighing)
    is_private: bool


@kernel(record=WeighStreams)
def weigh_streams(record, state, thread, n_threads):
    """Coefficients → weights."""
    coefficients, ld = record.coefficients.address, record.coefficients.stride
    weights, ldw, weighing = own(record.weights, thread), record.ldw, record.weighing
    n, n_gates, eps = weighing.n_streams, weighing.n_gates, f32(weighing.eps)
    scales, base, n_rounds = weighing.scales, weighing.base, weighing.n_rounds
    n_all = n_gates
    if n_rounds > 0:
        n_all += n * n
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, record.is_private)
    for t in range(first, end):
        row = weights + 4 * t * ldw
        for i in range(0, n_all, 16):
            left, value = n_all - i, load_part(coefficients + 4 * (t * ld + i), n_all - i)
            value = add(mul(value, load_part(scales + 4 * i, left)), load_part(base + 4 * i, left))
            store_part(row + 4 * i, value, left)
        for i in range(0, n_gates, 16):
            left, factors, offsets = n_gates - i, weighing.factors, weighing.offsets
            value = mul(sigmoid(load_part(row + 4 * i, left)), load_part(factors + 4 * i, left))
            store_part(row + 4 * i, add(value, load_part(offsets + 4 * i, left)), left)
        comb = row + 4 * n_gates
        for i in range(n if n_rounds > 0 else 0):
            top, total = f32(-3e38), zero_f32()
            for j in range(n):
                top = max(top, get_f32(comb + 4 * (i * n + j)))
            for j in range(0, n, 16):
                place, left = comb + 4 * (i * n + j), n - j
                power = exponential(sub(load_part(place, left), splat_f32(top)))
                total = add(total, part_of(power, left))
                store_part(place, power, left)
            factor = div(splat_f32(f32(1)), splat_f32(sum_lanes(total)))
            for j in range(0, n, 16):
                place, left = comb + 4 * (i * n + j), n - j
                store_part(place, fma(load_part(place, left), factor, splat_f32(eps)), left)
        for turn in range(n_rounds):
            if turn > 0:
                _divide(comb, n, eps, n, 1)
            _divide(comb, n, eps, 1, n)


@struct
class ReadStreams(Record):
    """Operands of `read_streams`."""

    streams: Any = nested(ThreadRows)  # (n, S, E) float32
    weights: Any = nested(ThreadRows)  # (n, ldw) float32
    ldw: int
    n_streams: int  # S
    size: int  # E
    x: Any = nested(ThreadRows)  # (n, E) float32
    is_private: bool


@kernel(record=ReadStreams)
def read_streams(record, state, thread, n_threads):
    """X = the sum of weighted streams."""
    streams, weights, x = own(record.streams, thread), own(record.weights, thread), own(record.x, thread)
    ldw, n, size = record.ldw, record.n_streams, record.size
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, record.is_private)
    for t in range(first, end):
        for index in range(0, size, 16):
            left, value = size - index, zero_f32()
            for i in range(n):
                stream = load_part(streams + 4 * ((t * n + i) * size + index), left)
                value = fma(stream, repeat_f32(weights + 4 * (t * ldw + i)), value)
            store_part(x + 4 * (t * size + index), value, left)


@struct
class SiluRows(Record):
    """Operands of `silu_rows`."""

    x: Any = nested(StridedRows)  # (n, size) float32
    y: int  # (n, size) float32, address
    size: int


@kernel(record=SiluRows)
def silu_rows(record, state, thread, n_threads):
    """Y = silu(x)."""
    x, ldx, y, size = record.x.address, record.x.stride, record.y, record.size
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
    for t in range(first, end):
        for index in range(0, size, 16):
            left = size - index
            store_part(y + 4 * (t * size + index), silu(load_part(x + 4 * (t * ldx + index), left)), left)


@struct
class ReadGatedStreams(Record):
    """Operands of `read_gated_streams`."""

    streams: Any = nested(ThreadRows)  # (n, S, E) float32
    gates: Any = nested(StridedRows)  # (n, S * E) float32
    n_streams: int  # S
    size: int  # E
    x: Any = nested(ThreadRows)  # (n, E) float32
    is_private: bool


@kernel(record=ReadGatedStreams)
def read_gated_streams(record, state, thread, n_threads):
    """X = the mean of streams times the sigmoids of gates."""
    streams, gates, ld = own(record.streams, thread), record.gates.address, record.gates.stride
    n, size, x = record.n_streams, record.size, own(record.x, thread)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, record.is_private)
    factor = splat_f32(f32(1) / f32(n))
    for t in range(first, end):
        for index in range(0, size, 16):
            left, value = size - index, zero_f32()
            for i in range(n):
                at = i * size + index
                gate = sigmoid(load_part(gates + 4 * (t * ld + at), left))
                value = fma(load_part(streams + 4 * (t * n * size + at), left), gate, value)
            store_part(x + 4 * (t * size + index), mul(value, factor), left)


@struct
class WriteStreams(Record):
    """Operands of `write_streams`."""

    streams: Any = nested(ThreadRows)  # (n, S, E) float32
    weights: Any = nested(ThreadRows)  # (n, ldw) float32
    ldw: int
    post: int  # where these begin in a row of weights
    comb: int  # likewise; -1: none
    n_streams: int  # S
    size: int  # E
    y: Any = nested(StridedRows)  # (n, E) float32
    is_private: bool


@kernel(record=WriteStreams)
def write_streams(record, state, thread, n_threads):
    """Stream j = post[j] * y + the sum over i of comb[i, j] * stream i, or + stream j where there is no comb."""
    streams, weights, ldw = own(record.streams, thread), own(record.weights, thread), record.ldw
    post, comb, n, size = record.post, record.comb, record.n_streams, record.size
    y, ldy, held = record.y.address, record.y.stride, scratch_of(state, thread)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, record.is_private)
    for t in range(first, end):
        shares = weights + 4 * t * ldw
        for index in range(0, size, 16):
            left = size - index
            given = load_part(y + 4 * (t * ldy + index), left)
            for i in range(n):
                store_f32(held + 64 * i, load_part(streams + 4 * ((t * n + i) * size + index), left))
            for j in range(n):
                value = load_f32(held + 64 * j)
                if comb >= 0:
                    value = mul(load_f32(held), repeat_f32(shares + 4 * (comb + j)))
                    for i in range(1, n):
                        value = fma(load_f32(held + 64 * i), repeat_f32(shares + 4 * (comb + i * n + j)), value)
                value = fma(given, repeat_f32(shares + 4 * (post + j)), value)
                store_part(streams + 4 * ((t * n + j) * size + index), value, left)
