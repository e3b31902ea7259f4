"""The kernels of records that all kinds of blocks use: norms, and products with matrices.

Each takes `(record, state, thread, n_threads)`; see `team.py`.

A step that depends on one token alone (embeddings, norms, activations) exists twice: shared, where the threads divide the
tokens and a barrier follows, and private, where every thread does the same for itself into memory of its own (`thread_stride`
bytes from one's to the next's), which is cheaper than a barrier while there are one or two tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.struct import nested, pointer_maker, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import CLAIMED, Record, StridedRows, own, own_row

PANEL_ROWS = 32
_SHARES = 4  # of a matrix that each thread takes one after the other, so that a slower one takes fewer


@helper
def scratch_of(state, thread):
    """Scratch memory of a thread."""
    return state.scratch + thread * state.scratch_bytes


@helper
def share(n, thread, n_threads, is_private):
    """The rows that a thread treats: all where they are its own, otherwise its part of them."""
    if is_private != 0:
        return 0, n
    return n * thread // n_threads, n * (thread + 1) // n_threads


@helper
def copy_row(x, to, size):
    """Copy the `size` floats at x."""
    for index in range(0, size, 16):
        left = size - index
        simd.store_part(to + 4 * index, simd.load_part(x + 4 * index, left), left)


@helper
def scale_row(x, size, factor):
    """Multiply the `size` floats at x with a number, which is in every lane of `factor`."""
    for index in range(0, size, 16):
        left = size - index
        simd.store_part(x + 4 * index, simd.mul(simd.load_part(x + 4 * index, left), factor), left)


@helper
def count_rows(state, is_output):
    """How many rows are treated: those whose logits are wanted, or one for each token."""
    if is_output != 0:
        return state.n_rows
    return state.n_tokens


@helper
def token_of(state, i, is_output):
    """The token whose row is treated as the i-th."""
    if is_output != 0:
        return simd.get_i64(state.rows + 8 * i)
    return i


@struct
class AddNorm(Record):
    x: Any = nested(StridedRows)  # (n, E) float32
    y: Any = nested(StridedRows)  # (n, E) float32 to add to x; address 0: none
    y_norm: int  # address, of y before it is added; 0: none
    norm: int  # address, of x after it; 0: none
    out: Any = nested(StridedRows)  # (n, E) float32, the norm of x
    is_private: bool
    is_output: bool  # only the rows whose logits are wanted are treated, and `out` has these alone


@kernel(record=AddNorm)
def add_norm(record, state, thread, n_threads):
    """X += y or its norm, where there is a y; out = norm(x), where there is a norm."""
    x, y, ldy = own(record.x, thread), record.y.address, record.y.width
    post, norm, size = record.y_norm, record.norm, record.x.width
    out = own(record.out, thread)
    first, end = share(count_rows(state, record.is_output), thread, n_threads, record.is_private)
    for i in range(first, end):
        t = token_of(state, i, record.is_output)
        row = x + 4 * t * size
        if y != 0 and post == 0:
            for index in range(0, size, 16):
                left = size - index
                value = simd.add(simd.load_part(row + 4 * index, left), simd.load_part(y + 4 * (t * ldy + index), left))
                simd.store_part(row + 4 * index, value, left)
        for step in range(2):  # a loop, so that the norm is compiled once
            source, what, to, added = row, norm, out + 4 * i * size, 0
            if step == 0:
                source, what, to, added = y + 4 * t * ldy, post, row, row
            if what != 0:
                normalise(source, what, to, size, 0, added)


@struct
class CopyRows(Record):
    x: Any = nested(StridedRows)  # (n, E) float32
    y: Any = nested(StridedRows)  # (n, n_times * E) float32
    size: int  # E
    n_times: int
    is_private: bool
    is_output: bool  # only the rows whose logits are wanted are copied, one after the other


@kernel(record=CopyRows)
def copy_rows(record, state, thread, n_threads):
    """Copy each row of x to y, so many times."""
    size, n_times = record.size, record.n_times
    x = own(record.x, thread)
    y = own(record.y, thread)
    first, end = share(count_rows(state, record.is_output), thread, n_threads, record.is_private)
    for i in range(first, end):
        row = x + 4 * token_of(state, i, record.is_output) * record.x.width
        for time in range(n_times):
            copy_row(row, y + 4 * (i * n_times + time) * size, size)


@struct
class AddRows(Record):
    x: Any = nested(StridedRows)  # (n, size) float32
    y: Any = nested(StridedRows)
    to: Any = nested(StridedRows)
    size: int
    scale: float
    factor: float
    is_private: bool


@kernel(record=AddRows)
def add_rows(record, state, thread, n_threads):
    """To[t] = scale * (x[t] + factor * y[t])."""
    size, scale, factor = record.size, simd.splat_f32(np.float32(record.scale)), simd.splat_f32(np.float32(record.factor))
    first, end = share(state.n_tokens, thread, n_threads, record.is_private)
    for t in range(first, end):
        x, y, to = own_row(record.x, thread, t), own_row(record.y, thread, t), own_row(record.to, thread, t)
        for index in range(0, size, 16):
            left = size - index
            value = simd.fma(simd.load_part(y + 4 * index, left), factor, simd.load_part(x + 4 * index, left))
            simd.store_part(to + 4 * index, simd.mul(scale, value), left)


@struct
class Quantize(Record):
    quantize: int  # address of a kernel, see `MatmulKernel.quantize`
    x: Any = nested(StridedRows)  # (n, k) float32
    out: Any = nested(StridedRows)
    n_blocks: int  # of a row
    is_private: bool
    is_output: bool  # x has only the rows whose logits are wanted


@kernel(record=Quantize)
def quantize(record, state, thread, n_threads):
    """Activations → operands of the matrix kernels."""
    n = count_rows(state, record.is_output)
    first, end = share(n * record.n_blocks, thread, n_threads, record.is_private)
    if first < end:
        x = own(record.x, thread)
        out = own(record.out, thread)
        simd.invoke(record.quantize, (x, out, n, record.x.width, first, end))


@struct
class Entry:
    """A run of panels of a matrix, which multiplies x."""

    kernel: int  # address, see `MatmulKernel.matmul`
    weights: int  # address of the packed matrix
    x: Any = nested(StridedRows)  # operands, as the matrix wants them
    y: int  # (n, ldy) float32, address of where the matrix's first panel would go
    n_cols: int
    n_panels: int  # of the run
    ldy: int
    bias: int  # float32, address; 0: none
    n_rows: int
    scale: float  # of the product
    first: int  # panel of the run


@helper
def scale_and_shift(y, n, ldy, first, stop, factor, bias):
    """Multiply columns of n rows of y by the number in every lane of `factor`, and add a bias, if its address is not 0."""
    for t in range(n):
        for index in range(first, stop, 16):
            place, left = y + 4 * (t * ldy + index), stop - index
            value = simd.mul(simd.load_part(place, left), factor)
            if bias != 0:
                value = simd.add(value, simd.load_part(bias + 4 * index, left))
            simd.store_part(place, value, left)


@helper
def multiply_panels(entry, first, end, n, y, ldy, state, thread):
    """Compute the rows of some panels of one matrix for n tokens, scaled, and add their bias; y is as in an entry."""
    bias = entry.bias
    x = own(entry.x, thread)
    simd.invoke(entry.kernel, (entry.weights, x, y, n, entry.n_cols, first, end, ldy, scratch_of(state, thread)))
    scale = entry.scale
    if bias == 0 and scale == 1.0:
        return
    stop = min(PANEL_ROWS * end, entry.n_rows)
    scale_and_shift(y, n, ldy, PANEL_ROWS * first, stop, simd.splat_f32(np.float32(scale)), bias)


@helper
def claim(state, n_panels, n_threads):
    """Take the next share of a matrix: its first panel and its end, the same when none are left. Larger ones come first."""
    share = simd.atomic_add(state + CLAIMED, 1)
    size, rest = n_panels // (_SHARES * n_threads), n_panels % (_SHARES * n_threads)
    first = min(share * size + min(share, rest), n_panels)
    end = first + size
    if share < rest:
        end += 1
    return first, min(end, n_panels)


@helper
def multiply_run(entries, index, start, first, end, n, state, thread):
    """Compute panels of matrices that follow one another, counted from the first one on.

    Entry `index` begins with panel `start`, not after `first`. Returns the same of the entry that has the last of them.
    """
    while True:
        entry = entries[index]
        stop = start + entry.n_panels
        if first < stop:
            here = entry.first - start
            multiply_panels(entry, here + first, here + min(end, stop), n, entry.y, entry.ldy, state, thread)
            first = min(end, stop)
        if first == end:
            return index, start
        index, start = index + 1, stop


@struct
class Multiply(Record):
    entries: int = pointer_to(Entry)
    n_panels: int  # of all entries


@kernel(record=Multiply)
def multiply(record, state, thread, n_threads):
    """Y = W x (+ bias) for matrices that do not depend on each other."""
    entries, n_panels = record.entries, record.n_panels
    n = state.n_tokens
    while True:
        first, end = claim(state, n_panels, n_threads)
        if first == end:
            return
        multiply_run(entries, 0, 0, first, end, n, state, thread)


@struct
class SeveralMatrices:
    """Matrices of experts or heads, one below the other in a packed matrix, of which each row of x goes through one."""

    kernel: int  # address, see `MatmulKernel.matmul`
    weights: int  # address of the packed matrix
    n_cols: int
    n_panels: int  # of one of them
    stored_panels: int  # from its first to the next one's
    first_panel: int  # of those stored
    operands: Any = nested(StridedRows)  # the rows of x as the kernel multiplies them
    operand_bytes: int  # of a row
    y: int  # (rows, ldy) float32, address
    ldy: int


@helper
def multiply_one(of, index, first, end, row, n, y, state, thread):
    """Compute some panels of one of several matrices for n rows of x, and write their products from y on, an address."""
    panel, x = index * of.stored_panels + of.first_panel, own(of.operands, thread) + row * of.operand_bytes
    # the kernel counts panels from the first of all matrices, of the weights and of y alike
    places = (of.weights, x, y - 4 * PANEL_ROWS * panel, n)
    span = (of.n_cols, panel + first, panel + end, of.ldy, scratch_of(state, thread))
    simd.invoke(of.kernel, places + span)


_RUN = 256  # floats that are summed in float32


@struct
class NormTable:
    """The table of a norm."""

    weight: int  # float32, address
    bias: int  # likewise; 0: none
    eps: float
    is_centred: bool  # the mean is subtracted
    step: int  # floats from one head's weight to the next's


norm_at = pointer_maker(NormTable)


@helper
def mean_of(x, size):
    """The mean of `size` floats, summed as `inverse_deviation` does."""
    total = np.float64(0.0)
    for start in range(0, size, _RUN):
        sums = simd.zero_f32()
        for index in range(start, min(start + _RUN, size), 16):
            sums = simd.add(sums, simd.load_part(x + 4 * index, size - index))
        total += np.float64(simd.sum_lanes(sums))
    return np.float32(total / size)


@helper
def inverse_deviation(x, size, mean, eps):
    """1 / sqrt(mean((x - mean)^2) + eps) of `size` floats.

    Numerics: runs of 256 squares are summed in float32, 16 to a lane, the runs in float64.
    """
    total, middle = np.float64(0.0), simd.splat_f32(mean)
    for start in range(0, size, _RUN):
        squares = simd.zero_f32()
        for index in range(start, min(start + _RUN, size), 16):
            left = size - index
            value = simd.part_of(simd.sub(simd.load_part(x + 4 * index, left), middle), left)
            squares = simd.fma(value, value, squares)
        total += np.float64(simd.sum_lanes(squares))
    return np.float32(1.0 / math.sqrt(total / size + eps))


@helper
def normalise(x, norm, out, size, head, added):
    """Out = (x - mean) / deviation * weight + bias, and, if that is not 0, the values at `added`; `out` may be either."""
    mean, table = np.float32(0), norm_at(norm)
    if table.is_centred != 0:
        mean = mean_of(x, size)
    middle, scale = simd.splat_f32(mean), simd.splat_f32(inverse_deviation(x, size, mean, table.eps))
    weight, bias = table.weight + 4 * head * table.step, table.bias
    for index in range(0, size, 16):
        left = size - index
        value = simd.mul(simd.sub(simd.load_part(x + 4 * index, left), middle), scale)
        if added != 0:
            value = simd.fma(value, simd.load_part(weight + 4 * index, left), simd.load_part(added + 4 * index, left))
        else:
            value = simd.mul(value, simd.load_part(weight + 4 * index, left))
        if bias != 0:
            value = simd.add(value, simd.load_part(bias + 4 * index, left))
        simd.store_part(out + 4 * index, value, left)
