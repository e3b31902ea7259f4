"""Steps that prepare heads of queries, keys or values before they are used or kept, in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import invoke, load_doubled, load_part, negate_even, store_part, swap_pairs
from augury.backends.numba_cpu.kernels.norm import normalise
from augury.backends.numba_cpu.kernels.simd import fma, fnma, get_f32, get_i64, maximum, minimum, mul, splat_f32
from augury.backends.numba_cpu.kernels.step import scale_row, scratch_of
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, row_of


@helper
def rotate(x, turns, n_pairs, is_interleaved):
    """Turn the first 2 * n_pairs floats at `x` in place; `turns` has the pairs' cosines, then their sines."""
    sines = turns + 4 * n_pairs
    if is_interleaved != 0:
        for index in range(0, 2 * n_pairs, 16):
            left = 2 * n_pairs - index
            value = load_part(x + 4 * index, left)
            turned = mul(value, load_doubled(turns + 2 * index))
            turned = fma(swap_pairs(value), negate_even(load_doubled(sines + 2 * index)), turned)
            store_part(x + 4 * index, turned, left)
        return
    second = x + 4 * n_pairs
    for index in range(0, n_pairs, 16):
        left = n_pairs - index
        a = load_part(x + 4 * index, left)
        b = load_part(second + 4 * index, left)
        cosine = load_part(turns + 4 * index, left)
        sine = load_part(sines + 4 * index, left)
        store_part(x + 4 * index, fnma(b, sine, mul(a, cosine)), left)
        store_part(second + 4 * index, fma(a, sine, mul(b, cosine)), left)


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
        high, low = splat_f32(limit), splat_f32(-limit)
        for i in range(0, size, 16):
            store_part(x + 4 * i, minimum(high, maximum(low, load_part(x + 4 * i, size - i))), size - i)
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
        scale_row(x, size, splat_f32(get_f32(factors + 4 * position)))


@struct
class HeadPart:
    """Heads that are prepared alike, and kept, or not."""

    x: Any = nested(StridedRows)  # (n, n_heads * size) float32
    n_heads: int
    size: int
    steps: int  # address of `HeadSteps`; 0: nothing is done to them
    put: int  # address of the kernel that keeps them, see `store.py`; 0: nobody does
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
        x, position = row_of(part.x, t) + 4 * head * part.size, get_i64(state.positions + 8 * t)
        if part.steps != 0:
            invoke(record.prepare_head, (x, part.steps, head, position, part.size))
        if part.put != 0:
            run = get_i64(state.slots + 8 * t) * part.n_heads + head
            row = run * part.n_rows + part.first + get_i64(state.cells + 8 * t)
            invoke(part.put, (x, part.kept, row, part.size, scratch_of(state, thread)))
