"""Linear recurrences: of every head a matrix that decays, takes in products of keys and values, and is read by queries.

A head's matrix (K, V) lies in blocks of 32 columns, K rows of two vectors one after the other: a block stays in the nearest
cache while all tokens of a run go through it, and threads share the blocks. A token's sweep through a block also computes the
delta rule's product for the next token, so that each goes through it once. Meanwhile the next block is fetched.

Where a head has one decay, its matrix is kept divided by the product of the decays so far, which lies after each block: a token
is then added to a block without multiplying it first. Once the product has left its range the block is multiplied with it.

A token's inputs are in one row, at offsets that the layer's record has. A drafted token's key, decays and update are kept
aside: to take it in, once it was accepted, is a product and a sum for each number, in the order of a certain token.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import exponential
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.simd import load_part, store_part
from augury.backends.numba_cpu.kernels.step import scratch_of
from augury.backends.numba_cpu.kernels.struct import nested, struct
from augury.backends.numba_cpu.kernels.team import Record, StateMemory, StridedRows, place_aside

LOWEST, HIGHEST = np.float32(2.0**-32), np.float32(2.0**32)  # of a scale: values divided by it stay far from overflowing


BLOCK_COLUMNS = 32
_ROW, _HALF = 4 * BLOCK_COLUMNS, 2 * BLOCK_COLUMNS  # bytes of a block's row, and of a vector


@struct
class Heads:
    """The sizes of a recurrence."""

    n_heads: int
    n_key_heads: int
    key_dim: int
    value_dim: int
    is_tiled: bool  # heads have key heads in turns, not in groups


@struct
class Recur(Record):
    """Operands of `recurrence_kernel`'s kernels and of `keep`. Fields `…_at` are bytes from the beginning of a row of x on."""

    x: Any = nested(StridedRows)  # float32
    y: Any = nested(StridedRows)  # (n, n_heads * value_dim) float32
    heads: Any = nested(Heads)
    q_at: int
    k_at: int
    v_at: int
    step_at: int  # decays; betas, where decays are by channel
    beta_at: int
    n_steps: int  # of a token
    aside_stride: int  # bytes of a row kept aside: keys and steps
    state: Any = nested(
        StateMemory
    )  # (slots, n_heads, blocks) blocks; added (slots, n_heads, blocks, n_aside, columns) float32
    n_aside: int
    table: int  # the factors of betas in the exponents, in the order of a matrix, address; if decays are by channel
    decayed_at: int  # keys times decays, which the delta rule multiplies the matrix with; where decays are by key


def block_bytes(key_dim: int) -> int:
    """Bytes of a block: a row for each key, and one for its scale, which is left alone where decays differ within a head."""
    return _ROW * (key_dim + 1)


def scratch_bytes(key_dim: int, n_aside: int) -> int:
    """Bytes of scratch that a recurrence needs per thread: two rows of results, and a block after each token of a tree."""
    return 2 * _ROW + n_aside * block_bytes(key_dim)


@helper
def copy_block(source, to, n_bytes):
    """Copy a block of a matrix; from 0, clear it."""
    for i in range(0, n_bytes, 64):
        if source == 0:
            simd.store_f32(to + i, simd.zero_f32())
        else:
            simd.store_f32(to + i, simd.load_f32(source + i))


@helper
def store_two(place, a, b):
    """Store a row of a block."""
    simd.store_f32(place, a)
    simd.store_f32(place + _HALF, b)


@helper
def copy_floats(x, to, n):
    """Copy n floats; past the caches, where they go to whole lines."""
    for index in range(0, n, 16):
        left = n - index
        if left >= 16 and to % 64 == 0:
            simd.stream_f32(to + 4 * index, simd.load_f32(x + 4 * index))
        else:
            store_part(to + 4 * index, load_part(x + 4 * index, left), left)


@helper
def rescale(source, to, n_rows, scale):
    """Multiply a block with its scale."""
    for at in range(0, _ROW * n_rows, _HALF):
        simd.store_f32(to + at, simd.mul(simd.splat_f32(scale), simd.load_f32(source + at)))


@cache
def recurrence_kernel(*, has_delta: bool, is_by_channel: bool = False, is_by_key: bool = False) -> Any:
    """Make the kernel that takes the tokens of all runs through a layer's recurrence."""
    is_scaled = not (is_by_channel or is_by_key)
    # Bytes from the decay of a block's row to the next row's, and to its second half's.
    stride_of_table, second = (4, 0) if is_by_key else (_ROW, _HALF)

    @helper
    def step_of(place, left):
        """The inputs of half a block's decays, if they differ by channel: the betas of these."""
        return load_part(place, left) if is_by_channel else simd.zero_f32()

    @helper
    def table_of(table, place, head_at):
        """Where there is more of a block's decays: the layer's table for it, or the decays of its rows."""
        return place + head_at if is_by_key else table

    @helper
    def moved(value, key, added, step, table):
        """Half a row of a block after a token."""
        if is_by_channel:
            value = simd.mul(exponential(simd.mul(step, simd.load_f32(table))), value)
        elif is_by_key:
            value = simd.mul(simd.repeat_f32(table), value)
        return simd.fma(key, added, value)

    @helper
    def take_in_some(layer, source, to, taken, n_taken, aside, kept, head, channel, left, key_at, table):
        """Take in tokens between which the scale does not leave its range: four rows of a block go through all."""
        n_rows, stride = layer.heads.key_dim, layer.aside_stride
        steps, head_at = 4 * layer.heads.n_key_heads * n_rows, 4 * head * n_rows  # in a row kept aside; of the head in it
        for j in range(0, n_rows, 4):
            k, l, m = min(j + 1, n_rows - 1), min(j + 2, n_rows - 1), min(j + 3, n_rows - 1)  # a last row may go through twice
            a, b = simd.load_f32(source + _ROW * j), simd.load_f32(source + _ROW * j + _HALF)
            c, d = simd.load_f32(source + _ROW * k), simd.load_f32(source + _ROW * k + _HALF)
            e, f = simd.load_f32(source + _ROW * l), simd.load_f32(source + _ROW * l + _HALF)
            g, h = simd.load_f32(source + _ROW * m), simd.load_f32(source + _ROW * m + _HALF)
            for i in range(n_taken):
                place = simd.get_i64(taken + 8 * i)
                row, one, two = (
                    aside + place * stride,
                    simd.load_f32(kept + _ROW * place),
                    simd.load_f32(kept + _ROW * place + _HALF),
                )
                betas, decays = row + steps + 4 * channel, table_of(table, row + steps, head_at)
                p, q = step_of(betas, left), step_of(betas + _HALF, left - 16)
                key, at = simd.repeat_f32(row + key_at + 4 * j), decays + stride_of_table * j
                a, b = moved(a, key, one, p, at), moved(b, key, two, q, at + second)
                key, at = simd.repeat_f32(row + key_at + 4 * k), decays + stride_of_table * k
                c, d = moved(c, key, one, p, at), moved(d, key, two, q, at + second)
                key, at = simd.repeat_f32(row + key_at + 4 * l), decays + stride_of_table * l
                e, f = moved(e, key, one, p, at), moved(f, key, two, q, at + second)
                key, at = simd.repeat_f32(row + key_at + 4 * m), decays + stride_of_table * m
                g, h = moved(g, key, one, p, at), moved(h, key, two, q, at + second)
            store_two(to + _ROW * j, a, b)
            store_two(to + _ROW * k, c, d)
            store_two(to + _ROW * l, e, f)
            store_two(to + _ROW * m, g, h)

    @helper
    def take_in(layer, source, to, taken, n_taken, aside, kept, head, channel, left, key_at, table):
        """Take tokens whose outputs are not needed into a block, by their inputs kept aside."""
        if not is_scaled:
            take_in_some(layer, source, to, taken, n_taken, aside, kept, head, channel, left, key_at, table)
            return
        n_rows, stride = layer.heads.key_dim, layer.aside_stride
        steps = aside + 4 * (layer.heads.n_key_heads * n_rows + head)
        start, scale = 0, simd.get_f32(source + _ROW * n_rows)
        for i in range(n_taken + 1):
            is_kept = True
            if i < n_taken:
                scale *= simd.get_f32(steps + simd.get_i64(taken + 8 * i) * stride)
                is_kept = LOWEST <= scale <= HIGHEST
            if i == n_taken or not is_kept:
                take_in_some(layer, source, to, taken + 8 * start, i - start, aside, kept, head, channel, left, key_at, table)
                source, start = to, i
            if not is_kept:
                rescale(to, to, n_rows, scale)
                scale = np.float32(1)
        simd.store_f32(to + _ROW * n_rows, simd.splat_f32(scale))

    @helper
    def product(place, n, key, seen):
        """A block's columns times a key, to `seen`."""
        a = b = simd.zero_f32()
        for j in range(n):
            k = simd.repeat_f32(key + 4 * j)
            a, b = simd.fma(simd.load_f32(place + _ROW * j), k, a), simd.fma(simd.load_f32(place + _ROW * j + _HALF), k, b)
        store_two(seen, a, b)

    @helper
    def sweep(source, to, n, key, one, two, p, q, table, query, following, read):
        """Take a token into a block, read it, and multiply it with the key of the token that follows.

        `read` is where both results go, one after the other. The order of addition is that of `product`.
        """
        a = b = c = d = simd.zero_f32()
        for j in range(n):
            at, k = _ROW * j, simd.repeat_f32(key + 4 * j)
            s = moved(simd.load_f32(source + at), k, one, p, table + stride_of_table * j)
            t = moved(simd.load_f32(source + at + _HALF), k, two, q, table + stride_of_table * j + second)
            store_two(to + at, s, t)
            k = simd.repeat_f32(query + 4 * j)
            a, b = simd.fma(s, k, a), simd.fma(t, k, b)
            if has_delta:
                k = simd.repeat_f32(following + 4 * j)
                c, d = simd.fma(s, k, c), simd.fma(t, k, d)
        store_two(read, a, b)
        if has_delta:
            store_two(read + _ROW, c, d)

    def recur(record, state, thread, n_threads):
        n_heads, n_key_heads, width = record.heads.n_heads, record.heads.n_key_heads, record.heads.value_dim
        n_rows, n_blocks = record.heads.key_dim, (width + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS
        n_bytes, n_items = _ROW * (n_rows + 1), n_heads * n_blocks
        x, ldx, y, ldy = record.x.address, 4 * record.x.width, record.y.address, 4 * record.y.width
        stride, step_at, beta_at = record.aside_stride, record.step_at, record.beta_at
        read, n_aside = scratch_of(state, thread), record.n_aside
        seen, scratch = read + _ROW, read + 2 * _ROW
        for run in range(state.n_segments):
            segment = state.segments[run]
            sequence = state.sequences[run]
            first, n, slot, parents = segment.first, segment.n, segment.slot, segment.parents
            taken, n_certain, save = sequence.taken, sequence.n_certain, sequence.save
            n_accepted, n_before = sequence.n_accepted, sequence.n_before
            aside = record.state.aside + slot * n_aside * stride
            for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
                head = item // n_blocks
                block = item - head * n_blocks
                channel = BLOCK_COLUMNS * block
                left = width - channel
                key_head = head // (n_heads // n_key_heads)
                if record.heads.is_tiled != 0:
                    key_head = head % n_key_heads
                key_at, head_at = 4 * key_head * n_rows, 4 * head * n_rows
                column = 4 * (head * width + channel)
                table = record.table + _ROW * item * n_rows
                own = record.state.values + (slot * n_items + item) * n_bytes
                saved = record.state.saved + (slot * n_items + item) * n_bytes
                kept = record.state.added + (slot * n_items + item) * n_aside * _ROW
                if sequence.is_start != 0:
                    copy_block(0, own, n_bytes)
                    if is_scaled:
                        simd.store_f32(own + _ROW * n_rows, simd.splat_f32(np.float32(1)))
                elif sequence.is_restored != 0:
                    copy_block(saved, own, n_bytes)
                if n_accepted:
                    take_in(record, own, own, taken, n_accepted, aside, kept, head, channel, left, key_at, table)
                    for i in range(n_accepted):  # the inputs of the next block, and of the next head's keys as much as channels
                        place = simd.get_i64(taken + 8 * i)
                        simd.prefetch_l2(kept + _ROW * (n_aside + place))
                        simd.prefetch_l2(kept + _ROW * (n_aside + place) + _HALF)
                        simd.prefetch_l2(aside + place * stride + key_at + 4 * (n_rows + channel))
                        simd.prefetch_l2(aside + place * stride + key_at + 4 * (n_rows + channel) + _HALF)
                source, has_product = own, False
                for t in range(n):
                    if t == save:
                        copy_block(own, saved, n_bytes)
                    to = own
                    if t >= n_certain:
                        to = scratch
                        if t == n_certain and n_before:
                            before = taken + 8 * n_accepted
                            take_in(record, own, scratch, before, n_before, aside, kept, head, channel, left, key_at, table)
                            source, has_product = scratch, False
                        if parents != 0:
                            to = scratch + n_bytes * (t - n_certain)
                            above = simd.get_i64(parents + 8 * t)
                            source, has_product = own, False
                            if above >= n_certain:
                                source = scratch + n_bytes * (above - n_certain)
                    for j in range(2 * (t * n_rows // n), 2 * ((t + 1) * n_rows // n)):  # a part beside each token
                        simd.prefetch_l2(own + n_bytes + 64 * j)
                    row = x + (first + t) * ldx
                    key = row + record.k_at + key_at
                    decayed = row + record.decayed_at + head_at if is_by_key else key
                    following = decayed
                    if t + 1 < n:
                        following = decayed + ldx
                    steps, decays = row + step_at + 4 * channel, table_of(table, row + step_at, head_at)
                    p, q = step_of(steps, left), step_of(steps + _HALF, left - 16)
                    scale = np.float32(1)
                    if is_scaled:
                        scale = simd.get_f32(source + _ROW * n_rows) * simd.get_f32(row + step_at + 4 * head)
                    values = row + record.v_at + column
                    one, two = load_part(values, left), load_part(values + _HALF, left - 16)
                    if has_delta:
                        if not has_product:
                            product(source, n_rows, decayed, seen)
                        factor = simd.splat_f32(scale)
                        one = simd.sub(one, simd.mul(factor, simd.load_f32(seen)))
                        two = simd.sub(two, simd.mul(factor, simd.load_f32(seen + _HALF)))
                    beta = simd.repeat_f32(row + beta_at + 4 * head)
                    one, two = simd.mul(one, p if is_by_channel else beta), simd.mul(two, q if is_by_channel else beta)
                    if is_scaled:
                        if LOWEST <= scale <= HIGHEST:
                            one, two = simd.div(one, simd.splat_f32(scale)), simd.div(two, simd.splat_f32(scale))
                        else:
                            rescale(source, to, n_rows, scale)
                            source, scale = to, np.float32(1)
                        simd.store_f32(to + _ROW * n_rows, simd.splat_f32(scale))
                    queries = row + record.q_at + key_at
                    sweep(source, to, n_rows, key, one, two, p, q, decays, queries, following, read)
                    to_y, factor = y + (first + t) * ldy + column, simd.splat_f32(scale)
                    store_part(to_y, simd.mul(simd.load_f32(read), factor), left)
                    store_part(to_y + _HALF, simd.mul(simd.load_f32(read + _HALF), factor), left - 16)
                    source, has_product = to, True
                    if t >= n_certain:
                        place = kept + _ROW * place_aside(state, first + t, n_aside)
                        simd.stream_f32(place, one)
                        simd.stream_f32(place + _HALF, two)
                if save == n:
                    copy_block(own, saved, n_bytes)

    return kernel(recur, "recur" + "_delta" * has_delta + "_by_channel" * is_by_channel + "_by_key" * is_by_key, record=Recur)


@kernel(record=Recur)
def keep(record, state, thread, n_threads):
    """Keep keys and steps of drafted tokens of all runs aside."""
    n_keys, n_steps = record.heads.n_key_heads * record.heads.key_dim, record.n_steps
    stride, n_aside = record.aside_stride, record.n_aside
    for run in range(state.n_segments):
        segment = state.segments[run]
        n_certain = state.sequences[run].n_certain
        first, n, slot = segment.first, segment.n, segment.slot
        n_drafted = n - n_certain
        for item in range(n_drafted * thread // n_threads, n_drafted * (thread + 1) // n_threads):
            t = first + n_certain + item
            row = record.x.address + 4 * t * record.x.width
            to = record.state.aside + (slot * n_aside + place_aside(state, t, n_aside)) * stride
            copy_floats(row + record.k_at, to, n_keys)
            copy_floats(row + record.step_at, to + 4 * n_keys, n_steps)
