"""Norms of rows, one block each, and their quantisation."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP, cuda, kernel, lane, record, together, warp_sum
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS, N_ROWS, N_TOKENS, ROWS
from augury.backends.numba_cuda.kernels.quantise import SEVERAL, TargetArgs, quantise_several, unit_of

NOTHING, AS_IS, RMS, LAYER = range(4)
BIASED = 4
NormArgs = record("NormArgs", f="weight", i="kind", r="eps")
"""The work of a norm, its kind from NOTHING on, and BIASED if a bias comes after its weights."""
PartArgs = record("PartArgs", f="weight", i="kind at size", r="eps")
"""A part of a row, `size` values from column `at` on, and its norm."""
NormedArgs = record("NormedArgs", f="x y", i="stride y_stride size n_out step is_output is_traded")
"""Rows x (n, stride) of groups of `size` values, one for each block of the grid's second dimension, and y (n, y_stride).

Of the output row t of x is that of the t-th token that has logits. The weights of the next group come after `step`; 0: they are
the same. Rows y become the previous x, if `is_traded`.
"""

_WARPS = THREADS // WARP
_N_SCALES = 2 * SEVERAL * _WARPS


@lane
def _four(x, i, step, end):
    """Four values of a row, every `step`-th one; those from the end on are 0."""
    a, b = x[i] if i < end else np.float32(0), x[i + step] if i + step < end else np.float32(0)
    i += 2 * step
    return a, b, x[i] if i < end else np.float32(0), x[i + step] if i + step < end else np.float32(0)


@lane
def squares(x, start, size, first, step):
    """The sum of the squares of every `step`-th value of a row, from the `first` on; eight are read at once."""
    total, end = np.float32(0), start + size
    for i in range(start + first, end, 8 * step):
        a, b, c, d = _four(x, i, step, end)
        e, f, g, h = _four(x, i + 4 * step, step, end)
        total = gpu.fma(d, d, gpu.fma(c, c, gpu.fma(b, b, gpu.fma(a, a, total))))
        total = gpu.fma(h, h, gpu.fma(g, g, gpu.fma(f, f, gpu.fma(e, e, total))))
    return total


@lane
def _sum(x, start, size, first, step):
    total = np.float32(0)
    for i in range(start + first, start + size, step):
        total = gpu.add(total, x[i])
    return total


@lane
def _deviations(x, start, size, first, step, mean):
    """The sum of the squares of how far values are from their mean."""
    total = np.float32(0)
    for i in range(start + first, start + size, step):
        distance = gpu.add(x[i], -np.float32(mean))
        total = gpu.fma(distance, distance, total)
    return total


@lane
def inverse_root(total, size, eps):
    """1 / sqrt(total / size + eps)."""
    mean = gpu.div(np.float32(total), np.float32(size))
    return gpu.div(np.float32(1), gpu.root(gpu.add(mean, np.float32(eps))))


@lane
def _scaled(value, weight, norm, i, size, mean, inverse):
    """Value i of a norm's `size`: (value - mean) * inverse * weight + bias, as far as its kind has them."""
    if norm.kind == AS_IS:
        return np.float32(value)
    value = gpu.mul(gpu.mul(gpu.add(np.float32(value), -np.float32(mean)), np.float32(inverse)), np.float32(weight))
    return gpu.add(value, norm.weight[size + i]) if norm.kind & BIASED else value


@lane
def normed(x, at, norm, i, size, mean, inverse):
    """Value i of a norm's `size`, which is that of x[at]."""
    return _scaled(x[at], np.float32(0) if norm.kind == AS_IS else norm.weight[i], norm, i, size, mean, inverse)


@lane
def _add_normed(x, start, y, at, size, first, step, norm, mean, inverse, is_traded):
    """Add a norm of y to x, every `step`-th value from the `first` on; y may become the previous x."""
    for i in range(first, size, step):
        was = x[start + i]
        x[start + i] = gpu.add(was, normed(y, at + i, norm, i, size, mean, inverse))
        if is_traded:
            y[at + i] = was


@lane
def _read_weights(norm, at, size, first, weights):
    """Read every THREADS-th weight of a norm from the `first` on, as many as a thread takes at once."""
    for j in range(SEVERAL):
        i = first + j * THREADS
        weights[j] = np.float32(0)
        if norm.kind & 3 > AS_IS and i < size:
            weights[j] = norm.weight[at + i]


@lane
def _normed_values(x, norm, start, at, size, first, mean, inverse, weights, values):
    """The result of every THREADS-th value from the `first` on; beyond `size` 0."""
    for j in range(SEVERAL):
        i = first + j * THREADS
        values[j] = x[start + i] if i < size else np.float32(0)
    for j in range(SEVERAL):
        i = first + j * THREADS
        if i < size:
            values[j] = _scaled(values[j], weights[j], norm, at + i, size, mean, inverse)


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
        total = gpu.add(total, parts[warp])
    return total


@together
def moments(x, start, size, n_threads, norm, parts):
    """A norm's subtrahend of a row's values, and its factor. All of a block's threads take part."""
    thread = cuda.threadIdx.x
    mean = np.float32(0)
    if norm.kind & 3 == AS_IS:
        return mean, np.float32(1)
    if norm.kind & 3 == LAYER:
        mean = gpu.div(sum_of_block(_sum(x, start, size, thread, n_threads), parts), np.float32(size))
        cuda.syncthreads()  # all threads have read before the next write
        total = sum_of_block(_deviations(x, start, size, thread, n_threads, mean), parts)
    else:
        total = sum_of_block(squares(x, start, size, thread, n_threads), parts)
    return mean, inverse_root(total, size, norm.eps)


@lane
def _store(floats, at, values, first, n):
    """Store every THREADS-th of n floats, from the `first` on."""
    for j in range(SEVERAL):
        if first + j * THREADS < n:
            floats[at + first + j * THREADS] = values[j]


@together
def _put_normed(inputs, x, norm, start, sizes, found, t, to, firsts, weights):
    """Store the normed values of token t, whose moments were found.

    Args:
        sizes: Of the norm's weights where the first is; how many values there are, and how many with zeros after them.
        firsts: Where floats begin; how far after those of the token's row units do.
        weights: The first weights of a thread, which are read.
    """
    (at, size, n_out), (first_float, first_unit) = sizes, firsts
    thread, n_units, (mean, inverse) = np.uint32(cuda.threadIdx.x), (n_out + WARP - 1) // WARP, found
    warp, i, values = thread // WARP, thread % WARP, cuda.local.array(SEVERAL, np.float32)
    scales = cuda.shared.array(_N_SCALES, np.float32)
    for first in range(warp, n_units, SEVERAL * _WARPS):
        if first > warp:
            _read_weights(norm, at, size, WARP * first + i, weights)
        _normed_values(x, norm, start, at, size, WARP * first + i, mean, inverse, weights, values)
        if to.as_floats:
            _store(to.floats, first_float, values, WARP * first + i, n_out)
        if to.as_bytes:
            unit = unit_of(inputs, t, first, to.width // WARP)
            step = unit_of(inputs, t, first + _WARPS, to.width // WARP) - unit
            quantise_several(
                values, i, to, first_unit + unit, step, (n_units - first + _WARPS - 1) // _WARPS, scales, 2 * SEVERAL * warp
            )


@together
def add_norm_of_row(y, x, start, at, size, thread, y_norm, is_traded, parts):
    """Add a norm of a row of y to one of x."""
    mean, inverse = moments(y, at, size, THREADS, y_norm, parts)
    _add_normed(x, start, y, at, size, thread, THREADS, y_norm, mean, inverse, is_traded)
    cuda.syncthreads()


@kernel("j", NormedArgs, NormArgs, NormArgs, TargetArgs)
def norm_rows(inputs, params, y_norm, norm, to):
    """Add a norm of row t of y to that of x, and norm that; where there is no such norm, its kind is NOTHING.

    Args:
        y_norm, norm: Of rows of y, and of groups of x.
        to: Where `n_out` values of each group go; those beyond `size` are 0.
    """
    t, group, thread = cuda.blockIdx.x, cuda.blockIdx.y, np.uint32(cuda.threadIdx.x)
    x, y, size, is_output = params.x, params.y, params.size, params.is_output
    parts, weights = cuda.shared.array(_WARPS, np.float32), cuda.local.array(SEVERAL, np.float32)
    _read_weights(norm, group * params.step, size, thread, weights)
    gpu.wait_for_launch()
    if t >= (inputs[N_ROWS] if is_output else inputs[N_TOKENS]):
        return
    start = (inputs[ROWS + t] if is_output else t) * params.stride + group * size
    if y_norm.kind != NOTHING:
        add_norm_of_row(y, x, start, t * params.y_stride, size, thread, y_norm, params.is_traded, parts)
    if norm.kind == NOTHING:
        return
    first_float, found = t * to.width + group * size, moments(x, start, size, THREADS, norm, parts)
    _put_normed(inputs, x, norm, start, (group * params.step, size, params.n_out), found, t, to, (first_float, 0), weights)


@lane
def _norm_in_place(x, norm, start, size, first, mean, inverse):
    for i in range(first, size, THREADS):
        x[start + i] = normed(x, start + i, norm, i, size, mean, inverse)


@kernel("jfii", PartArgs, PartArgs, PartArgs, TargetArgs)
def norm_parts(inputs, x, stride, n_apart, first, second, third, to):
    """Norm up to three parts of rows (n, stride), a block for each: in place, but the first `n_apart` go elsewhere.

    These become rows of products' input, as in `norm_rows`, each part in its own MAX_TOKENS rows of that.
    """
    t, number = cuda.blockIdx.x, cuda.blockIdx.y
    parts, weights = cuda.shared.array(_WARPS, np.float32), cuda.local.array(SEVERAL, np.float32)
    if t >= inputs[N_TOKENS]:
        return
    weight, kind, at, size, eps = first
    if number == 1:
        weight, kind, at, size, eps = second
    if number == 2:
        weight, kind, at, size, eps = third
    if kind == NOTHING:
        return
    norm, start = NormArgs(weight, kind, eps), t * stride + at
    found = moments(x, start, size, THREADS, norm, parts)
    if number >= n_apart:
        _norm_in_place(x, norm, start, size, cuda.threadIdx.x, *found)
        return
    _read_weights(norm, 0, size, cuda.threadIdx.x, weights)
    row, first_unit = number * MAX_TOKENS + t, number * MAX_TOKENS * (to.width // WARP)
    _put_normed(inputs, x, norm, start, (0, size, to.width), found, t, to, (row * to.width, first_unit), weights)


@kernel("jffiiirr")
def blend_rows(inputs, x, y, size, x_stride, y_stride, a, b):
    """X = a * x + b * y, row by row, of as many values; with any x if a is 0. A stride of 0 repeats one row."""
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * WARP + cuda.threadIdx.x
    if t >= inputs[N_TOKENS] or i >= size:
        return
    value = gpu.mul(y[t * y_stride + i], np.float32(b))
    x[t * x_stride + i] = value if a == 0 else gpu.fma(x[t * x_stride + i], np.float32(a), value)
