"""How blocks read and write several residual streams: rows of S streams, E floats each; see `connections`.

Rows lie in memory of a thread's own where the field `is_private` says so. A token weighs its streams with a row of weights,
which lies the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backend.numba_cpu import (
    Record,
    StridedRows,
    add,
    div,
    exponential,
    fma,
    get_f32,
    helper,
    kernel,
    load_f32,
    load_part,
    mean_of,
    mul,
    nested,
    normalise,
    own,
    part_of,
    pointer_to,
    put_f32,
    repeat_f32,
    scratch_of,
    share,
    sigmoid,
    silu,
    splat_f32,
    store_f32,
    store_part,
    struct,
    sub,
    sum_lanes,
    zero_f32,
)

f32 = np.float32


@struct
class MixRows(Record):
    streams: int = pointer_to(StridedRows)  # (n, E) float32 each
    n_streams: int
    size: int  # E
    norm: int  # address
    out: Any = nested(StridedRows)  # (n, E) float32
    is_private: bool


@kernel(record=MixRows)
def mix_rows(record, state, thread, n_threads):
    """Out[t] = the mean of the rows t of all streams, weighed by softmax of the sums of their norms."""
    streams, n, size, norm = record.streams, record.n_streams, record.size, record.norm
    out = own(record.out, thread)
    normed = scratch_of(state, thread)
    shares = normed + 4 * size
    first, end = share(state.n_tokens, thread, n_threads, record.is_private)
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


@struct
class NormStreams(Record):
    x: Any = nested(StridedRows)  # (n, n_parts, size) float32
    out: Any = nested(StridedRows)
    n_parts: int
    size: int
    norm: int  # address
    is_private: bool


@kernel(record=NormStreams)
def norm_streams(record, state, thread, n_threads):
    """Out = norm(x), part by part."""
    x, out = own(record.x, thread), own(record.out, thread)
    n, size, norm = record.n_parts, record.size, record.norm
    first, end = share(state.n_tokens, thread, n_threads, record.is_private)
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
class WeighStreams(Record):
    coefficients: Any = nested(StridedRows)  # float32
    weights: Any = nested(StridedRows)  # (n, ldw) float32
    numbers: int  # (4, ldw) float32, address: factors of coefficients, added to them; factors of gates, added to these
    n_streams: int  # S
    n_gates: int  # weights that are gates
    n_rounds: int  # of balancing the others
    eps: float  # likewise
    is_private: bool


@kernel(record=WeighStreams)
def weigh_streams(record, state, thread, n_threads):
    """Coefficients → weights."""
    coefficients, ld = record.coefficients.address, record.coefficients.width
    weights, ldw, n_rounds = own(record.weights, thread), record.weights.width, record.n_rounds
    n, n_gates, eps, scales = record.n_streams, record.n_gates, f32(record.eps), record.numbers
    base, factors, offsets = scales + 4 * ldw, scales + 8 * ldw, scales + 12 * ldw
    n_all = n_gates
    if n_rounds > 0:
        n_all += n * n
    first, end = share(state.n_tokens, thread, n_threads, record.is_private)
    for t in range(first, end):
        row = weights + 4 * t * ldw
        for i in range(0, n_all, 16):
            left, value = n_all - i, load_part(coefficients + 4 * (t * ld + i), n_all - i)
            value = add(mul(value, load_part(scales + 4 * i, left)), load_part(base + 4 * i, left))
            store_part(row + 4 * i, value, left)
        for i in range(0, n_gates, 16):
            left = n_gates - i
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
    streams: Any = nested(StridedRows)  # (n, S, E) float32
    weights: Any = nested(StridedRows)  # (n, ldw) float32
    n_streams: int  # S
    size: int  # E
    x: Any = nested(StridedRows)  # (n, E) float32
    is_private: bool


@kernel(record=ReadStreams)
def read_streams(record, state, thread, n_threads):
    """X = the sum of weighted streams."""
    streams, weights, x = own(record.streams, thread), own(record.weights, thread), own(record.x, thread)
    ldw, n, size = record.weights.width, record.n_streams, record.size
    first, end = share(state.n_tokens, thread, n_threads, record.is_private)
    for t in range(first, end):
        for index in range(0, size, 16):
            left, value = size - index, zero_f32()
            for i in range(n):
                stream = load_part(streams + 4 * ((t * n + i) * size + index), left)
                value = fma(stream, repeat_f32(weights + 4 * (t * ldw + i)), value)
            store_part(x + 4 * (t * size + index), value, left)


@struct
class SiluRows(Record):
    x: Any = nested(StridedRows)  # (n, size) float32
    y: int  # (n, size) float32, address
    size: int


@kernel(record=SiluRows)
def silu_rows(record, state, thread, n_threads):
    """Y = silu(x)."""
    x, ldx, y, size = record.x.address, record.x.width, record.y, record.size
    first, end = share(state.n_tokens, thread, n_threads, 0)
    for t in range(first, end):
        for index in range(0, size, 16):
            left = size - index
            store_part(y + 4 * (t * size + index), silu(load_part(x + 4 * (t * ldx + index), left)), left)


@struct
class ReadGatedStreams(Record):
    streams: Any = nested(StridedRows)  # (n, S, E) float32
    gates: Any = nested(StridedRows)  # (n, S * E) float32
    n_streams: int  # S
    size: int  # E
    x: Any = nested(StridedRows)  # (n, E) float32
    is_private: bool


@kernel(record=ReadGatedStreams)
def read_gated_streams(record, state, thread, n_threads):
    """X = the mean of streams times the sigmoids of gates."""
    streams, gates, ld = own(record.streams, thread), record.gates.address, record.gates.width
    n, size, x = record.n_streams, record.size, own(record.x, thread)
    first, end = share(state.n_tokens, thread, n_threads, record.is_private)
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
    streams: Any = nested(StridedRows)  # (n, S, E) float32
    weights: Any = nested(StridedRows)  # (n, ldw) float32
    post: int  # where these begin in a row of weights
    comb: int  # likewise; -1: none
    n_streams: int  # S
    size: int  # E
    y: Any = nested(StridedRows)  # (n, E) float32
    is_private: bool


@kernel(record=WriteStreams)
def write_streams(record, state, thread, n_threads):
    """Stream j = post[j] * y + the sum over i of comb[i, j] * stream i, or + stream j where there is no comb."""
    streams, weights, ldw = own(record.streams, thread), own(record.weights, thread), record.weights.width
    post, comb, n, size = record.post, record.comb, record.n_streams, record.size
    y, ldy, held = record.y.address, record.y.width, scratch_of(state, thread)
    first, end = share(state.n_tokens, thread, n_threads, record.is_private)
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
