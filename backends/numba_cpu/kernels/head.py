"""What happens to a head of queries, keys or values before it is used, or to all of a row, in place."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.norm import normalise
from augury.backends.numba_cpu.kernels.rope import rotate
from augury.backends.numba_cpu.kernels.simd import get_f32, get_i64, maximum, minimum, mul, splat_f32
from augury.backends.numba_cpu.kernels.struct import pointer_to, struct
from augury.backends.numba_cpu.kernels.team import N_TOKENS, POSITIONS, Record


@struct
class HeadSteps:
    """What is done, in this order: clamp; norm and turn, or turn and norm; multiply by the position's factor."""

    limit: float  # of what is clamped to +-limit; 0: nothing is
    norm: int  # address; 0: none
    turns: int  # (n_ctx, 2, n_pairs) float32, address; 0: none
    n_pairs: int
    is_interleaved: bool
    is_turned_first: bool
    factors: int  # (n_ctx,) float32, address; 0: none
    offset: int  # of the first value that is turned


@kernel(ways=HeadSteps)
def prepare_head(x, ways, head, position, size):
    """Do to the `size` floats at `x` what `ways` says."""
    limit = np.float32(ways.limit)
    if limit != 0:
        high, low = splat_f32(limit), splat_f32(-limit)
        for i in range(0, size, 16):
            store_part(x + 4 * i, minimum(high, maximum(low, load_part(x + 4 * i, size - i))), size - i)
    norm, turns = ways.norm, ways.turns
    for step in range(2):
        if step == ways.is_turned_first:
            if norm != 0:
                normalise(x, norm, x, size, head, 0)
        elif turns != 0:
            n_pairs = ways.n_pairs
            start = x + 4 * ways.offset
            rotate(start, turns + 8 * position * n_pairs, n_pairs, ways.is_interleaved)
    factors = ways.factors
    if factors != 0:
        factor = splat_f32(get_f32(factors + 4 * position))
        for i in range(0, size, 16):
            store_part(x + 4 * i, mul(load_part(x + 4 * i, size - i), factor), size - i)


@struct
class PrepareRows(Record):
    """Operands of `prepare_rows`."""

    prepare_head: int  # address of the kernel
    x: int  # float32 rows, address
    stride: int  # bytes of a row
    n_parts: int  # of a row
    size: int  # floats of a part
    ways: int = pointer_to(HeadSteps)


@kernel(record=PrepareRows)
def prepare_rows(record, state, thread, n_threads):
    """Do to parts of rows what `prepare_head` does to heads."""
    n_parts, size = record.n_parts, record.size
    n_items = get_i64(state + N_TOKENS) * n_parts
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        t, part = item // n_parts, item % n_parts
        x = record.x + t * record.stride + 4 * part * size
        position = get_i64(get_i64(state + POSITIONS) + 8 * t)
        invoke(record.prepare_head, (x, record.ways, part, position, size))
