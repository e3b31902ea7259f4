"""Linear recurrences: of every head a matrix that decays, takes in products of keys and values, and is read by queries.

A head's matrix (K, V) lies in blocks of 16 columns, K vectors one after the other: a block stays in the nearest cache while
all tokens of a run go through it, and threads share the blocks. A token's sweep through a block computes at once what the
delta rule wants of the next token, so that each goes through it once.

What a token feeds it lies in one row, at offsets that the layer's record has. Of a drafted token its key, its decays and what
was added for its value are kept aside: to take it in, once it was accepted, is a product and a sum for each number, in the
order of a certain token.
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
# beginning of a row of x on. Where decays are by channel, `STEP_AT` are betas, and the table has what they are multiplied with
# in the exponents, in the order of a matrix; otherwise they are decays. Where these are by key, `DECAYED_AT` are the keys times
# them, which the delta rule multiplies the matrix with. Rows kept aside have keys and `N_STEPS` steps; what is added lies
# apart, by block and token.
(X, LDX, Y, LDY, N_HEADS, N_KEY_HEADS, KEY_DIM, VALUE_DIM, IS_TILED) = (8 * field for field in range(9))
(Q_AT, K_AT, V_AT, STEP_AT, BETA_AT, N_STEPS) = (8 * field for field in range(9, 15))
(ASIDE_STRIDE, STATE, SAVED, ASIDE, ADDED, N_ASIDE, TABLE, DECAYED_AT) = (8 * field for field in range(15, 23))


def scratch_bytes(key_dim: int, n_aside: int) -> int:
    """Bytes of scratch that a recurrence needs per thread: a block after each token of a tree."""
    return 128 + 64 * key_dim * n_aside


@helper
def copy_block(source, to, n_bytes):
    """Copy a block of a matrix; from 0, clear it."""
    for i in range(0, n_bytes, 64):
        if source == 0:
            store_f32(to + i, zero_f32())
        else:
            store_f32(to + i, load_f32(source + i))


@helper
def copy_floats(x, to, n):
    """Copy n floats."""
    for index in range(0, n, 16):
        store_part(to + 4 * index, load_part(x + 4 * index, n - index), n - index)


@cache
def recurrence_kernel(*, has_delta: bool, is_by_channel: bool = False, is_by_key: bool = False) -> Any:
    """Make the kernel that takes the tokens of all runs through a layer's recurrence. Operand: the layer."""
    stride_of_table = 4 if is_by_key else 64  # bytes from what a row of a block decays by to the next row's

    @helper
    def step_of(place, head, block, left):
        """What a block's decays are made of: the head's decay, or the betas of its channels."""
        if is_by_channel:
            return load_part(place + 64 * block, left)
        return zero_f32() if is_by_key else repeat_f32(place + 4 * head)

    @helper
    def table_of(table, place, head_at):
        """Where there is more of a block's decays: the layer's table for it, or the decays of its rows."""
        return place + head_at if is_by_key else table

    @helper
    def moved(place, key, added, step, table):
        """A vector of a block after a token."""
        if is_by_channel:
            step = exponential(mul(step, load_f32(table)))
        elif is_by_key:
            step = repeat_f32(table)
        return fma(repeat_f32(key), added, mul(step, load_f32(place)))

    @helper
    def take_in(source, to, n, key, added, step, table):
        """Take a token that nobody reads into a block."""
        for j in range(n):
            store_f32(to + 64 * j, moved(source + 64 * j, key + 4 * j, added, step, table + stride_of_table * j))

    @helper
    def take_in_four(own, n, taken, rows, stride, key_at, step_at, added):
        """Take four tokens into a block, by what is kept aside of them."""
        i, j, k, l = get_i64(taken), get_i64(taken + 8), get_i64(taken + 16), get_i64(taken + 24)
        a, b, c, d = load_f32(added + 64 * i), load_f32(added + 64 * j), load_f32(added + 64 * k), load_f32(added + 64 * l)
        i, j, k, l = rows + i * stride, rows + j * stride, rows + k * stride, rows + l * stride
        p, q, r, s = repeat_f32(i + step_at), repeat_f32(j + step_at), repeat_f32(k + step_at), repeat_f32(l + step_at)
        for at in range(key_at, key_at + 4 * n, 4):
            value = fma(repeat_f32(i + at), a, mul(p, load_f32(own)))
            value = fma(repeat_f32(j + at), b, mul(q, value))
            value = fma(repeat_f32(k + at), c, mul(r, value))
            store_f32(own, fma(repeat_f32(l + at), d, mul(s, value)))
            own += 64

    @helper
    def product(place, n, key):
        """A block's columns times a key."""
        a = b = c = d = zero_f32()
        even = n // 4 * 4
        for j in range(0, even, 4):
            a = fma(load_f32(place + 64 * j), repeat_f32(key + 4 * j), a)
            b = fma(load_f32(place + 64 * j + 64), repeat_f32(key + 4 * j + 4), b)
            c = fma(load_f32(place + 64 * j + 128), repeat_f32(key + 4 * j + 8), c)
            d = fma(load_f32(place + 64 * j + 192), repeat_f32(key + 4 * j + 12), d)
        for j in range(even, n):
            a = fma(load_f32(place + 64 * j), repeat_f32(key + 4 * j), a)
        return add(add(a, b), add(c, d))

    @helper
    def sweep(source, to, n, key, added, step, table, query, following, read):
        """Take a token into a block, read it, and multiply it with the key of the token that follows.

        `read` is where both results go. The order of addition is that of `product`.
        """
        a = b = c = d = zero_f32()
        e = f = g = h = zero_f32()
        even = n // 4 * 4
        for j in range(0, even, 4):
            at, place, decays = 64 * j, 4 * j, table + stride_of_table * j
            s = moved(source + at, key + place, added, step, decays)
            store_f32(to + at, s)
            a = fma(s, repeat_f32(query + place), a)
            if has_delta:
                e = fma(s, repeat_f32(following + place), e)
            at, place, decays = at + 64, place + 4, decays + stride_of_table
            s = moved(source + at, key + place, added, step, decays)
            store_f32(to + at, s)
            b = fma(s, repeat_f32(query + place), b)
            if has_delta:
                f = fma(s, repeat_f32(following + place), f)
            at, place, decays = at + 64, place + 4, decays + stride_of_table
            s = moved(source + at, key + place, added, step, decays)
            store_f32(to + at, s)
            c = fma(s, repeat_f32(query + place), c)
            if has_delta:
                g = fma(s, repeat_f32(following + place), g)
            at, place, decays = at + 64, place + 4, decays + stride_of_table
            s = moved(source + at, key + place, added, step, decays)
            store_f32(to + at, s)
            d = fma(s, repeat_f32(query + place), d)
            if has_delta:
                h = fma(s, repeat_f32(following + place), h)
        for j in range(even, n):
            s = moved(source + 64 * j, key + 4 * j, added, step, table + stride_of_table * j)
            store_f32(to + 64 * j, s)
            a = fma(s, repeat_f32(query + 4 * j), a)
            if has_delta:
                e = fma(s, repeat_f32(following + 4 * j), e)
        store_f32(read, add(add(a, b), add(c, d)))
        if has_delta:
            store_f32(read + 64, add(add(e, f), add(g, h)))

    def recur(record, state, thread, n_threads):
        layer = get_i64(record + 16)
        n_heads, n_key_heads, width = get_i64(layer + N_HEADS), get_i64(layer + N_KEY_HEADS), get_i64(layer + VALUE_DIM)
        n_rows, n_blocks = get_i64(layer + KEY_DIM), (width + 15) // 16
        n_bytes, n_items = 64 * n_rows, n_heads * n_blocks
        x, ldx, y, ldy = get_i64(layer + X), 4 * get_i64(layer + LDX), get_i64(layer + Y), 4 * get_i64(layer + LDY)
        stride, step_at, beta_at = get_i64(layer + ASIDE_STRIDE), get_i64(layer + STEP_AT), get_i64(layer + BETA_AT)
        steps = 4 * n_key_heads * n_rows  # in a row kept aside
        read, n_aside = scratch_of(state, thread), get_i64(layer + N_ASIDE)
        scratch = read + 128
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
            n_accepted, n_before = get_i64(sequence + N_ACCEPTED), get_i64(sequence + N_BEFORE)
            aside = get_i64(layer + ASIDE) + slot * n_aside * stride
            for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
                head = item // n_blocks
                block = item - head * n_blocks
                left = width - 16 * block
                key_head = head // (n_heads // n_key_heads)
                if get_i64(layer + IS_TILED) != 0:
                    key_head = head % n_key_heads
                key_at, head_at = 4 * key_head * n_rows, 4 * head * n_rows
                column = 4 * (head * width + 16 * block)
                table = get_i64(layer + TABLE) + item * n_bytes
                own = get_i64(layer + STATE) + (slot * n_items + item) * n_bytes
                saved = get_i64(layer + SAVED) + (slot * n_items + item) * n_bytes
                kept = get_i64(layer + ADDED) + (slot * n_items + item) * n_aside * 64
                if get_i64(sequence + IS_START) != 0:
                    copy_block(0, own, n_bytes)
                elif get_i64(sequence + IS_RESTORED) != 0:
                    copy_block(saved, own, n_bytes)
                i = 0
                if not is_by_channel and not is_by_key:
                    while i + 4 <= n_accepted:
                        take_in_four(own, n_rows, taken + 8 * i, aside, stride, key_at, steps + 4 * head, kept)
                        i += 4
                while i < n_accepted:
                    row, added = aside + get_i64(taken + 8 * i) * stride, load_f32(kept + 64 * get_i64(taken + 8 * i))
                    step, decays = step_of(row + steps, head, block, left), table_of(table, row + steps, head_at)
                    take_in(own, own, n_rows, row + key_at, added, step, decays)
                    i += 1
                source, has_product = own, False
                for t in range(n):
                    if t == save:
                        copy_block(own, saved, n_bytes)
                    to = own
                    if t >= n_certain:
                        to = scratch
                        if t == n_certain:
                            for k in range(n_accepted, n_accepted + n_before):
                                row, added = (
                                    aside + get_i64(taken + 8 * k) * stride,
                                    load_f32(kept + 64 * get_i64(taken + 8 * k)),
                                )
                                step, decays = step_of(row + steps, head, block, left), table_of(table, row + steps, head_at)
                                take_in(source, scratch, n_rows, row + key_at, added, step, decays)
                                source, has_product = scratch, False
                        if parents != 0:
                            to = scratch + n_bytes * (t - n_certain)
                            above = get_i64(parents + 8 * t)
                            source, has_product = own, False
                            if above >= n_certain:
                                source = scratch + n_bytes * (above - n_certain)
                    row = x + (first + t) * ldx
                    key = row + get_i64(layer + K_AT) + key_at
                    decayed = row + get_i64(layer + DECAYED_AT) + head_at if is_by_key else key
                    following = decayed
                    if t + 1 < n:
                        following = decayed + ldx
                    step, decays = step_of(row + step_at, head, block, left), table_of(table, row + step_at, head_at)
                    added = load_part(row + get_i64(layer + V_AT) + column, left)
                    if has_delta:
                        if not has_product:
                            store_f32(read + 64, product(source, n_rows, decayed))
                        seen = load_f32(read + 64)
                        added = sub(added, seen if is_by_key else mul(step, seen))
                    factor = step if is_by_channel else repeat_f32(row + beta_at + 4 * head)
                    added = mul(added, factor)
                    sweep(source, to, n_rows, key, added, step, decays, row + get_i64(layer + Q_AT) + key_at, following, read)
                    store_part(y + (first + t) * ldy + column, load_f32(read), left)
                    source, has_product = to, True
                    if t >= n_certain:
                        store_f32(kept + 64 * place_aside(state, first + t, n_aside), added)
                if save == n:
                    copy_block(own, saved, n_bytes)

    recur.__name__ = recur.__qualname__ = "recur" + "_delta" * has_delta + "_by_channel" * is_by_channel + "_by_key" * is_by_key
    return kernel(recur)


@kernel
def keep(record, state, thread, n_threads):
    """Keep keys and steps of drafted tokens of all runs aside. Operand: the layer."""
    layer = get_i64(record + 16)
    n_keys, n_steps = get_i64(layer + N_KEY_HEADS) * get_i64(layer + KEY_DIM), get_i64(layer + N_STEPS)
    stride, n_aside = get_i64(layer + ASIDE_STRIDE), get_i64(layer + N_ASIDE)
    for run in range(get_i64(state + N_SEGMENTS)):
        segment = get_i64(state + SEGMENTS) + SEGMENT_BYTES * run
        n_certain = get_i64(get_i64(state + SEQUENCES) + SEQUENCE_BYTES * run + N_CERTAIN)
        first, n, slot = get_i64(segment), get_i64(segment + 8), get_i64(segment + 16)
        n_drafted = n - n_certain
        for item in range(n_drafted * thread // n_threads, n_drafted * (thread + 1) // n_threads):
            t = first + n_certain + item
            row = get_i64(layer + X) + 4 * t * get_i64(layer + LDX)
            to = get_i64(layer + ASIDE) + (slot * n_aside + place_aside(state, t, n_aside)) * stride
            copy_floats(row + get_i64(layer + K_AT), to, n_keys)
            copy_floats(row + get_i64(layer + STEP_AT), to + 4 * n_keys, n_steps)
