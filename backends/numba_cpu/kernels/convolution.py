"""Causal convolutions, a channel by itself, whose last inputs are kept per sequence."""

from __future__ import annotations

from augury.backends.numba_cpu.kernels.activation import silu
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import load_part, store_part
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.sequence import (
    IS_RESTORED,
    IS_START,
    N_ACCEPTED,
    N_BEFORE,
    N_CERTAIN,
    SAVE,
    SEQUENCE_BYTES,
    TAKEN,
    place_aside,
)
from augury.backends.numba_cpu.kernels.simd import (
    add,
    fma,
    get_i64,
    load_f32,
    mul,
    prefetch,
    put_i64,
    store_f32,
    stream_f32,
    zero_f32,
)
from augury.backends.numba_cpu.kernels.step import scratch_of
from augury.backends.numba_cpu.kernels.team import N_SEGMENTS, SEGMENTS, SEQUENCES, segments_at

# Offsets into the record of a layer's convolution. Rows of x, the gates and y are so many floats apart; those of the state,
# of what is saved and of what is kept aside are `WIDTH` floats: the channels, in whole vectors. 0 stands for no gate or bias.
(X, LDX, GATE_IN, GATE_OUT, Y, LDY, N_CHANNELS, WIDTH, SIZE, TAPS, BIAS, HAS_SILU, STATE, SAVED, ASIDE, N_ASIDE) = (
    8 * field for field in range(16)
)
_AHEAD = 1024  # bytes


def scratch_bytes(size: int, n_aside: int) -> int:
    """Bytes of scratch that `convolve` needs per thread: addresses of rows, and the windows of a tree's tokens."""
    return 8 * (size + 2 * n_aside + MAX_TOKENS + size * n_aside)


@helper
def list_rows(layer, segment, sequence, rows):
    """The addresses of a run's inputs: those of its state, accepted, certain, drafted before, drafted ones."""
    first, n, slot = segment.first, segment.n, segment.slot
    stride, size, n_aside = 4 * get_i64(layer + WIDTH), get_i64(layer + SIZE), get_i64(layer + N_ASIDE)
    own, aside = get_i64(layer + STATE) + slot * (size - 1) * stride, get_i64(layer + ASIDE) + slot * n_aside * stride
    x, ldx, taken = get_i64(layer + X), 4 * get_i64(layer + LDX), get_i64(sequence + TAKEN)
    n_accepted, n_certain = get_i64(sequence + N_ACCEPTED), get_i64(sequence + N_CERTAIN)
    for i in range(size - 1):
        put_i64(rows, own + i * stride)
        rows += 8
    for i in range(n_accepted):
        put_i64(rows, aside + get_i64(taken + 8 * i) * stride)
        rows += 8
    for t in range(first, first + n_certain):
        put_i64(rows, x + t * ldx)
        rows += 8
    for i in range(n_accepted, n_accepted + get_i64(sequence + N_BEFORE)):
        put_i64(rows, aside + get_i64(taken + 8 * i) * stride)
        rows += 8
    for t in range(first + n_certain, first + n):
        put_i64(rows, x + t * ldx)
        rows += 8


@helper
def list_windows(parents, n_certain, n, size, rows, end, windows):
    """The rows that each drafted token of a tree sees; `end` of the rows are the state's and certain ones."""
    for t in range(n_certain, n):
        node, before = t, end - 1
        for j in range(size - 1, -1, -1):
            if node >= n_certain:
                row = get_i64(rows + 8 * (end + node - n_certain))
                node = get_i64(parents + 8 * node)
            else:
                row = get_i64(rows + 8 * before)
                before -= 1
            put_i64(windows + 8 * j, row)
        windows += 8 * size


@kernel
def convolve(record, state, thread, n_threads):
    """Convolve the rows of all runs, and bring their states up to date. Operand: the layer.

    y = gate_out * activation(b + sum of the taps times the last inputs), the oldest first; an input is gate_in * x.
    """
    layer = get_i64(record + 16)
    n_channels, stride, size = get_i64(layer + N_CHANNELS), 4 * get_i64(layer + WIDTH), get_i64(layer + SIZE)
    n_blocks = (n_channels + 15) // 16
    first_block, end_block = n_blocks * thread // n_threads, n_blocks * (thread + 1) // n_threads
    if first_block == end_block:
        return
    x, ldx, y, ldy = get_i64(layer + X), 4 * get_i64(layer + LDX), get_i64(layer + Y), 4 * get_i64(layer + LDY)
    gate_in, gate_out, bias = get_i64(layer + GATE_IN), get_i64(layer + GATE_OUT), get_i64(layer + BIAS)
    n_aside, before, rows = get_i64(layer + N_ASIDE), size - 1, scratch_of(state, thread)
    for run in range(get_i64(state + N_SEGMENTS)):
        segment = segments_at(get_i64(state + SEGMENTS))[run]
        sequence = get_i64(state + SEQUENCES) + SEQUENCE_BYTES * run
        first, n, slot, parents = segment.first, segment.n, segment.slot, segment.parents
        n_certain, save = get_i64(sequence + N_CERTAIN), get_i64(sequence + SAVE)
        own, saved = get_i64(layer + STATE) + slot * before * stride, get_i64(layer + SAVED) + slot * before * stride
        aside = get_i64(layer + ASIDE) + slot * n_aside * stride
        list_rows(layer, segment, sequence, rows)
        start = before + get_i64(sequence + N_ACCEPTED)
        end = start + n_certain
        after = end + get_i64(sequence + N_BEFORE)
        windows = rows + 8 * (after + n - n_certain)
        if parents != 0:
            list_windows(parents, n_certain, n, size, rows, end, windows)
        for block in range(first_block, end_block):
            at, left = 64 * block, n_channels - 16 * block
            for i in range(before):  # no other pass's rows are in a cache
                prefetch(own + i * stride + at + _AHEAD)
                prefetch(get_i64(rows + 8 * (start - before + i)) + at + _AHEAD)
            if get_i64(sequence + IS_START) != 0:
                for i in range(before):
                    store_f32(own + i * stride + at, zero_f32())
            elif get_i64(sequence + IS_RESTORED) != 0:
                for i in range(before):
                    store_f32(own + i * stride + at, load_f32(saved + i * stride + at))
            if gate_in != 0:
                for t in range(first, first + n):
                    place = x + t * ldx + at
                    store_part(place, mul(load_part(gate_in + t * ldx + at, left), load_part(place, left)), left)
            for t in range(n):
                window = rows + 8 * (start + t - before)
                if t >= n_certain:
                    if parents != 0:
                        window = windows + 8 * size * (t - n_certain)
                    else:
                        window = rows + 8 * (after + t - n_certain - before)
                total = zero_f32()
                for j in range(size):
                    tap = load_f32(get_i64(layer + TAPS) + j * stride + at)
                    total = fma(load_part(get_i64(window + 8 * j) + at, left), tap, total)
                if bias != 0:
                    total = add(total, load_part(bias + at, left))
                if get_i64(layer + HAS_SILU) != 0:
                    total = silu(total)
                if gate_out != 0:
                    total = mul(total, load_part(gate_out + (first + t) * ldx + at, left))
                store_part(y + (first + t) * ldy + at, total, left)
            if save >= 0:
                for i in range(before):
                    store_f32(saved + i * stride + at, load_part(get_i64(rows + 8 * (start + save - before + i)) + at, left))
            if end > before:
                for i in range(before):
                    store_f32(own + i * stride + at, load_part(get_i64(rows + 8 * (end - before + i)) + at, left))
        for t in range(first + n_certain, first + n):  # row by row: memory takes long runs faster
            kept = aside + place_aside(state, t, n_aside) * stride
            for block in range(first_block, end_block):
                stream_f32(kept + 64 * block, load_part(x + t * ldx + 64 * block, n_channels - 16 * block))
