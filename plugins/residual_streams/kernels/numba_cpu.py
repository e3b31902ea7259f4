"""How blocks read and write several residual streams: rows of S streams, E floats each; see `connections`.

Rows lie in memory of a thread's own where the field `is_private` says so. A token weighs its streams with a row of weights,
which lies the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backend import numba_cpu as cpu

f32 = np.float32


@cpu.struct
class MixRows(cpu.Record):
    streams: int = cpu.pointer_to(cpu.StridedRows)  # (n, E) float32 each
    n_streams: int
    size: int  # E
    norm: int  # address
    out: Any = cpu.nested(cpu.StridedRows)  # (n, E) float32
    is_private: bool


@cpu.kernel(record=MixRows)
def mix_rows(record, state, thread, n_threads):
    """Out[t] = the mean of the rows t of all streams, weighed by softmax of the sums of their norms."""
    streams, n, size, norm = record.streams, record.n_streams, record.size, record.norm
    out = cpu.own(record.out, thread)
    normed = cpu.scratch_of(state, thread)
    shares = normed + 4 * size
    first, end = cpu.share(state.n_tokens, thread, n_threads, record.is_private)
    for t in range(first, end):
        top = f32(-3e38)
        for i in range(n):
            row = cpu.own(streams[i], thread) + 4 * t * size
            cpu.normalise(row, norm, normed, size, 0, 0)
            score = f32(cpu.mean_of(normed, size) * size)
            cpu.put_f32(shares + 4 * i, score)
            top = max(top, score)
        total = cpu.zero_f32()
        for i in range(0, n, 16):
            power = cpu.exponential(cpu.sub(cpu.load_part(shares + 4 * i, n - i), cpu.splat_f32(top)))
            cpu.store_part(shares + 4 * i, power, n - i)
            total = cpu.add(total, cpu.part_of(power, n - i))
        factor = cpu.div(cpu.splat_f32(f32(1)), cpu.splat_f32(cpu.sum_lanes(total)))
        for index in range(0, size, 16):
            left, value = size - index, cpu.zero_f32()
            for i in range(n):
                row = cpu.own(streams[i], thread) + 4 * (t * size + index)
                value = cpu.fma(cpu.load_part(row, left), cpu.mul(cpu.repeat_f32(shares + 4 * i), factor), value)
            cpu.store_part(out + 4 * (t * size + index), value, left)


@cpu.helper
def _divide(comb, n, eps, step, stride):
    """Divide each of n groups of n numbers, from one to the next `step`, in a group `stride` floats, by eps plus its sum."""
    for i in range(n):
        total = eps
        for j in range(n):
            total += cpu.get_f32(comb + 4 * (i * step + j * stride))
        for j in range(n):
            place = comb + 4 * (i * step + j * stride)
            cpu.put_f32(place, cpu.get_f32(place) / total)


@cpu.struct
class WeighStreams(cpu.Record):
    coefficients: Any = cpu.nested(cpu.StridedRows)  # float32
    weights: Any = cpu.nested(cpu.StridedRows)  # (n, ldw) float32
    numbers: int  # (4, ldw) float32, address: factors of coefficients, added to them; factors of gates, added to these
    n_streams: int  # S
    n_gates: int  # weights that are gates
    n_rounds: int  # of balancing the others
    eps: float  # likewise
    is_private: bool


@cpu.kernel(record=WeighStreams)
def weigh_streams(record, state, thread, n_threads):
    """Coefficients → weights."""
    coefficients, ld = record.coefficients.address, record.coefficients.width
    weights, ldw, n_rounds = cpu.own(record.weights, thread), record.weights.width, record.n_rounds
    n, n_gates, eps, scales = record.n_streams, record.n_gates, f32(record.eps), record.numbers
    base, factors, offsets = scales + 4 * ldw, scales + 8 * ldw, scales + 12 * ldw
    n_all = n_gates
    if n_rounds > 0:
        n_all += n * n
    first, end = cpu.share(state.n_tokens, thread, n_threads, record.is_private)
    for t in range(first, end):
        row = weights + 4 * t * ldw
        for i in range(0, n_all, 16):
            left, value = n_all - i, cpu.load_part(coefficients + 4 * (t * ld + i), n_all - i)
            value = cpu.add(cpu.mul(value, cpu.load_part(scales + 4 * i, left)), cpu.load_part(base + 4 * i, left))
            cpu.store_part(row + 4 * i, value, left)
        for i in range(0, n_gates, 16):
            left = n_gates - i
            value = cpu.mul(cpu.sigmoid(cpu.load_part(row + 4 * i, left)), cpu.load_part(factors + 4 * i, left))
            cpu.store_part(row + 4 * i, cpu.add(value, cpu.load_part(offsets + 4 * i, left)), left)
        comb = row + 4 * n_gates
        for i in range(n if n_rounds > 0 else 0):
            top, total = f32(-3e38), cpu.zero_f32()
            for j in range(n):
                top = max(top, cpu.get_f32(comb + 4 * (i * n + j)))
            for j in range(0, n, 16):
                place, left = comb + 4 * (i * n + j), n - j
                power = cpu.exponential(cpu.sub(cpu.load_part(place, left), cpu.splat_f32(top)))
                total = cpu.add(total, cpu.part_of(power, left))
                cpu.store_part(place, power, left)
            factor = cpu.div(cpu.splat_f32(f32(1)), cpu.splat_f32(cpu.sum_lanes(total)))
            for j in range(0, n, 16):
                place, left = comb + 4 * (i * n + j), n - j
                cpu.store_part(place, cpu.fma(cpu.load_part(place, left), factor, cpu.splat_f32(eps)), left)
        for turn in range(n_rounds):
            if turn > 0:
                _divide(comb, n, eps, n, 1)
            _divide(comb, n, eps, 1, n)


@cpu.struct
class ReadStreams(cpu.Record):
    streams: Any = cpu.nested(cpu.StridedRows)  # (n, S, E) float32
    weights: Any = cpu.nested(cpu.StridedRows)  # (n, ldw) float32
    n_streams: int  # S
    size: int  # E
    x: Any = cpu.nested(cpu.StridedRows)  # (n, E) float32
    is_private: bool


@cpu.kernel(record=ReadStreams)
def read_streams(record, state, thread, n_threads):
    """X = the sum of weighted streams."""
    streams, weights, x = cpu.own(record.streams, thread), cpu.own(record.weights, thread), cpu.own(record.x, thread)
    ldw, n, size = record.weights.width, record.n_streams, record.size
    first, end = cpu.share(state.n_tokens, thread, n_threads, record.is_private)
    for t in range(first, end):
        for index in range(0, size, 16):
            left, value = size - index, cpu.zero_f32()
            for i in range(n):
                stream = cpu.load_part(streams + 4 * ((t * n + i) * size + index), left)
                value = cpu.fma(stream, cpu.repeat_f32(weights + 4 * (t * ldw + i)), value)
            cpu.store_part(x + 4 * (t * size + index), value, left)


@cpu.struct
class ReadGatedStreams(cpu.Record):
    streams: Any = cpu.nested(cpu.StridedRows)  # (n, S, E) float32
    gates: Any = cpu.nested(cpu.StridedRows)  # (n, S * E) float32
    n_streams: int  # S
    size: int  # E
    x: Any = cpu.nested(cpu.StridedRows)  # (n, E) float32
    is_private: bool


@cpu.kernel(record=ReadGatedStreams)
def read_gated_streams(record, state, thread, n_threads):
    """X = the mean of streams times the sigmoids of gates."""
    streams, gates, ld = cpu.own(record.streams, thread), record.gates.address, record.gates.width
    n, size, x = record.n_streams, record.size, cpu.own(record.x, thread)
    first, end = cpu.share(state.n_tokens, thread, n_threads, record.is_private)
    factor = cpu.splat_f32(f32(1) / f32(n))
    for t in range(first, end):
        for index in range(0, size, 16):
            left, value = size - index, cpu.zero_f32()
            for i in range(n):
                at = i * size + index
                gate = cpu.sigmoid(cpu.load_part(gates + 4 * (t * ld + at), left))
                value = cpu.fma(cpu.load_part(streams + 4 * (t * n * size + at), left), gate, value)
            cpu.store_part(x + 4 * (t * size + index), cpu.mul(value, factor), left)


@cpu.struct
class WriteStreams(cpu.Record):
    streams: Any = cpu.nested(cpu.StridedRows)  # (n, S, E) float32
    weights: Any = cpu.nested(cpu.StridedRows)  # (n, ldw) float32
    post: int  # where these begin in a row of weights
    comb: int  # likewise; -1: none
    n_streams: int  # S
    size: int  # E
    y: Any = cpu.nested(cpu.StridedRows)  # (n, E) float32
    is_private: bool


@cpu.kernel(record=WriteStreams)
def write_streams(record, state, thread, n_threads):
    """Stream j = post[j] * y + the sum over i of comb[i, j] * stream i, or + stream j where there is no comb."""
    streams, weights, ldw = cpu.own(record.streams, thread), cpu.own(record.weights, thread), record.weights.width
    post, comb, n, size = record.post, record.comb, record.n_streams, record.size
    y, ldy, held = record.y.address, record.y.width, cpu.scratch_of(state, thread)
    first, end = cpu.share(state.n_tokens, thread, n_threads, record.is_private)
    for t in range(first, end):
        shares = weights + 4 * t * ldw
        for index in range(0, size, 16):
            left = size - index
            given = cpu.load_part(y + 4 * (t * ldy + index), left)
            for i in range(n):
                cpu.store_f32(held + 64 * i, cpu.load_part(streams + 4 * ((t * n + i) * size + index), left))
            for j in range(n):
                value = cpu.load_f32(held + 64 * j)
                if comb >= 0:
                    value = cpu.mul(cpu.load_f32(held), cpu.repeat_f32(shares + 4 * (comb + j)))
                    for i in range(1, n):
                        value = cpu.fma(cpu.load_f32(held + 64 * i), cpu.repeat_f32(shares + 4 * (comb + i * n + j)), value)
                value = cpu.fma(given, cpu.repeat_f32(shares + 4 * (post + j)), value)
                cpu.store_part(streams + 4 * ((t * n + j) * size + index), value, left)
