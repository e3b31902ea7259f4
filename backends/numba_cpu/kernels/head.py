"""Steps that prepare heads of queries, keys or values before they are used or kept, and heads of latent attention.

Of latents a row of every position is kept, cell by cell: the latent vector, padded to PART, and the values that rope turned,
padded likewise, see `cache_type.py`. Queries are laid out the same way.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES, store_value
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.step import (
    SeveralMatrices,
    claim,
    copy_row,
    multiply_one,
    normalise,
    scale_row,
    scratch_of,
    share,
)
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, own, row_of


@helper
def rotate(x, turns, n_pairs, is_interleaved):
    """Turn the first 2 * n_pairs floats at `x` in place; `turns` has the pairs' cosines, then their sines."""
    sines = turns + 4 * n_pairs
    if is_interleaved != 0:
        for index in range(0, 2 * n_pairs, 16):
            left = 2 * n_pairs - index
            value = simd.load_part(x + 4 * index, left)
            turned = simd.mul(value, simd.load_doubled(turns + 2 * index))
            turned = simd.fma(simd.swap_pairs(value), simd.negate_even(simd.load_doubled(sines + 2 * index)), turned)
            simd.store_part(x + 4 * index, turned, left)
        return
    second = x + 4 * n_pairs
    for index in range(0, n_pairs, 16):
        left = n_pairs - index
        a = simd.load_part(x + 4 * index, left)
        b = simd.load_part(second + 4 * index, left)
        cosine = simd.load_part(turns + 4 * index, left)
        sine = simd.load_part(sines + 4 * index, left)
        simd.store_part(x + 4 * index, simd.fnma(b, sine, simd.mul(a, cosine)), left)
        simd.store_part(second + 4 * index, simd.fma(a, sine, simd.mul(b, cosine)), left)


@struct
class HeadSteps:
    """The steps, in this order: clamp; norm and turn, or turn and norm; multiply by the position's factor."""

    limit: float  # values are clamped to +-limit; 0: they are not
    norm: int  # address; 0: none
    turns: int  # (n_ctx, 2, n_pairs) float32, address; 0: none
    n_pairs: int
    is_interleaved: bool
    is_turned_first: bool
    factors: int  # (n_ctx,) float32, address; 0: none
    offset: int  # of the first value that is turned
    lag: int  # positions by which heads are turned less


@kernel(steps=HeadSteps)
def prepare_head(x, steps, head, position, size):
    """Prepare the `size` floats at `x` by `steps`."""
    limit = np.float32(steps.limit)
    if limit != 0:
        high, low = simd.splat_f32(limit), simd.splat_f32(-limit)
        for i in range(0, size, 16):
            simd.store_part(x + 4 * i, simd.minimum(high, simd.maximum(low, simd.load_part(x + 4 * i, size - i))), size - i)
    norm, turns = steps.norm, steps.turns
    for step in range(2):
        if step == steps.is_turned_first:
            if norm != 0:
                normalise(x, norm, x, size, head, 0)
        elif turns != 0:
            n_pairs = steps.n_pairs
            start = x + 4 * steps.offset
            rotate(start, turns + 8 * max(position - steps.lag, 0) * n_pairs, n_pairs, steps.is_interleaved)
    factors = steps.factors
    if factors != 0:
        scale_row(x, size, simd.splat_f32(simd.get_f32(factors + 4 * position)))


@struct
class HeadPart:
    """Heads that are prepared alike, and kept, or not."""

    x: Any = nested(StridedRows)  # (n, n_heads * size) float32
    n_heads: int
    size: int
    steps: int  # address of `HeadSteps`; 0: nothing is done to them
    put: int  # address of the kernel that keeps them, see `cache_type.py`; 0: nobody does
    kept: int  # where, address
    n_rows: int  # from one head of a slot to the next
    first: int  # the row of cell 0


NOT_KEPT = {"put": 0, "kept": 0, "n_rows": 0, "first": 0}


@struct
class PrepareHeads(Record):
    prepare_head: int  # address of the kernel
    parts: Any = pointer_to(HeadPart)
    n_heads: int  # of all parts


@kernel(record=PrepareHeads)
def prepare_heads(record, state, thread, n_threads):
    """Prepare heads, and keep them."""
    n_all = record.n_heads
    n_items = state.n_tokens * n_all
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        t, i = item // n_all, 0
        head = item - t * n_all
        while head >= record.parts[i].n_heads:
            head -= record.parts[i].n_heads
            i += 1
        part = record.parts[i]
        x, position = row_of(part.x, t) + 4 * head * part.size, simd.get_i64(state.positions + 8 * t)
        if part.steps != 0:
            simd.invoke(record.prepare_head, (x, part.steps, head, position, part.size))
        if part.put != 0:
            run = simd.get_i64(state.slots + 8 * t) * part.n_heads + head
            row = run * part.n_rows + part.first + simd.get_i64(state.cells + 8 * t)
            simd.invoke(part.put, (x, part.kept, row, part.size, scratch_of(state, thread)))


@struct
class PrepareLatents(Record):
    """The cache of latents, and how queries ask for it."""

    queries: Any = nested(StridedRows)  # (n, n_heads * head_dim) float32, as they were computed
    head_dim: int
    n_plain: int  # of a head, values that are not turned
    latents: Any = nested(StridedRows)  # (n, n_latent + n_turned) float32
    n_latent: int
    padded: int  # the same, padded
    n_turned: int
    norm: int  # address of `HeadSteps` for latents; 0: there are none
    turn: int  # likewise, for a part of queries
    turn_kept: int  # likewise, for the turned part of the cache
    prepare_head: int  # address of the kernel
    out: Any = nested(StridedRows)  # (n, n_heads * size) float32, queries as attention reads them
    size: int  # of a row that is kept
    n_heads: int
    kept: int  # address
    n_rows: int  # of a slot


@struct
class HeadMatrices(SeveralMatrices):
    """The matrices of all heads; products of n tokens are (n, ldy), and rows of x come head by head."""

    head_y: int  # floats from one head to the next
    n_heads: int


@struct
class QuantizeHeads(Record):
    heads: Any = nested(HeadMatrices)
    quantize: int  # address of a kernel, see `MatmulKernel.quantize`
    x: Any = nested(StridedRows)  # float32
    head_dim: int  # floats from one head to the next
    is_private: bool


@struct
class MultiplyHeads(Record):
    heads: Any = nested(HeadMatrices)


@kernel(record=QuantizeHeads)
def quantize_heads(record, state, thread, n_threads):
    """A part of every head → operands of the matrix kernels, head by head."""
    table, quantize, ldx, head_dim = record.heads, record.quantize, record.x.width, record.head_dim
    n, n_cols, scratch = state.n_tokens, table.n_cols, scratch_of(state, thread)
    operands = own(table.operands, thread)
    first, end = share(table.n_heads, thread, n_threads, record.is_private)
    for head in range(first, end):
        for t in range(n):
            copy_row(record.x.address + 4 * (t * ldx + head * head_dim), scratch + 4 * t * n_cols, n_cols)
        to = operands + head * n * table.operand_bytes
        simd.invoke(quantize, (scratch, to, n, n_cols, 0, n * ((n_cols + 31) // 32)))


@kernel(record=MultiplyHeads)
def multiply_heads(record, state, thread, n_threads):
    """The products of every head's operands with its matrix."""
    table, n = record.heads, state.n_tokens
    n_panels = table.n_panels
    while True:
        item, last = claim(state, table.n_heads * n_panels, n_threads)
        if item == last:
            return
        while item < last:
            head, first = item // n_panels, item % n_panels
            end = min(n_panels, first + last - item)
            multiply_one(table, head, first, end, head * n, n, table.y + 4 * head * table.head_y, state, thread)
            item += end - first


@cache
def prepare_kernel(kind: str) -> Any:
    """Make the kernel that norms and turns latents, stores them, and turns their part of queries."""
    put, n_bytes = store_value(kind), BYTES[kind]

    @helper
    def lay_out(x, to, size, padded):
        for i in range(0, padded, 16):
            simd.store_f32(to + 4 * i, simd.zero_f32())
        copy_row(x, to, size)

    def prepare(record, state, thread, n_threads):
        n, n_heads, d, prepare_head = state.n_tokens, record.n_heads, record.size, record.prepare_head
        latent, padded, turned = record.n_latent, record.padded, record.n_turned
        row = scratch_of(state, thread)
        n_items = n * (n_heads + 1)
        for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
            t, head = item // (n_heads + 1), item % (n_heads + 1)
            position = simd.get_i64(state.positions + 8 * t)
            if head < n_heads:
                x = record.queries.address + 4 * (t * record.queries.width + head * record.head_dim)
                to = record.out.address + 4 * (t * record.out.width + head * d + padded)
                lay_out(x + 4 * record.n_plain, to, turned, d - padded)
            else:
                x, to = record.latents.address + 4 * t * record.latents.width, row + 4 * padded
                lay_out(x, row, latent, padded)
                simd.invoke(prepare_head, (row, record.norm, 0, position, latent))
                lay_out(x + 4 * latent, to, turned, d - padded)
            steps = record.turn
            if head == n_heads:
                steps = record.turn_kept
            if steps != 0:
                simd.invoke(prepare_head, (to, steps, 0, position, turned))
            if head == n_heads:
                cell = simd.get_i64(state.slots + 8 * t) * record.n_rows + simd.get_i64(state.cells + 8 * t)
                put(row, record.kept + n_bytes * (d // LANES) * cell, d, row + 4 * d)

    return kernel(prepare, f"prepare_latent_{kind}", record=PrepareLatents)
