"""The products of a mixture of experts, of the tokens of each with its matrices, and their sum.

A row's product does not depend on the other rows of its group (see `routing`), and a token's sum is taken in the order
of its experts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import Activating, activated, named, sigmoid
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.routing import Routes, groups_at
from augury.backends.numba_cpu.kernels.simd import fma, get_i64, invoke, load_part, mul, splat_f32, store_part
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, SeveralMatrices, claim, multiply_one, scale_and_shift, share
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, own

f32 = np.float32
_COLUMNS = 256  # that a thread sums at once


@struct
class ExpertMatrix(SeveralMatrices):
    """A matrix of all experts, or some of its rows; products of n tokens are (n * k, ldy)."""

    scales: int  # (experts,) float32, address; 0: none
    biases: int  # (experts, ldb) float32, address; 0: none
    ldb: int
    n_rows: int


@struct
class QuantizeInputs(Record):
    routes: int = pointer_to(Routes)
    matrix: int = pointer_to(ExpertMatrix)
    quantize: int  # address of a kernel, see `MatmulKernel.quantize`
    x: Any = nested(StridedRows)  # (n, n_cols) float32
    rows: Any = nested(StridedRows)  # to gather in, (n * k, n_cols) float32
    is_private: bool
    weighs: bool  # multiply by the weights of experts


@kernel(record=QuantizeInputs)
def quantize_inputs(record, state, thread, n_threads):
    """The rows of each group → operands of the matrix kernels."""
    routes, matrix, quantize = record.routes, record.matrix, record.quantize
    x, rows = own(record.x, thread), own(record.rows, thread)
    weighs, here = record.weighs != 0, thread * routes.stride
    groups, sources, n_cols = routes.groups + here, routes.sources + here, matrix.n_cols
    operands, n_bytes = own(matrix.operands, thread), matrix.operand_bytes
    n_blocks = (n_cols + 31) // 32
    first, end = 0, get_i64(groups)
    if record.is_private == 0:
        first, end = end * thread // n_threads, end * (thread + 1) // n_threads
    for index in range(first, end):
        group = groups_at(groups + 8)[index]
        start, count = group.first, group.n
        for row in range(start, start + count):
            token = get_i64(sources + 8 * row)
            factor = f32(1)
            if weighs:
                factor = _weight_of(routes, here, token, row)
            for column in range(0, n_cols, 16):
                left = n_cols - column
                value = mul(load_part(x + 4 * (token * n_cols + column), left), splat_f32(factor))
                store_part(rows + 4 * (row * n_cols + column), value, left)
        invoke(quantize, (rows + 4 * start * n_cols, operands + start * n_bytes, count, n_cols, 0, count * n_blocks))


@helper
def _weight_of(routes, here, token, row):
    """The weight of a token's row."""
    k = routes.n_used
    places = routes.places + here + 8 * token * k
    weight = f32(0)
    for j in range(k):
        if get_i64(places + 8 * j) == row:
            weight = simd.get_f32(routes.weights + here + 4 * (token * k + j))
    return weight


@struct
class QuantizeHidden(Record):
    routes: int = pointer_to(Routes)
    matrix: int = pointer_to(ExpertMatrix)
    quantize: int  # address of a kernel, see `MatmulKernel.quantize`
    x: int  # (n * k, n_cols) float32, address
    is_private: bool


@kernel(record=QuantizeHidden)
def quantize_hidden(record, state, thread, n_threads):
    """The hidden rows of each group → operands."""
    routes, matrix, quantize, x = record.routes, record.matrix, record.quantize, record.x
    groups, n_cols = routes.groups + thread * routes.stride, matrix.n_cols
    operands, n_bytes = own(matrix.operands, thread), matrix.operand_bytes
    n_blocks = (n_cols + 31) // 32
    for index in range(get_i64(groups)):
        group = groups_at(groups + 8)[index]
        start, count = group.first, group.n
        first, end = share(count * n_blocks, thread, n_threads, record.is_private)
        if first < end:
            invoke(quantize, (x + 4 * start * n_cols, operands + start * n_bytes, count, n_cols, first, end))


@helper
def _multiply_group(matrix, group, first, end, state, thread):
    """Some panels of one expert's matrix for the rows of its group, scaled, and with its bias."""
    expert, ldy, scales, bias = group.expert, matrix.ldy, matrix.scales, matrix.biases
    y = matrix.y + 4 * group.first * ldy
    multiply_one(matrix, expert, first, end, group.first, group.n, y, state, thread)
    if scales == 0 and bias == 0:
        return
    factor = splat_f32(f32(1))
    if scales != 0:
        factor = simd.repeat_f32(scales + 4 * expert)
    if bias != 0:
        bias += 4 * (expert * matrix.ldb + PANEL_ROWS * matrix.first_panel)
    stop = min(PANEL_ROWS * end, matrix.n_rows)
    scale_and_shift(y, group.n, ldy, PANEL_ROWS * first, stop, factor, bias)


@struct
class MultiplyExperts(Record):
    routes: int = pointer_to(Routes)
    matrices: int = pointer_to(ExpertMatrix)  # gate and up, or one
    out: int  # (n * k, n_rows) float32, of activated products, address
    activation: Any = nested(Activating)


@helper
def _leave(record, group, first, end):
    """Leave products as they are."""


@cache
def experts_kernel(**of: Any) -> Any:
    """The kernel of the products of each group's rows with its expert's matrix, or of their activation, see `activated`."""
    activate_lanes, is_gated = activated(**of) if of else None, of.get("is_gated", False)

    @helper
    def activate(record: Any, group: Any, first: int, end: int) -> None:
        """activation(gate) * up, or activation(up), of some panels of the rows of a group."""
        gate, up, n_rows, other = record.matrices[0], record.matrices[1], record.matrices[0].n_rows, 0
        limit, constants = splat_f32(f32(record.activation.limit)), record.activation.constants
        for row in range(group.first, group.first + group.n):
            for index in range(PANEL_ROWS * first, min(PANEL_ROWS * end, n_rows), 16):
                at, left = 4 * (row * gate.ldy + index), n_rows - index
                if is_gated:
                    other = up.y + at
                value = activate_lanes(load_part(gate.y + at, left), other, 0, left, limit, constants)
                store_part(record.out + 4 * (row * n_rows + index), value, left)

    finish = activate if of else _leave

    def multiply(record: Any, state: int, thread: int, n_threads: int) -> None:
        routes, matrices = record.routes, record.matrices
        groups, n_panels = routes.groups + thread * routes.stride, matrices.n_panels
        while True:
            item, last = claim(state, get_i64(groups) * n_panels, n_threads)
            if item == last:
                return
            while item < last:
                first = item % n_panels
                end = min(n_panels, first + last - item)
                group = groups_at(groups + 8)[item // n_panels]
                _multiply_group(matrices[0], group, first, end, state, thread)
                if is_gated:
                    _multiply_group(matrices[1], group, first, end, state, thread)
                finish(record, group, first, end)
                item += end - first

    if not of:
        return kernel(multiply, "multiply_experts", record=MultiplyExperts)
    return named(multiply, MultiplyExperts, "_experts", **of)


@struct
class Combine(Record):
    routes: int = pointer_to(Routes)
    rows: int  # (n * k, ld) float32, address
    ld: int  # also of y and the shared expert
    y: int  # address
    size: int  # E
    is_weighed: bool  # the rows are already
    shared: int  # rows of the shared expert, address; 0: none
    gate: int  # (E,) float32, weights of its gate, address; 0: none
    x: Any = nested(StridedRows)  # (n, E) float32 that the gate sees


@kernel(record=Combine)
def combine(record, state, thread, n_threads):
    """y[t] = the weighted sum of a token's rows, by rank of their experts, and the shared expert's."""
    routes, rows, ld, y, size = record.routes, record.rows, record.ld, record.y, record.size
    is_weighed, shared, gate = record.is_weighed, record.shared, record.gate
    x = own(record.x, thread)
    k, here = routes.n_used, thread * routes.stride
    places, weights = routes.places + here, routes.weights + here
    n_parts = (size + _COLUMNS - 1) // _COLUMNS
    first, end = share(state.n_tokens * n_parts, thread, n_threads, 0)
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
