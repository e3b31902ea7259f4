"""The products of a mixture of experts, of the tokens of each with its matrices, and their sum.

What a row's product is does not depend on the other rows of its group (see `routing`), and a token's sum is taken in the order
of its experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import capped, sigmoid
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.routing import GROUP_BYTES, GROUPS, N_USED, PLACES, SOURCES, STRIDE, WEIGHTS
from augury.backends.numba_cpu.kernels.simd import add, fma, get_i64, maximum, minimum, mul, splat_f32, sub, zero_f32
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, claim, scratch_of, share
from augury.backends.numba_cpu.kernels.team import N_TOKENS

f32 = np.float32
_COLUMNS = 256  # that a thread sums at once

# Offsets into the table of a matrix of all experts.
KERNEL, MATRIX, N_COLS, N_PANELS, STORED_PANELS, FIRST_PANEL, OPERANDS, OPERAND_STRIDE, OPERAND_BYTES, Y, LDY = (
    8 * i for i in range(11)
)
SCALES, BIASES, LDB, N_ROWS = (8 * i for i in range(11, 15))
MATRIX_BYTES = 120


@kernel
def quantize_inputs(record, state, thread, n_threads):
    """The rows of each group → operands of the matrix kernels.

    Operands: table of the router, of the matrix, quantise, x, stride, rows to gather in, stride, is_private, weights.
    """
    table, matrix, quantize = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32)
    x, rows = get_i64(record + 40) + thread * get_i64(record + 48), get_i64(record + 56) + thread * get_i64(record + 64)
    weighs = get_i64(record + 80) != 0
    own = thread * get_i64(table + STRIDE)
    groups, sources, n_cols = get_i64(table + GROUPS) + own, get_i64(table + SOURCES) + own, get_i64(matrix + N_COLS)
    operands, n_bytes = get_i64(matrix + OPERANDS) + thread * get_i64(matrix + OPERAND_STRIDE), get_i64(matrix + OPERAND_BYTES)
    n_blocks = (n_cols + 31) // 32
    first, end = 0, get_i64(groups)
    if get_i64(record + 72) == 0:
        first, end = end * thread // n_threads, end * (thread + 1) // n_threads
    for index in range(first, end):
        place = groups + 8 + GROUP_BYTES * index
        start, count = get_i64(place + 8), get_i64(place + 16)
        for row in range(start, start + count):
            token = get_i64(sources + 8 * row)
            factor = f32(1)
            if weighs:
                factor = _weight_of(table, own, token, row)
            for column in range(0, n_cols, 16):
                left = n_cols - column
                value = mul(load_part(x + 4 * (token * n_cols + column), left), splat_f32(factor))
                store_part(rows + 4 * (row * n_cols + column), value, left)
        invoke(quantize, (rows + 4 * start * n_cols, operands + start * n_bytes, count, n_cols, 0, count * n_blocks))


@helper
def _weight_of(table, own, token, row):
    """The weight of a token's row."""
    k = get_i64(table + N_USED)
    places = get_i64(table + PLACES) + own + 8 * token * k
    weight = f32(0)
    for j in range(k):
        if get_i64(places + 8 * j) == row:
            weight = simd.get_f32(get_i64(table + WEIGHTS) + own + 4 * (token * k + j))
    return weight


@kernel
def quantize_hidden(record, state, thread, n_threads):
    """The hidden rows of each group → operands. Operands: table of the router, of the matrix, quantise, x, is_private."""
    table, matrix, quantize, x = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32), get_i64(record + 40)
    groups, n_cols = get_i64(table + GROUPS) + thread * get_i64(table + STRIDE), get_i64(matrix + N_COLS)
    operands, n_bytes = get_i64(matrix + OPERANDS) + thread * get_i64(matrix + OPERAND_STRIDE), get_i64(matrix + OPERAND_BYTES)
    n_blocks = (n_cols + 31) // 32
    for index in range(get_i64(groups)):
        place = groups + 8 + GROUP_BYTES * index
        start, count = get_i64(place + 8), get_i64(place + 16)
        first, end = share(count * n_blocks, thread, n_threads, get_i64(record + 48))
        if first < end:
            invoke(quantize, (x + 4 * start * n_cols, operands + start * n_bytes, count, n_cols, first, end))


@helper
def _multiply_group(table, matrix, place, first, end, state, thread):
    """Some panels of one expert's matrix for the rows of its group, scaled, and with its bias."""
    expert, start, count = get_i64(place), get_i64(place + 8), get_i64(place + 16)
    panel = expert * get_i64(matrix + STORED_PANELS) + get_i64(matrix + FIRST_PANEL)
    ldy, n_rows = get_i64(matrix + LDY), get_i64(matrix + N_ROWS)
    y = get_i64(matrix + Y) + 4 * start * ldy
    x = get_i64(matrix + OPERANDS) + thread * get_i64(matrix + OPERAND_STRIDE) + start * get_i64(matrix + OPERAND_BYTES)
    # the kernel counts panels from the first of all experts, of the matrix and of y alike
    places = (get_i64(matrix + MATRIX), x, y - 4 * PANEL_ROWS * panel)
    span = (count, get_i64(matrix + N_COLS), panel + first, panel + end, ldy, scratch_of(state, thread))
    invoke(get_i64(matrix + KERNEL), places + span)
    scales, biases = get_i64(matrix + SCALES), get_i64(matrix + BIASES)
    if scales == 0 and biases == 0:
        return
    factor = splat_f32(f32(1))
    if scales != 0:
        factor = simd.repeat_f32(scales + 4 * expert)
    bias = biases + 4 * (expert * get_i64(matrix + LDB) + PANEL_ROWS * get_i64(matrix + FIRST_PANEL))
    for t in range(count):
        for index in range(PANEL_ROWS * first, min(PANEL_ROWS * end, n_rows), 16):
            left, at = n_rows - index, y + 4 * (t * ldy + index)
            value = mul(load_part(at, left), factor)
            if biases != 0:
                value = add(value, load_part(bias + 4 * index, left))
            store_part(at, value, left)


@kernel
def multiply_experts(record, state, thread, n_threads):
    """The products of each group's rows with its expert's matrix. Operands: table of the router, of the matrix."""
    table, matrix = get_i64(record + 16), get_i64(record + 24)
    groups = get_i64(table + GROUPS) + thread * get_i64(table + STRIDE)
    n_panels = get_i64(matrix + N_PANELS)
    while True:
        item, last = claim(state, get_i64(groups) * n_panels, n_threads)
        if item == last:
            return
        while item < last:
            first = item % n_panels
            end = min(n_panels, first + last - item)
            _multiply_group(table, matrix, groups + 8 + GROUP_BYTES * (item // n_panels), first, end, state, thread)
            item += end - first


def hidden_kernel(activation: Any, of_up: Any, name: str, *, is_gated: bool, is_capped: bool) -> Any:
    """The kernel of what experts hide.

    Args:
        activation: A helper, of 16 lanes.
        of_up: A helper: what is multiplied with it, given what `up` is.
        name: Of the activation.
        is_gated: Whether there is a gate.
        is_capped: Whether the activation is multiplied with the capped gate, and `up` is capped.
    """

    def hide(record: int, state: int, thread: int, n_threads: int) -> None:
        table, gate, out = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32)
        is_limited, limit = get_f64(record + 40) > 0.0, splat_f32(f32(get_f64(record + 40)))
        is_limited_after = get_i64(record + 48) != 0
        groups = get_i64(table + GROUPS) + thread * get_i64(table + STRIDE)
        n_panels, n_rows, ldy = get_i64(gate + N_PANELS), get_i64(gate + N_ROWS), get_i64(gate + LDY)
        while True:
            item, last = claim(state, get_i64(groups) * n_panels, n_threads)
            if item == last:
                return
            while item < last:
                first = item % n_panels
                end = min(n_panels, first + last - item)
                place = groups + 8 + GROUP_BYTES * (item // n_panels)
                _multiply_group(table, gate, place, first, end, state, thread)
                if is_gated:
                    _multiply_group(table, gate + MATRIX_BYTES, place, first, end, state, thread)
                start = get_i64(place + 8)
                for row in range(start, start + get_i64(place + 16)):
                    for index in range(PANEL_ROWS * first, min(PANEL_ROWS * end, n_rows), 16):
                        at, left = 4 * (row * ldy + index), n_rows - index
                        value = load_part(get_i64(gate + Y) + at, left)
                        if is_gated:
                            other = load_part(get_i64(gate + MATRIX_BYTES + Y) + at, left)
                            if is_limited:  # what comes second stays where it is NaN
                                other = minimum(limit, maximum(sub(zero_f32(), limit), other))
                                if not is_limited_after:
                                    value = minimum(limit, value)
                            given = value
                            value = activation(given)
                            if is_capped:
                                value = mul(value, capped(given, get_f64(record + 56)))
                                other = capped(other, get_f64(record + 64))
                            if is_limited and is_limited_after:
                                value = minimum(limit, value)
                            value = mul(value, of_up(other))
                        else:
                            value = activation(value)
                        store_part(out + 4 * (row * n_rows + index), value, left)
                item += end - first

    hide.__name__ = hide.__qualname__ = f"{'gated' if is_gated else 'plain'}_experts_{name}"
    hide.__doc__ = """Out = activation(gate) * up, or activation(up).

    Operands: tables of the router and of the matrices, out, what limits gate and up (or 0), whether it does so after the
    activation, constants of the activation.
    """
    return kernel(hide)


@kernel
def combine(record, state, thread, n_threads):
    """y[t] = the weighted sum of a token's rows, by rank of their experts, and the shared expert's.

    Operands: table, rows of the experts, floats from row to row of all, y, n_embd, whether rows are weighed already, the shared
    expert's rows or 0, the weights of its gate or 0, x that the gate sees, its stride.
    """
    table, rows, ld = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32)
    y, size = get_i64(record + 40), get_i64(record + 48)
    is_weighed, shared, gate = get_i64(record + 56), get_i64(record + 64), get_i64(record + 72)
    x = get_i64(record + 80) + thread * get_i64(record + 88)
    k, own = get_i64(table + N_USED), thread * get_i64(table + STRIDE)
    places, weights = get_i64(table + PLACES) + own, get_i64(table + WEIGHTS) + own
    n_parts = (size + _COLUMNS - 1) // _COLUMNS
    first, end = share(get_i64(state + N_TOKENS) * n_parts, thread, n_threads, 0)
    for item in range(first, end):
        t, start = item // n_parts, item % n_parts * _COLUMNS
        factor = splat_f32(f32(1))
        if gate != 0:
            total = simd.zero_f32()
            for index in range(0, size, 16):
                left = size - index
                total = fma(load_part(gate + 4 * index, left), load_part(x + 4 * (t * size + index), left), total)
            factor = sigmoid(splat_f32(simd.sum_lanes(total)))
        for index in range(start, min(start + _COLUMNS, size), 16):
            left = size - index
            total = simd.zero_f32()
            for j in range(k):
                part = load_part(rows + 4 * (get_i64(places + 8 * (t * k + j)) * ld + index), left)
                weight = splat_f32(f32(1)) if is_weighed != 0 else simd.repeat_f32(weights + 4 * (t * k + j))
                total = fma(part, weight, total)
            if shared != 0:
                total = fma(load_part(shared + 4 * (t * ld + index), left), factor, total)
            store_part(y + 4 * (t * ld + index), total, left)
