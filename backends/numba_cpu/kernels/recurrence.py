"""Linear recurrences: of every head a matrix that decays, takes in products of keys and values, and is read by queries.

A head's matrix (K, V) lies in blocks of 16 columns, K vectors one after the other: a block stays in the nearest cache while all
tokens of a run go through it, and threads share the blocks.

What a token feeds it lies in one row, at offsets that the layer's record has; the part from `FED_AT` on is what is kept aside
of drafted tokens.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from augury.backends.numba_cpu.kernels.activation import exponential
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import load_part, store_part
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
    repeat_f32,
    store_f32,
    sub,
    zero_f32,
)
from augury.backends.numba_cpu.kernels.step import scratch_of
from augury.backends.numba_cpu.kernels.team import N_SEGMENTS, SEGMENT_BYTES, SEGMENTS, SEQUENCES

# Offsets into the record of a layer's recurrence. Rows of x and y are so many floats apart; what is `…_AT` are bytes from the
# beginning of a row of x on. Kept aside are `N_FED` floats of a row, `FED_STRIDE` bytes apart. Where decays are by channel, the
# table has what betas are multiplied with in their exponents, in the order of a matrix.
(X, LDX, Y, LDY, N_HEADS, N_KEY_HEADS, KEY_DIM, VALUE_DIM, IS_TILED, Q_AT, K_AT, V_AT, DECAY_AT, BETA_AT, FED_AT, N_FED) = (
    8 * field for field in range(16)
)
FED_STRIDE, STATE, SAVED, ASIDE, N_ASIDE, TABLE = (8 * field for field in range(16, 22))


def scratch_bytes(key_dim: int, n_aside: int) -> int:
    """Bytes of scratch that a recurrence needs per thread: a block after each token of a tree."""
    return 64 * key_dim * n_aside


@helper
def copy_block(source, to, n_bytes):
    """Copy a block of a matrix; from 0, clear it."""
    for i in range(0, n_bytes, 64):
        if source == 0:
            store_f32(to + i, zero_f32())
        else:
            store_f32(to + i, load_f32(source + i))


@cache
def recurrence_kernel(*, has_delta: bool, is_by_channel: bool = False) -> Any:
    """Make the kernel that takes the tokens of all runs through a layer's recurrence. Operand: the layer."""

    @helper
    def decayed(place, decay, betas, table):
        """A vector of a matrix, decayed."""
        if is_by_channel:
            return mul(exponential(mul(betas, load_f32(table))), load_f32(place))
        return mul(decay, load_f32(place))

    @helper
    def advance(layer, row, key_head, head, block, left, source, to, query, table):
        """Take one token into a block of a head, from `source` to `to`, and read it. The order of addition is fixed."""
        n = get_i64(layer + KEY_DIM)
        key = row + get_i64(layer + K_AT) + 4 * key_head * n
        if is_by_channel:
            betas = load_part(row + get_i64(layer + BETA_AT) + 64 * block, left)
            decay = betas
        else:
            betas = repeat_f32(row + get_i64(layer + BETA_AT) + 4 * head)
            decay = repeat_f32(row + get_i64(layer + DECAY_AT) + 4 * head)
        added = load_part(row + get_i64(layer + V_AT) + 4 * (head * get_i64(layer + VALUE_DIM) + 16 * block), left)
        even = n // 4 * 4
        if has_delta:
            a = b = c = d = zero_f32()
            for j in range(0, even, 4):
                place = source + 64 * j
                a = fma(load_f32(place), repeat_f32(key + 4 * j), a)
                b = fma(load_f32(place + 64), repeat_f32(key + 4 * j + 4), b)
                c = fma(load_f32(place + 128), repeat_f32(key + 4 * j + 8), c)
                d = fma(load_f32(place + 192), repeat_f32(key + 4 * j + 12), d)
            for j in range(even, n):
                a = fma(load_f32(source + 64 * j), repeat_f32(key + 4 * j), a)
            added = sub(added, mul(decay, add(add(a, b), add(c, d))))
        added = mul(added, betas)
        a = b = c = d = zero_f32()
        for j in range(0, even, 4):
            place = 64 * j
            s = fma(repeat_f32(key + 4 * j), added, decayed(source + place, decay, betas, table + place))
            store_f32(to + place, s)
            a = fma(s, repeat_f32(query + 4 * j), a)
            s = fma(repeat_f32(key + 4 * j + 4), added, decayed(source + place + 64, decay, betas, table + place + 64))
            store_f32(to + place + 64, s)
            b = fma(s, repeat_f32(query + 4 * j + 4), b)
            s = fma(repeat_f32(key + 4 * j + 8), added, decayed(source + place + 128, decay, betas, table + place + 128))
            store_f32(to + place + 128, s)
            c = fma(s, repeat_f32(query + 4 * j + 8), c)
            s = fma(repeat_f32(key + 4 * j + 12), added, decayed(source + place + 192, decay, betas, table + place + 192))
            store_f32(to + place + 192, s)
            d = fma(s, repeat_f32(query + 4 * j + 12), d)
        for j in range(even, n):
            s = fma(repeat_f32(key + 4 * j), added, decayed(source + 64 * j, decay, betas, table + 64 * j))
            store_f32(to + 64 * j, s)
            a = fma(s, repeat_f32(query + 4 * j), a)
        return add(add(a, b), add(c, d))

    def recur(record, state, thread, n_threads):
        layer = get_i64(record + 16)
        n_heads, n_key_heads, width = get_i64(layer + N_HEADS), get_i64(layer + N_KEY_HEADS), get_i64(layer + VALUE_DIM)
        n_bytes, n_blocks = 64 * get_i64(layer + KEY_DIM), (width + 15) // 16
        n_items = n_heads * n_blocks
        x, ldx, y, ldy = get_i64(layer + X), 4 * get_i64(layer + LDX), get_i64(layer + Y), 4 * get_i64(layer + LDY)
        stride, q_at, k_at = get_i64(layer + FED_STRIDE), get_i64(layer + Q_AT), get_i64(layer + K_AT)
        scratch, table = scratch_of(state, thread), get_i64(layer + TABLE)
        for run in range(get_i64(state + N_SEGMENTS)):
            segment = get_i64(state + SEGMENTS) + SEGMENT_BYTES * run
            sequence = get_i64(state + SEQUENCES) + SEQUENCE_BYTES * run
            first, n, slot, parents = (
                get_i64(segment),
                get_i64(segment + 8),
                get_i64(segment + 16),
                get_i64(segment + 24),
            )
            taken, n_certain, save = get_i64(sequence + TAKEN), get_i64(sequence + N_CERTAIN), get_i64(sequence + SAVE)
            aside = get_i64(layer + ASIDE) + slot * get_i64(layer + N_ASIDE) * stride - get_i64(layer + FED_AT)
            start = get_i64(sequence + N_ACCEPTED)
            end = start + n_certain
            after = end + get_i64(sequence + N_BEFORE)
            for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
                head = item // n_blocks
                block = item - head * n_blocks
                key_head = head // (n_heads // n_key_heads)
                if get_i64(layer + IS_TILED) != 0:
                    key_head = head % n_key_heads
                own = get_i64(layer + STATE) + (slot * n_items + item) * n_bytes
                saved = get_i64(layer + SAVED) + (slot * n_items + item) * n_bytes
                if get_i64(sequence + IS_START) != 0:
                    copy_block(0, own, n_bytes)
                elif get_i64(sequence + IS_RESTORED) != 0:
                    copy_block(saved, own, n_bytes)
                source, to = own, own
                for i in range(after + n - n_certain):
                    if i == start + save and save >= 0:
                        copy_block(own, saved, n_bytes)
                    if i >= end:
                        to = scratch
                    t = -1
                    if start <= i < end:
                        t = i - start
                    elif i >= after:
                        t = i - after + n_certain
                        if parents != 0:
                            to = scratch + n_bytes * (t - n_certain)
                            above = get_i64(parents + 8 * t)
                            source = own
                            if above >= n_certain:
                                source = scratch + n_bytes * (above - n_certain)
                    if t >= 0:
                        row = x + (first + t) * ldx
                        query = row + q_at
                    else:
                        number = i
                        if i >= end:
                            number = i - n_certain
                        row = aside + get_i64(taken + 8 * number) * stride
                        query = row + k_at  # of what is kept aside there are no queries, and nobody reads
                    query += 4 * key_head * get_i64(layer + KEY_DIM)
                    left = width - 16 * block
                    found = advance(layer, row, key_head, head, block, left, source, to, query, table + item * n_bytes)
                    if t >= 0:
                        store_part(y + (first + t) * ldy + 4 * (head * width + 16 * block), found, left)
                    source = to
                if save >= 0 and start + save == after + n - n_certain:
                    copy_block(own, saved, n_bytes)

    recur.__name__ = recur.__qualname__ = "recur" + "_delta" * has_delta + "_by_channel" * is_by_channel
    return kernel(recur)


@kernel
def keep(record, state, thread, n_threads):
    """Keep aside what drafted tokens of all runs feed a recurrence. Operand: the layer."""
    layer = get_i64(record + 16)
    n_fed, stride, n_aside = get_i64(layer + N_FED), get_i64(layer + FED_STRIDE), get_i64(layer + N_ASIDE)
    n_blocks = (n_fed + 15) // 16
    for run in range(get_i64(state + N_SEGMENTS)):
        segment = get_i64(state + SEGMENTS) + SEGMENT_BYTES * run
        n_certain = get_i64(get_i64(state + SEQUENCES) + SEQUENCE_BYTES * run + N_CERTAIN)
        first, n, slot = get_i64(segment), get_i64(segment + 8), get_i64(segment + 16)
        for t in range(first + n_certain, first + n):
            row = get_i64(layer + X) + 4 * t * get_i64(layer + LDX) + get_i64(layer + FED_AT)
            to = get_i64(layer + ASIDE) + (slot * n_aside + place_aside(state, t, n_aside)) * stride
            for block in range(n_blocks * thread // n_threads, n_blocks * (thread + 1) // n_threads):
                left = n_fed - 16 * block
                store_part(to + 64 * block, load_part(row + 64 * block, left), left)
