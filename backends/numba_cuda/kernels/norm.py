"""Norms of rows, one block each, and their quantisation."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import (
    THREADS,
    WARP,
    add,
    cuda,
    div,
    fma,
    kernel,
    lane,
    mul,
    root,
    together,
    warp_sum,
)
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS, N_ROWS, N_TOKENS, ROWS
from augury.backends.numba_cuda.kernels.quantise import quantise, unit_of

# What a norm does, a number for kernels; a bias, if any, comes after its weights.
NOTHING, AS_IS, RMS, LAYER = range(4)
BIASED = 4
TRADED = 8  # of what is added to x: what x was takes its place

_WARPS = THREADS // WARP
_AT_ONCE = 4  # units that a warp reads before it stores one: the compiler moves no reading before a store


@lane
def squares(x, start, size, first, step):
    """The sum of the squares of every `step`-th value of a row, from the `first` on."""
    total = np.float32(0)
    for i in range(start + first, start + size, step):
        total = fma(x[i], x[i], total)
    return total


@lane
def _sum(x, start, size, first, step):
    total = np.float32(0)
    for i in range(start + first, start + size, step):
        total = add(total, x[i])
    return total


@lane
def _deviations(x, start, size, first, step, mean):
    """The sum of the squares of how far values are from their mean."""
    total = np.float32(0)
    for i in range(start + first, start + size, step):
        distance = add(x[i], -np.float32(mean))
        total = fma(distance, distance, total)
    return total


@lane
def inverse_root(total, size, eps):
    """1 / sqrt(total / size + eps)."""
    mean = div(np.float32(total), np.float32(size))
    return div(np.float32(1), root(add(mean, np.float32(eps))))


@lane
def normed(x, at, weight, i, size, mean, inverse, kind):
    """Value i of a norm's `size`, at x[at]: (x - mean) * inverse * weight + bias, as far as its kind has them."""
    if kind == AS_IS:
        return x[at]
    value = mul(mul(add(x[at], -np.float32(mean)), np.float32(inverse)), weight[i])
    return add(value, weight[size + i]) if kind & BIASED else value


@lane
def _add_normed(x, start, y, at, size, first, step, weight, mean, inverse, kind):
    """Add a norm of y to x, every `step`-th value from the `first` on; y may become what x was."""
    for i in range(first, size, step):
        was = x[start + i]
        x[start + i] = add(was, normed(y, at + i, weight, i, size, mean, inverse, kind & (TRADED - 1)))
        if kind & TRADED:
            y[at + i] = was


@lane
def _value(x, weight, start, at, i, size, mean, inverse, kind):
    return normed(x, start + i, weight, at + i, size, mean, inverse, kind) if i < size else np.float32(0)


@together
def sum_of_block(value, parts):
    """The sum of all threads' values: over warps, in order, of sums over their lanes."""
    i = cuda.threadIdx.x
    value = warp_sum(value)
    if i % WARP == 0:
        parts[i // WARP] = value
    cuda.syncthreads()
    total = parts[0]
    for warp in range(1, cuda.blockDim.x // WARP):
        total = add(total, parts[warp])
    return total


@together
def moments(x, start, size, n_threads, kind, eps, parts):
    """What a norm takes off the values of a row, and what it then multiplies them with. All of a block's threads take part."""
    thread = cuda.threadIdx.x
    mean = np.float32(0)
    if kind & 3 == AS_IS:
        return mean, np.float32(1)
    if kind & 3 == LAYER:
        mean = div(sum_of_block(_sum(x, start, size, thread, n_threads), parts), np.float32(size))
        cuda.syncthreads()  # all have read what is written next
        total = sum_of_block(_deviations(x, start, size, thread, n_threads, mean), parts)
    else:
        total = sum_of_block(squares(x, start, size, thread, n_threads), parts)
    return mean, inverse_root(total, size, eps)


@together
def _put_normed(
    inputs,
    x,
    weight,
    start,
    at,
    size,
    n_out,
    mean,
    inverse,
    kind,
    t,
    out,
    to,
    quantised,
    factors,
    sums,
    width,
    as_floats,
    as_bytes,
    units_on,
):
    """Store what a norm makes of `size` values of token t, and zeros up to `n_out`, as floats, as units, or both.

    Floats go to `out[to]` and further, units where those of a token's row go, `units_on` further on.
    """
    i, n_units = cuda.threadIdx.x % WARP, (n_out + WARP - 1) // WARP
    values = cuda.local.array(_AT_ONCE, np.float32)
    for first in range(cuda.threadIdx.x // WARP, n_units, _AT_ONCE * _WARPS):
        for j in range(_AT_ONCE):
            at_unit = WARP * (first + j * _WARPS) + i
            values[j] = _value(x, weight, start, at, at_unit, size, mean, inverse, kind)
        for j in range(_AT_ONCE):
            unit = first + j * _WARPS
            if as_floats and WARP * unit + i < n_out:
                out[to + WARP * unit + i] = values[j]
            if as_bytes and unit < n_units:
                quantise(values[j], i, quantised, factors, sums, units_on + unit_of(inputs, t, unit, width // WARP))


@kernel("jfffffbfj" + 11 * "i" + "rr")
def norm_rows(
    inputs,
    x,
    y,
    y_weight,
    weight,
    out,
    quantised,
    factors,
    sums,
    stride,
    y_stride,
    size,
    n_out,
    width,
    step,
    is_output,
    as_floats,
    as_bytes,
    y_kind,
    kind,
    y_eps,
    eps,
):
    """Add a norm of row t of y to that of x, and norm that: as floats, as units, or both. `y_kind` and `kind` say how.

    Rows of x consist of groups of `size`, one for each block of the grid's second dimension; they may be normed in place. Of
    the output row t of x is that of the t-th token that has logits.

    Args:
        inputs: Of the pass.
        x: (n, stride).
        y: (n, y_stride).
        y_weight, weight: (size,), with a bias (2, size); of the latter those of the next group come after `step`, or 0.
        out: (n, width), of each group `n_out` values; those beyond `size` are 0.
        quantised, factors, sums: Units, as many as `out` has.
    """
    t, group = cuda.blockIdx.x, cuda.blockIdx.y
    if t >= (inputs[N_ROWS] if is_output else inputs[N_TOKENS]):
        return
    start = (inputs[ROWS + t] if is_output else t) * stride + group * size
    parts = cuda.shared.array(_WARPS, np.float32)
    thread = cuda.threadIdx.x
    if y_kind != NOTHING:
        mean, inverse = moments(y, t * y_stride, size, THREADS, y_kind, y_eps, parts)
        _add_normed(x, start, y, t * y_stride, size, thread, THREADS, y_weight, mean, inverse, y_kind)
        cuda.syncthreads()
    if kind == NOTHING:
        return
    mean, inverse = moments(x, start, size, THREADS, kind, eps, parts)
    to = t * width + group * size
    _put_normed(
        inputs,
        x,
        weight,
        start,
        group * step,
        size,
        n_out,
        mean,
        inverse,
        kind,
        t,
        out,
        to,
        quantised,
        factors,
        sums,
        width,
        as_floats,
        as_bytes,
        0,
    )


@lane
def _norm_in_place(x, weight, start, size, first, mean, inverse, kind):
    for i in range(first, size, THREADS):
        x[start + i] = normed(x, start + i, weight, i, size, mean, inverse, kind)


@kernel("jfffffbfj" + 14 * "i" + "rrr")
def norm_parts(
    inputs,
    x,
    weight,
    second_weight,
    third_weight,
    out,
    quantised,
    factors,
    sums,
    stride,
    width,
    as_floats,
    as_bytes,
    at,
    size,
    kind,
    second_at,
    second_size,
    second_kind,
    third_at,
    third_size,
    third_kind,
    n_apart,
    eps,
    second_eps,
    third_eps,
):
    """Norm up to three parts of rows (n, stride), a block for each: in place, but the first `n_apart` go elsewhere.

    These become rows of products' input, as in `norm_rows`, each part in its own MAX_TOKENS rows of that.
    """
    t, part = cuda.blockIdx.x, cuda.blockIdx.y
    parts = cuda.shared.array(_WARPS, np.float32)
    if t >= inputs[N_TOKENS]:
        return
    if part == 1:
        at, size, kind, weight, eps = second_at, second_size, second_kind, second_weight, second_eps
    if part == 2:
        at, size, kind, weight, eps = third_at, third_size, third_kind, third_weight, third_eps
    if kind == NOTHING:
        return
    start = t * stride + at
    mean, inverse = moments(x, start, size, THREADS, kind, eps, parts)
    if part >= n_apart:
        _norm_in_place(x, weight, start, size, cuda.threadIdx.x, mean, inverse, kind)
        return
    to = (part * MAX_TOKENS + t) * width
    _put_normed(
        inputs,
        x,
        weight,
        start,
        0,
        size,
        width,
        mean,
        inverse,
        kind,
        t,
        out,
        to,
        quantised,
        factors,
        sums,
        width,
        as_floats,
        as_bytes,
        part * MAX_TOKENS * (width // WARP),
    )


@kernel("jffiiirr")
def blend_rows(inputs, x, y, size, x_stride, y_stride, a, b):
    """X = a * x + b * y, row by row, of as many values; where a is 0 whatever x was. A stride of 0 repeats one row."""
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * WARP + cuda.threadIdx.x
    if t >= inputs[N_TOKENS] or i >= size:
        return
    value = mul(y[t * y_stride + i], np.float32(b))
    x[t * x_stride + i] = value if a == 0 else fma(x[t * x_stride + i], np.float32(a), value)
