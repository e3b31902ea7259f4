"""The kernels of records that all kinds of blocks use: norms, and products with matrices.

Each takes `(record, state, thread, n_threads)`; see `team.py`. Operands begin at offset 16 of a record, 8 bytes each.

What depends on one token alone (embeddings, norms, activations) exists twice: shared, where the threads divide the tokens and
a barrier follows, and private, where every thread does the same for itself into memory of its own (`stride` bytes apart),
which is cheaper than a barrier while there are one or two tokens.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.norm import normalise
from augury.backends.numba_cpu.kernels.simd import add, atomic_add, fma, get_i64, mul, splat_f32
from augury.backends.numba_cpu.kernels.team import CLAIMED, N_ROWS, N_TOKENS, ROWS, SCRATCH, SCRATCH_BYTES

PANEL_ROWS = 32
_SHARES = 4  # of a matrix that each thread takes one after the other, so that a slower one takes fewer
# Offsets into the entry of a matrix (see `multiply`).
ENTRY_BYTES = 96
KERNEL, WEIGHTS, X, X_STRIDE, Y, N_COLS, N_PANELS, LDY, BIAS, ROW_COUNT, SCALE, FIRST = (8 * field for field in range(12))


@helper
def scratch_of(state, thread):
    """Scratch memory of a thread."""
    return get_i64(state + SCRATCH) + thread * get_i64(state + SCRATCH_BYTES)


@helper
def share(n, thread, n_threads, is_private):
    """The rows that a thread treats: all where they are its own, otherwise its part of them."""
    if is_private != 0:
        return 0, n
    return n * thread // n_threads, n * (thread + 1) // n_threads


@kernel
def add_norm(record, state, thread, n_threads):
    """X += y or its norm, where there is a y; out = norm(x), where there is a norm.

    Operands: x, stride, y (or 0), ldy, y's norm (or 0), norm (or 0), E, out, stride, is_private, rows. Where `rows` is 1, only
    the rows whose logits are wanted are treated, and `out` has these alone.
    """
    x, y, ldy = get_i64(record + 16) + thread * get_i64(record + 24), get_i64(record + 32), get_i64(record + 40)
    post, norm, size = get_i64(record + 48), get_i64(record + 56), get_i64(record + 64)
    out = get_i64(record + 72) + thread * get_i64(record + 80)
    is_gathered = get_i64(record + 96) != 0
    n = get_i64(state + N_TOKENS)
    if is_gathered:
        n = get_i64(state + N_ROWS)
    first, end = share(n, thread, n_threads, get_i64(record + 88))
    for i in range(first, end):
        t = i
        if is_gathered:
            t = get_i64(get_i64(state + ROWS) + 8 * i)
        row = x + 4 * t * size
        if y != 0 and post == 0:
            for index in range(0, size, 16):
                left = size - index
                value = add(load_part(row + 4 * index, left), load_part(y + 4 * (t * ldy + index), left))
                store_part(row + 4 * index, value, left)
        for step in range(2):  # a loop, so that the norm is compiled once
            source, what, to, added = row, norm, out + 4 * i * size, 0
            if step == 0:
                source, what, to, added = y + 4 * t * ldy, post, row, row
            if what != 0:
                normalise(source, what, to, size, 0, added)


@kernel
def copy_rows(record, state, thread, n_threads):
    """Copy x[t] to y[t]. Operands: x, stride, y, stride, E, is_private: whether the rows of y are a thread's own."""
    size = get_i64(record + 48)
    x = get_i64(record + 16) + thread * get_i64(record + 24)
    y = get_i64(record + 32) + thread * get_i64(record + 40)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 56))
    for t in range(first, end):
        for index in range(0, size, 16):
            left, place = size - index, 4 * (t * size + index)
            store_part(y + place, load_part(x + place, left), left)


@kernel
def gather_rows(record, state, thread, n_threads):
    """Copy the rows of x whose logits are wanted to y, one after the other. Operands: x, stride, y, stride, E, is_private."""
    size, rows = get_i64(record + 48), get_i64(state + ROWS)
    x = get_i64(record + 16) + thread * get_i64(record + 24)
    y = get_i64(record + 32) + thread * get_i64(record + 40)
    first, end = share(get_i64(state + N_ROWS), thread, n_threads, get_i64(record + 56))
    for i in range(first, end):
        row = x + 4 * get_i64(rows + 8 * i) * size
        for index in range(0, size, 16):
            left = size - index
            store_part(y + 4 * (i * size + index), load_part(row + 4 * index, left), left)


@kernel
def add_rows(record, state, thread, n_threads):
    """X[t] += factor * y[t]. Operands: x, stride, y, stride, E, is_private, factor."""
    size, factor = get_i64(record + 48), splat_f32(np.float32(get_f64(record + 64)))
    x = get_i64(record + 16) + thread * get_i64(record + 24)
    y = get_i64(record + 32) + thread * get_i64(record + 40)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 56))
    for t in range(first, end):
        for index in range(0, size, 16):
            left, place = size - index, 4 * (t * size + index)
            store_part(x + place, fma(load_part(y + place, left), factor, load_part(x + place, left)), left)


@kernel
def scale_rows(record, state, thread, n_threads):
    """X[t] *= factor. Operands: x, stride, E, is_private, factor."""
    x, size = get_i64(record + 16) + thread * get_i64(record + 24), get_i64(record + 32)
    factor = splat_f32(np.float32(get_f64(record + 48)))
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 40))
    for t in range(first, end):
        for index in range(0, size, 16):
            left, place = size - index, x + 4 * (t * size + index)
            store_part(place, mul(load_part(place, left), factor), left)


@kernel
def quantize(record, state, thread, n_threads):
    """Activations → operands of the matrix kernels. Operands: kernel, x, stride, out, stride, k, n_blocks, is_private, rows."""
    n = get_i64(state + N_TOKENS)
    if get_i64(record + 80) != 0:
        n = get_i64(state + N_ROWS)
    n_items = n * get_i64(record + 64)
    first, end = share(n_items, thread, n_threads, get_i64(record + 72))
    if first < end:
        x = get_i64(record + 24) + thread * get_i64(record + 32)
        out = get_i64(record + 40) + thread * get_i64(record + 48)
        invoke(get_i64(record + 16), (x, out, n, get_i64(record + 56), first, end))


@helper
def multiply_panels(entry, first, end, n, y, ldy, state, thread):
    """Compute the rows of some panels of one matrix for n tokens, scaled, and add their bias; y is as in an entry."""
    bias = get_i64(entry + BIAS)
    x = get_i64(entry + X) + thread * get_i64(entry + X_STRIDE)
    invoke(
        get_i64(entry + KERNEL),
        (get_i64(entry + WEIGHTS), x, y, n, get_i64(entry + N_COLS), first, end, ldy, scratch_of(state, thread)),
    )
    scale = get_f64(entry + SCALE)
    if bias == 0 and scale == 1.0:
        return
    factor = splat_f32(np.float32(scale))
    stop = min(PANEL_ROWS * end, get_i64(entry + ROW_COUNT))
    for t in range(n):
        for index in range(PANEL_ROWS * first, stop, 16):
            place = y + 4 * (t * ldy + index)
            left = stop - index
            value = mul(load_part(place, left), factor)
            if bias != 0:
                value = add(value, load_part(bias + 4 * index, left))
            store_part(place, value, left)


@helper
def claim(state, n_panels, n_threads):
    """Take the next share of a matrix: its first panel and its end, the same when none are left. Larger ones come first."""
    share = atomic_add(state + CLAIMED, 1)
    size, rest = n_panels // (_SHARES * n_threads), n_panels % (_SHARES * n_threads)
    first = min(share * size + min(share, rest), n_panels)
    end = first + size
    if share < rest:
        end += 1
    return first, min(end, n_panels)


@kernel
def multiply(record, state, thread, n_threads):
    """Y = W x (+ bias) for matrices that do not depend on each other. Operands: entries, how many, panels of all, rows.

    An entry is a run of panels of a matrix, `N_PANELS` from `FIRST` on; Y is where the matrix's first panel would go.
    """
    entries, n_entries, n_panels = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32)
    n = get_i64(state + N_TOKENS)
    if get_i64(record + 40) != 0:
        n = get_i64(state + N_ROWS)
    if n == 0:
        return
    while True:
        first, end = claim(state, n_panels, n_threads)
        if first == end:
            return
        start = 0
        for index in range(n_entries):
            entry = entries + ENTRY_BYTES * index
            stop = start + get_i64(entry + N_PANELS)
            if first < stop and end > start:
                here = get_i64(entry + FIRST) - start
                y, ldy = get_i64(entry + Y), get_i64(entry + LDY)
                multiply_panels(entry, here + max(first, start), here + min(end, stop), n, y, ldy, state, thread)
            start = stop
