"""What happens to a head of queries, keys or values before it is used, or to all of a row, in place."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.norm import normalise
from augury.backends.numba_cpu.kernels.rope import rotate
from augury.backends.numba_cpu.kernels.simd import get_f32, get_i64, maximum, minimum, mul, splat_f32
from augury.backends.numba_cpu.kernels.team import N_TOKENS, POSITIONS

# Offsets into the record of what is done, in this order: clamp to +-LIMIT; norm and turn, or turn and norm; multiply by the
# position's factor. TURNS (n_ctx, 2, pairs) and FACTORS (n_ctx,) are float32; an address of 0, or a limit of 0, says no.
# OFFSET is that of the first value that is turned.
(LIMIT, NORM, TURNS, N_PAIRS, IS_INTERLEAVED, IS_TURNED_FIRST, FACTORS, OFFSET) = (8 * field for field in range(8))


@kernel
def prepare_head(x, ways, head, position, size):
    """Do to the `size` floats at `x` what the record `ways` says."""
    limit = np.float32(get_f64(ways + LIMIT))
    if limit != 0:
        high, low = splat_f32(limit), splat_f32(-limit)
        for i in range(0, size, 16):
            store_part(x + 4 * i, minimum(high, maximum(low, load_part(x + 4 * i, size - i))), size - i)
    norm, turns = get_i64(ways + NORM), get_i64(ways + TURNS)
    for step in range(2):
        if step == get_i64(ways + IS_TURNED_FIRST):
            if norm != 0:
                normalise(x, norm, x, size, head, 0)
        elif turns != 0:
            n_pairs = get_i64(ways + N_PAIRS)
            start = x + 4 * get_i64(ways + OFFSET)
            rotate(start, turns + 8 * position * n_pairs, n_pairs, get_i64(ways + IS_INTERLEAVED))
    factors = get_i64(ways + FACTORS)
    if factors != 0:
        factor = splat_f32(get_f32(factors + 4 * position))
        for i in range(0, size, 16):
            store_part(x + 4 * i, mul(load_part(x + 4 * i, size - i), factor), size - i)


@kernel
def prepare_rows(record, state, thread, n_threads):
    """Do to parts of rows what `prepare_head` does to heads. Operands: it, x, bytes of a row, parts, floats of one, `ways`."""
    n_parts, size = get_i64(record + 40), get_i64(record + 48)
    n_items = get_i64(state + N_TOKENS) * n_parts
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        t, part = item // n_parts, item % n_parts
        x = get_i64(record + 24) + t * get_i64(record + 32) + 4 * part * size
        position = get_i64(get_i64(state + POSITIONS) + 8 * t)
        invoke(get_i64(record + 16), (x, get_i64(record + 56), part, position, size))
