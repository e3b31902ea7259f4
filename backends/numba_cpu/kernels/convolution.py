"""Causal convolutions, a channel by itself, whose last inputs are kept per sequence.

Those over the tokens of a drafted block have weights of each token's own, and keep nothing. Source: DFlash2, as llama.cpp
computes it (`src/models/dflash.cpp`).
"""

from __future__ import annotations

from typing import Any

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import silu
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.step import scratch_of
from augury.backends.numba_cpu.kernels.struct import nested, struct
from augury.backends.numba_cpu.kernels.team import Record, StateMemory, StridedRows, place_aside, row_of

_AHEAD = 1024  # bytes


@struct
class Convolve(Record):
    """A layer's convolution. Its states have rows of `width` floats; addresses are 0 where there is no such thing."""

    x: Any = nested(StridedRows)  # (n, n_channels) float32
    gate_in: int  # rows that x is multiplied with, as far apart as these, address
    gate_out: int  # likewise, of y
    y: Any = nested(StridedRows)
    n_channels: int
    width: int  # the channels, in whole vectors
    size: int  # inputs that an output depends on
    taps: int  # (size, width) float32, address
    bias: int  # (n_channels,) float32, address
    has_silu: bool
    state: Any = nested(StateMemory)  # (slots, size - 1, width) float32; inputs aside (slots, n_aside, width)
    n_aside: int


def scratch_bytes(size: int, n_aside: int) -> int:
    """Bytes of scratch that `convolve` needs per thread: addresses of rows, and the windows of a tree's tokens."""
    return 8 * (size + 2 * n_aside + MAX_TOKENS + size * n_aside)


@helper
def list_rows(layer, segment, sequence, rows):
    """The addresses of a run's inputs: those of its state, accepted, certain, drafted before, drafted ones."""
    first, n, slot = segment.first, segment.n, segment.slot
    stride, size, n_aside = 4 * layer.width, layer.size, layer.n_aside
    own, aside = layer.state.values + slot * (size - 1) * stride, layer.state.aside + slot * n_aside * stride
    x, ldx, taken = layer.x.address, 4 * layer.x.width, sequence.taken
    n_accepted, n_certain = sequence.n_accepted, sequence.n_certain
    for i in range(size - 1):
        simd.put_i64(rows, own + i * stride)
        rows += 8
    for i in range(n_accepted):
        simd.put_i64(rows, aside + simd.get_i64(taken + 8 * i) * stride)
        rows += 8
    for t in range(first, first + n_certain):
        simd.put_i64(rows, x + t * ldx)
        rows += 8
    for i in range(n_accepted, n_accepted + sequence.n_before):
        simd.put_i64(rows, aside + simd.get_i64(taken + 8 * i) * stride)
        rows += 8
    for t in range(first + n_certain, first + n):
        simd.put_i64(rows, x + t * ldx)
        rows += 8


@helper
def list_windows(parents, n_certain, n, size, rows, end, windows):
    """The rows that each drafted token of a tree sees; `end` of the rows are the state's and certain ones."""
    for t in range(n_certain, n):
        node, before = t, end - 1
        for j in range(size - 1, -1, -1):
            if node >= n_certain:
                row = simd.get_i64(rows + 8 * (end + node - n_certain))
                node = simd.get_i64(parents + 8 * node)
            else:
                row = simd.get_i64(rows + 8 * before)
                before -= 1
            simd.put_i64(windows + 8 * j, row)
        windows += 8 * size


@kernel(record=Convolve)
def convolve(record, state, thread, n_threads):
    """Convolve the rows of all runs, and bring their states up to date.

    y = gate_out * activation(b + sum of the taps times the last inputs), the oldest first; an input is gate_in * x.
    """
    n_channels, stride, size = record.n_channels, 4 * record.width, record.size
    n_blocks = (n_channels + 15) // 16
    first_block, end_block = n_blocks * thread // n_threads, n_blocks * (thread + 1) // n_threads
    if first_block == end_block:
        return
    x, ldx, y, ldy = record.x.address, 4 * record.x.width, record.y.address, 4 * record.y.width
    gate_in, gate_out, bias = record.gate_in, record.gate_out, record.bias
    n_aside, before, rows = record.n_aside, size - 1, scratch_of(state, thread)
    for run in range(state.n_segments):
        segment = state.segments[run]
        sequence = state.sequences[run]
        first, n, slot, parents = segment.first, segment.n, segment.slot, segment.parents
        n_certain, save = sequence.n_certain, sequence.save
        own, saved = record.state.values + slot * before * stride, record.state.saved + slot * before * stride
        aside = record.state.aside + slot * n_aside * stride
        list_rows(record, segment, sequence, rows)
        start = before + sequence.n_accepted
        end = start + n_certain
        after = end + sequence.n_before
        windows = rows + 8 * (after + n - n_certain)
        if parents != 0:
            list_windows(parents, n_certain, n, size, rows, end, windows)
        for block in range(first_block, end_block):
            at, left = 64 * block, n_channels - 16 * block
            for i in range(before):  # no other pass's rows are in a cache
                simd.prefetch(own + i * stride + at + _AHEAD)
                simd.prefetch(simd.get_i64(rows + 8 * (start - before + i)) + at + _AHEAD)
            if sequence.is_start != 0:
                for i in range(before):
                    simd.store_f32(own + i * stride + at, simd.zero_f32())
            elif sequence.is_restored != 0:
                for i in range(before):
                    simd.store_f32(own + i * stride + at, simd.load_f32(saved + i * stride + at))
            if gate_in != 0:
                for t in range(first, first + n):
                    place = x + t * ldx + at
                    simd.store_part(
                        place, simd.mul(simd.load_part(gate_in + t * ldx + at, left), simd.load_part(place, left)), left
                    )
            for t in range(n):
                window = rows + 8 * (start + t - before)
                if t >= n_certain:
                    if parents != 0:
                        window = windows + 8 * size * (t - n_certain)
                    else:
                        window = rows + 8 * (after + t - n_certain - before)
                total = simd.zero_f32()
                for j in range(size):
                    tap = simd.load_f32(record.taps + j * stride + at)
                    total = simd.fma(simd.load_part(simd.get_i64(window + 8 * j) + at, left), tap, total)
                if bias != 0:
                    total = simd.add(total, simd.load_part(bias + at, left))
                if record.has_silu != 0:
                    total = silu(total)
                if gate_out != 0:
                    total = simd.mul(total, simd.load_part(gate_out + (first + t) * ldx + at, left))
                simd.store_part(y + (first + t) * ldy + at, total, left)
            if save >= 0:
                for i in range(before):
                    simd.store_f32(
                        saved + i * stride + at, simd.load_part(simd.get_i64(rows + 8 * (start + save - before + i)) + at, left)
                    )
            if end > before:
                for i in range(before):
                    simd.store_f32(
                        own + i * stride + at, simd.load_part(simd.get_i64(rows + 8 * (end - before + i)) + at, left)
                    )
        for t in range(first + n_certain, first + n):  # row by row: memory takes long runs faster
            kept = aside + place_aside(state, t, n_aside) * stride
            for block in range(first_block, end_block):
                simd.stream_f32(kept + 64 * block, simd.load_part(x + t * ldx + 64 * block, n_channels - 16 * block))


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
    runs, n_groups = state.segments, size // group
    for segment in range(state.n_segments):
        run = runs[segment]
        for j in range(run.n * thread // n_threads, run.n * (thread + 1) // n_threads):
            i = run.first + j
            to, weights = row_of(record.out, i), row_of(record.weights, i)
            for index in range(0, size, LANES):
                total = simd.zero_f32()
                for tap in range(min(n_taps, j + 1)):
                    own = simd.splat_f32(simd.get_f32(weights + 4 * (tap * n_groups + index // group)))
                    factor = simd.add(simd.load_f32(record.base + 4 * (tap * size + index)), own)
                    total = simd.fma(factor, simd.load_f32(row_of(record.x, i - tap) + 4 * index), total)
                simd.store_f32(to + 4 * index, total)
