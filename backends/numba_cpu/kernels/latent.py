"""What latent attention does beside attending: products of heads with a matrix each, and the way into its cache.

Of every position a row is kept, cell by cell: the latent vector, padded to PART, and the values that rope turned, padded
likewise, see `cache_type.py`. Queries are laid out the same way.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.attention_layer import COMPARED, COMPARED_BYTES, KEYS, LDQ, PREPARE_HEAD, D, H, Q, T
from augury.backends.numba_cpu.kernels.attention_store import move_row
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES, store_value
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.simd import get_i64
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, claim, scratch_of, share
from augury.backends.numba_cpu.kernels.team import CELLS, N_TOKENS, POSITIONS, SLOTS

PART = 32  # the padding: of a panel of rows, and of numbers that share a scale in a cache

# Offsets into the record of a layer, after those of `attention_layer`: queries as they were computed, floats of a row of them,
# of a head and of its part that is not turned; latents and what is turned, floats of a row; how many are latent, the same
# padded, how many are turned; what is done to latents, to a part of queries and to what is kept turned.
(HEADS, LDH, HEAD_DIM, PLAIN, KEPT, LDK, LATENT, PADDED, TURNED, NORM, TURN, TURN_KEPT) = (
    COMPARED_BYTES + 8 * i for i in range(1, 13)
)

# Offsets into the table of the matrices of all heads: kernel, weights, columns; panels of a head, stored ones of a head, the
# first of them; operands, from one thread's to the next, bytes of a row; y, floats of a row, floats of a head; heads.
(KERNEL, MATRIX, N_COLS, N_PANELS, STORED_PANELS, FIRST_PANEL) = (8 * i for i in range(6))
(OPERANDS, OPERAND_STRIDE, OPERAND_BYTES, Y, LDY, HEAD_Y, N_HEADS) = (8 * i for i in range(6, 13))


@helper
def _copy(x, to, size):
    for i in range(0, size, 16):
        store_part(to + 4 * i, load_part(x + 4 * i, size - i), size - i)


@kernel
def quantize_heads(record, state, thread, n_threads):
    """A part of every head → operands of the matrix kernels, head by head.

    Operands: table, quantise, x, floats of a row, of a head, is_private.
    """
    table, quantize, x = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32)
    ldx, head_dim = get_i64(record + 40), get_i64(record + 48)
    n, n_cols, scratch = get_i64(state + N_TOKENS), get_i64(table + N_COLS), scratch_of(state, thread)
    operands = get_i64(table + OPERANDS) + thread * get_i64(table + OPERAND_STRIDE)
    first, end = share(get_i64(table + N_HEADS), thread, n_threads, get_i64(record + 56))
    for head in range(first, end):
        for t in range(n):
            _copy(x + 4 * (t * ldx + head * head_dim), scratch + 4 * t * n_cols, n_cols)
        to = operands + head * n * get_i64(table + OPERAND_BYTES)
        invoke(quantize, (scratch, to, n, n_cols, 0, n * ((n_cols + 31) // 32)))


@kernel
def multiply_heads(record, state, thread, n_threads):
    """The products of every head's operands with its matrix. Operand: table."""
    table, n = get_i64(record + 16), get_i64(state + N_TOKENS)
    n_panels, ldy = get_i64(table + N_PANELS), get_i64(table + LDY)
    operands = get_i64(table + OPERANDS) + thread * get_i64(table + OPERAND_STRIDE)
    while True:
        item, last = claim(state, get_i64(table + N_HEADS) * n_panels, n_threads)
        if item == last:
            return
        while item < last:
            head, first = item // n_panels, item % n_panels
            end = min(n_panels, first + last - item)
            panel = head * get_i64(table + STORED_PANELS) + get_i64(table + FIRST_PANEL)
            # the kernel counts panels from the first of all heads, of the matrix and of y alike
            y = get_i64(table + Y) + 4 * (head * get_i64(table + HEAD_Y) - PANEL_ROWS * panel)
            places = (get_i64(table + MATRIX), operands + head * n * get_i64(table + OPERAND_BYTES), y, n)
            span = (get_i64(table + N_COLS), panel + first, panel + end, ldy, scratch_of(state, thread))
            invoke(get_i64(table + KERNEL), places + span)
            item += end - first


@kernel
def gather_parts(record, state, thread, n_threads):
    """Put the parts of every row side by side. Operands: x, floats of a row, parts, from one to the next, floats of one, y."""
    n_parts, size = get_i64(record + 32), get_i64(record + 48)
    n_items = get_i64(state + N_TOKENS) * n_parts
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        t, part = item // n_parts, item % n_parts
        x = get_i64(record + 16) + 4 * (t * get_i64(record + 24) + part * get_i64(record + 40))
        _copy(x, get_i64(record + 56) + 4 * item * size, size)


@cache
def prepare_kernel(kind: str) -> Any:
    """Make the kernel that norms and turns what is kept, stores it, and turns its part of queries. Operand: the layer."""
    put, n_bytes = store_value(kind), BYTES[kind]

    @helper
    def lay_out(x, to, size, padded):
        for i in range(0, padded, 16):
            simd.store_f32(to + 4 * i, simd.zero_f32())
        _copy(x, to, size)

    def prepare(record, state, thread, n_threads):
        layer = get_i64(record + 16)
        n, n_heads, d, prepare_head = (
            get_i64(state + N_TOKENS),
            get_i64(layer + H),
            get_i64(layer + D),
            get_i64(layer + PREPARE_HEAD),
        )
        latent, padded, turned = get_i64(layer + LATENT), get_i64(layer + PADDED), get_i64(layer + TURNED)
        row = scratch_of(state, thread)
        n_items = n * (n_heads + 1)
        for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
            t, head = item // (n_heads + 1), item % (n_heads + 1)
            position = get_i64(get_i64(state + POSITIONS) + 8 * t)
            if head < n_heads:
                x = get_i64(layer + HEADS) + 4 * (t * get_i64(layer + LDH) + head * get_i64(layer + HEAD_DIM))
                to = get_i64(layer + Q) + 4 * (t * get_i64(layer + LDQ) + head * d + padded)
                lay_out(x + 4 * get_i64(layer + PLAIN), to, turned, d - padded)
            else:
                x, to = get_i64(layer + KEPT) + 4 * t * get_i64(layer + LDK), row + 4 * padded
                lay_out(x, row, latent, padded)
                invoke(prepare_head, (row, get_i64(layer + NORM), 0, position, latent))
                lay_out(x + 4 * latent, to, turned, d - padded)
            ways = get_i64(layer + TURN)
            if head == n_heads:
                ways = get_i64(layer + TURN_KEPT)
            if ways != 0:
                invoke(prepare_head, (to, ways, 0, position, turned))
            if head == n_heads:
                cell = get_i64(get_i64(state + SLOTS) + 8 * t) * get_i64(layer + T) + get_i64(get_i64(state + CELLS) + 8 * t)
                put(row, get_i64(layer + KEYS) + n_bytes * (d // LANES) * cell, d, row + 4 * d)

    prepare.__name__ = prepare.__qualname__ = f"prepare_latent_{kind}"
    return kernel(prepare)


@cache
def move_kernel(kind: str) -> Any:
    """Make the kernel that copies rows from cell to cell. Operands: layers, how many, moves (slot, from, to), how many."""
    n_bytes = BYTES[kind]

    def move(record, state, thread, n_threads):
        n_layers = get_i64(record + 24)
        for index in range(n_layers * thread // n_threads, n_layers * (thread + 1) // n_threads):
            layer = get_i64(get_i64(record + 16) + 8 * index)
            for number in range(get_i64(record + 40)):
                place = get_i64(record + 32) + 24 * number
                slot, source, target = get_i64(place), get_i64(place + 8), get_i64(place + 16)
                move_row(get_i64(layer + KEYS), n_bytes * (get_i64(layer + D) // LANES), layer, slot, source, target)
                move_row(get_i64(layer + COMPARED), get_i64(layer + COMPARED_BYTES), layer, slot, source, target)

    move.__name__ = move.__qualname__ = f"move_latent_{kind}"
    return kernel(move)
