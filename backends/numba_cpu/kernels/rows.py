"""Operations on rows: copies and norms, what adapters add to products of a matrix, and functions that packages bring.

Adapters have rows of low rank, which count by each token's slot, and go back to full width. A row is one sum by sixteen lanes,
and every value takes the rows in their order, so both have the same bits beside any others.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import carray
from numba.core import types
from numba.extending import intrinsic

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.step import copy_row, normalise, share
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, own_row

f32 = np.float32


@struct
class PlaceRows(Record):
    x: Any = nested(StridedRows)  # (n * n_parts, size) float32
    to: Any = nested(StridedRows)
    n_parts: int
    size: int
    norm: int  # address; 0: none
    group: int  # values that are normed together
    is_private: bool


@kernel(record=PlaceRows)
def place_rows(record, state, thread, n_threads):
    """Copy rows, or their norms by groups."""
    size, norm = record.size, record.norm
    first, end = share(state.n_tokens * record.n_parts, thread, n_threads, record.is_private)
    for t in range(first, end):
        x, y = own_row(record.x, thread, t), own_row(record.to, thread, t)
        if norm != 0:
            for head in range(size // record.group):
                at = 4 * head * record.group
                normalise(x + at, norm, y + at, record.group, head, 0)
        else:
            copy_row(x, y, size)


@struct
class LowRankRows(Record):
    x: Any = nested(StridedRows)  # (n, n_in) float32
    y: Any = nested(StridedRows)  # (n, n_out) float32
    down: int  # (R, n_in) float32, address
    up: int  # (R, n_out) float32, address
    low: int  # (n, R) float32, address: the scaled products with `down`
    adapters: int  # (R,) int64, address: the adapter of each row
    scales: int  # (slots, n_adapters) float32, address
    n_adapters: int
    n_ranks: int  # R
    n_in: int
    n_out: int


@helper
def scale_of(record, state, t, rank):
    """How much a row counts for a token."""
    slot, adapter = simd.get_i64(state.slots + 8 * t), simd.get_i64(record.adapters + 8 * rank)
    return simd.get_f32(record.scales + 4 * (slot * record.n_adapters + adapter))


@kernel(record=LowRankRows)
def low_rank_down(record, state, thread, n_threads):
    """Low = scale * (down x)."""
    n_ranks, size = record.n_ranks, record.n_in
    n = state.n_tokens * n_ranks
    for i in range(n * thread // n_threads, n * (thread + 1) // n_threads):
        t, rank = i // n_ranks, i % n_ranks
        scale = scale_of(record, state, t, rank)
        if scale != f32(0):
            x, row, total = own_row(record.x, thread, t), record.down + 4 * rank * size, simd.zero_f32()
            for index in range(0, size, 16):
                left = size - index
                total = simd.fma(simd.load_part(x + 4 * index, left), simd.load_part(row + 4 * index, left), total)
            simd.put_f32(record.low + 4 * i, scale * simd.sum_lanes(total))


@kernel(record=LowRankRows)
def low_rank_up(record, state, thread, n_threads):
    """Y += low up; every thread has some columns."""
    n_ranks, size = record.n_ranks, record.n_out
    n_blocks = (size + 15) // 16
    first, end = 16 * (n_blocks * thread // n_threads), min(16 * (n_blocks * (thread + 1) // n_threads), size)
    for t in range(state.n_tokens):
        y = own_row(record.y, thread, t)
        for rank in range(n_ranks):
            if scale_of(record, state, t, rank) != f32(0):
                low, row = simd.splat_f32(simd.get_f32(record.low + 4 * (t * n_ranks + rank))), record.up + 4 * rank * size
                for index in range(first, end, 16):
                    place, left = y + 4 * index, end - index
                    simd.store_part(
                        place, simd.fma(low, simd.load_part(row + 4 * index, left), simd.load_part(place, left)), left
                    )


@struct
class Operand:
    """An argument of a function: a row of rows, a number, or a whole number."""

    address: int  # of the first row
    width: int
    stride: int  # floats from one row to the next; 0: they are all the same
    number: float
    count: int


@struct
class CallByRow(Record):
    operands: Any = pointer_to(Operand)


@intrinsic
def as_pointer(_: Any, address: Any) -> Any:
    """An address as a pointer, as `carray` wants it."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(address), generate


@helper
def _row_of_operand(operand, t):
    return carray(as_pointer(operand.address + 4 * t * operand.stride), operand.width, np.float32)


# The functions that take an operand for a row, by its kind.
_GETS = {
    np.ndarray: _row_of_operand,
    float: helper(lambda operand, _: operand.number),
    int: helper(lambda operand, _: operand.count),
}


@cache
def _operands(kinds: tuple[type, ...]) -> Any:
    """Make the helper that collects a function's arguments for row t in a tuple, by kinds: ndarray, float or int."""
    if not kinds:
        return helper(lambda _operands, _t: ())
    first, rest = _GETS[kinds[0]], _operands(kinds[1:])

    @helper
    def some(operands: Any, t: int) -> Any:
        return (first(operands, t), *rest(operands[1], t))

    return some


def by_row_kernel(function: Any, kinds: tuple[type, ...], name: str) -> Any:
    """Make the kernel that calls a function for each row, under a name that no other kernel has."""
    row, operands = numba.njit(nogil=True, error_model="numpy")(function), _operands(kinds)

    def by_row(record: Any, state: int, thread: int, n_threads: int) -> None:
        n = state.n_tokens
        for t in range(n * thread // n_threads, n * (thread + 1) // n_threads):
            row(*operands(record.operands, t))

    return kernel(by_row, name, record=CallByRow)
