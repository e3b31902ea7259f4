"""A mixture of experts: which experts a token goes to, products of the tokens of each with its matrices, and their sum.

The rows of a pass that go to one expert stand beside each other, a *group*: n tokens with k experts each make n * k rows,
sorted by expert, then by token. Where `route` leaves them:

* `weights` (n, k) float32 and `places` (n, k) int64, which row is whose, by rank of the expert;
* `groups`: their number, then of each the expert, its first row, how many, and which token (of the first; more in `sources`);
* `sources` (n * k,) int64: which token a row is of.

What a row's product is does not depend on the other rows of its group, and a token's sum is taken in the order of its experts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import exponential, sigmoid
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.simd import (
    add,
    div,
    fma,
    get_i64,
    maximum,
    minimum,
    mul,
    put_i64,
    splat_f32,
    sub,
    zero_f32,
)
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, claim, scratch_of, share
from augury.backends.numba_cpu.kernels.team import N_TOKENS

__all__ = [
    "SIGMOID",
    "SOFTMAX",
    "SOFTMAX_OF_CHOSEN",
    "combine",
    "group",
    "hidden_kernel",
    "multiply_experts",
    "quantize_hidden",
    "quantize_inputs",
    "route",
]

f32 = np.float32
SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = range(3)
_NEVER, _TAKEN = f32(-1e30), f32(-3e38)
_LEAST_SUM = f32(2.0**-14)  # that weights are divided by
_COLUMNS = 256  # that a thread sums at once

GROUP_BYTES = 24  # the expert, the first row, how many rows
# Offsets into the table of a router.
LOGITS, LDL, N_EXPERTS, N_USED, GATING, BIAS, IS_NORMALISED, ROUTER_SCALE, N_GROUPS, N_GROUPS_USED = (8 * i for i in range(10))
# Where the routes are, from one thread's to the next where every thread has its own.
CHOSEN, WEIGHTS, PLACES, SOURCES, GROUPS, STRIDE = (8 * i for i in range(10, 16))
# Offsets into the table of a matrix of all experts.
KERNEL, MATRIX, N_COLS, N_PANELS, STORED_PANELS, FIRST_PANEL, OPERANDS, OPERAND_STRIDE, OPERAND_BYTES, Y, LDY = (
    8 * i for i in range(11)
)
SCALES, BIASES, LDB, N_ROWS = (8 * i for i in range(11, 15))
MATRIX_BYTES = 120


@helper
def _top(first, end):
    """Where the largest of some float32 is, the first of equal ones."""
    best = first
    for place in range(first + 4, end, 4):
        if simd.get_f32(place) > simd.get_f32(best):
            best = place
    return best


@helper
def _rule_out_groups(scores, n, n_groups, n_used):
    """Leave the scores of the groups whose two highest have the greatest sums; sums come after the scores."""
    size = n // n_groups
    sums = scores + 4 * n
    for group in range(n_groups):
        first = scores + 4 * group * size
        end = first + 4 * size
        best = _top(first, end)
        top = simd.get_f32(best)
        second = f32(0)
        if size > 1:
            simd.put_f32(best, _TAKEN)
            second = simd.get_f32(_top(first, end))
            simd.put_f32(best, top)
        simd.put_f32(sums + 4 * group, top + second)
    for _ in range(n_used):
        simd.put_f32(_top(sums, sums + 4 * n_groups), _TAKEN)
    for group in range(n_groups):
        if simd.get_f32(sums + 4 * group) != _TAKEN:
            for place in range(scores + 4 * group * size, scores + 4 * (group + 1) * size, 4):
                simd.put_f32(place, _NEVER)


@helper
def _gate(row, probabilities, n, gating):
    """Logits (n,) → what weights are made of."""
    if gating == SOFTMAX:
        top = splat_f32(simd.get_f32(_top(row, row + 4 * n)))
        total = simd.zero_f32()
        for index in range(0, n, 16):
            left = n - index
            power = exponential(simd.sub(load_part(row + 4 * index, left), top))
            store_part(probabilities + 4 * index, power, left)
            total = add(total, load_part(probabilities + 4 * index, left))
        sums = splat_f32(simd.sum_lanes(total))
        for index in range(0, n, 16):
            left = n - index
            store_part(probabilities + 4 * index, div(load_part(probabilities + 4 * index, left), sums), left)
    else:
        for index in range(0, n, 16):
            left = n - index
            value = load_part(row + 4 * index, left)
            if gating == SIGMOID:
                value = sigmoid(value)
            store_part(probabilities + 4 * index, value, left)


@kernel
def route(record, state, thread, n_threads):
    """Choose the experts of each token and weigh them. Operands: table, is_private."""
    table, private = get_i64(record + 16), get_i64(record + 24)
    n, k, gating = get_i64(table + N_EXPERTS), get_i64(table + N_USED), get_i64(table + GATING)
    bias, n_groups, stride = get_i64(table + BIAS), get_i64(table + N_GROUPS), get_i64(table + STRIDE)
    probabilities = scratch_of(state, thread)
    scores = probabilities + 4 * n
    scale = f32(get_f64(table + ROUTER_SCALE))
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, private)
    for t in range(first, end):
        row = get_i64(table + LOGITS) + 4 * t * get_i64(table + LDL)
        _gate(row, probabilities, n, gating)
        factor = scale
        for place in range(0, 4 * n, 4):
            score = simd.get_f32(probabilities + place)
            if bias != 0:
                score += simd.get_f32(bias + place)
            logit = simd.get_f32(row + place)
            if math.isnan(logit):  # what is chosen does not matter, but that it is an expert, and that NaN comes of it
                factor, score = logit, _NEVER
            simd.put_f32(scores + place, score)
        if n_groups > 1:
            _rule_out_groups(scores, n, n_groups, get_i64(table + N_GROUPS_USED))
        chosen = get_i64(table + CHOSEN) + thread * stride + 8 * t * k
        weights = get_i64(table + WEIGHTS) + thread * stride + 4 * t * k
        top = total = f32(0)
        for j in range(k):
            best = _top(scores, scores + 4 * n)
            simd.put_f32(best, _TAKEN)
            put_i64(chosen + 8 * j, (best - scores) // 4)
            weight = simd.get_f32(probabilities + (best - scores))
            if gating == SOFTMAX_OF_CHOSEN:
                if j == 0:
                    top = weight
                weight = simd.max_lanes(exponential(splat_f32(weight - top)))
            simd.put_f32(weights + 4 * j, weight)
            total += weight
        if gating == SOFTMAX_OF_CHOSEN:
            for j in range(k):
                simd.put_f32(weights + 4 * j, simd.get_f32(weights + 4 * j) / total)
            total = f32(1)
        if get_i64(table + IS_NORMALISED) != 0:
            total = max(total, _LEAST_SUM)
            for j in range(k):
                simd.put_f32(weights + 4 * j, simd.get_f32(weights + 4 * j) / total)
        if factor != f32(1):
            for j in range(k):
                simd.put_f32(weights + 4 * j, simd.get_f32(weights + 4 * j) * factor)


@kernel
def group(record, state, thread, n_threads):
    """Sort the rows of all tokens by expert. Operands: table, is_private: whether every thread does it for itself."""
    table = get_i64(record + 16)
    if thread != 0 and get_i64(record + 24) == 0:
        return
    n, k, n_experts = get_i64(state + N_TOKENS), get_i64(table + N_USED), get_i64(table + N_EXPERTS)
    own = thread * get_i64(table + STRIDE)
    chosen, places = get_i64(table + CHOSEN) + own, get_i64(table + PLACES) + own
    sources, groups = get_i64(table + SOURCES) + own, get_i64(table + GROUPS) + own
    counts = scratch_of(state, thread)
    for expert in range(n_experts):
        put_i64(counts + 8 * expert, 0)
    for row in range(n * k):
        place = counts + 8 * get_i64(chosen + 8 * row)
        put_i64(place, get_i64(place) + 1)
    n_groups, start = 0, 0
    for expert in range(n_experts):
        count = get_i64(counts + 8 * expert)
        put_i64(counts + 8 * expert, start)
        if count != 0:
            place = groups + 8 + GROUP_BYTES * n_groups
            put_i64(place, expert)
            put_i64(place + 8, start)
            put_i64(place + 16, count)
            n_groups, start = n_groups + 1, start + count
    put_i64(groups, n_groups)
    for row in range(n * k):
        place = counts + 8 * get_i64(chosen + 8 * row)
        at = get_i64(place)
        put_i64(place, at + 1)
        put_i64(places + 8 * row, at)
        put_i64(sources + 8 * at, row // k)


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


def hidden_kernel(activation: Any, of_up: Any, name: str, *, is_gated: bool) -> Any:
    """The kernel of what experts hide.

    Args:
        activation: A helper, of 16 lanes.
        of_up: A helper: what is multiplied with it, given what `up` is.
        name: Of the activation.
        is_gated: Whether there is a gate.
    """

    def hide(record: int, state: int, thread: int, n_threads: int) -> None:
        table, gate, out = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32)
        is_limited, limit = get_f64(record + 40) > 0.0, splat_f32(f32(get_f64(record + 40)))
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
                            if is_limited:
                                value = minimum(value, limit)
                                other = maximum(minimum(other, limit), sub(zero_f32(), limit))
                            value = mul(activation(value), of_up(other))
                        else:
                            value = activation(value)
                        store_part(out + 4 * (row * n_rows + index), value, left)
                item += end - first

    hide.__name__ = hide.__qualname__ = f"{'gated' if is_gated else 'plain'}_experts_{name}"
    hide.__doc__ = """Out = activation(gate) * up, or activation(up).

    Operands: tables of the router and of the matrices, out, what limits gate and up (or 0).
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
