"""What comes before and after a linear recurrence: keys and decays of tokens, and the gates of what it yields."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import sigmoid, silu, softplus
from augury.backends.numba_cuda.kernels.dialect import (
    THREADS,
    WARP,
    add,
    cuda,
    div,
    exp,
    fma,
    kernel,
    lane,
    mul,
    remainder,
    root,
    together,
    warp_sum,
)
from augury.backends.numba_cuda.kernels.inputs import CELLS, N_TOKENS, SLOTS, STATES
from augury.backends.numba_cuda.kernels.norm import inverse_root, squares
from augury.backends.numba_cuda.kernels.quantise import quantise, unit_of

_WARPS = THREADS // WARP


@lane
def _scale(rows, start, size, i, factor):
    for j in range(start + i, start + size, WARP):
        rows[j] = mul(rows[j], np.float32(factor))


@together
def _unit_head(rows, start, size, scale, eps):
    """Divide a head by its length, and multiply it by a scale: a warp."""
    i = cuda.threadIdx.x
    total = add(warp_sum(squares(rows, start, size, i, WARP)), np.float32(eps))
    _scale(rows, start, size, i, div(np.float32(scale), root(total)))


@kernel("jffff" + 10 * "i" + "rr")
def decay(
    inputs,
    rows,
    ends,
    dt,
    a,
    stride,
    ends_stride,
    size,
    decay_at,
    beta_at,
    has_dt,
    betas_at,
    n_units,
    n_scaled,
    unit_size,
    eps,
    scale,
):
    """Decays exp(a * s), s = softplus(t + dt), and betas of all tokens: sigmoid(b), or s; a thread for each.

    Before that, heads of length 1: a warp for each.

    Args:
        inputs: Of the pass.
        rows: (n, stride), in which decays and betas have their places.
        ends: (n, ends_stride), each t, and b from `betas_at` on, unless it is 0.
        dt: (size,) as is `a`.
        n_units: How many heads of `unit_size` values, with which rows begin, are divided by their lengths; of these the first
            `n_scaled` are multiplied by `scale`.
    """
    t, i = cuda.blockIdx.y, (cuda.blockIdx.x - n_units) * WARP + cuda.threadIdx.x
    if t >= inputs[N_TOKENS] or i >= size:
        return
    if cuda.blockIdx.x < n_units:
        start = t * stride + cuda.blockIdx.x * unit_size
        _unit_head(rows, start, unit_size, scale if cuda.blockIdx.x < n_scaled else np.float32(1), eps)
        return
    step = ends[t * ends_stride + i]
    if has_dt:
        step = add(step, dt[i])
    step = softplus(step)
    rows[t * stride + decay_at + i] = exp(mul(step, a[i]))
    rows[t * stride + beta_at + i] = sigmoid(ends[t * ends_stride + betas_at + i]) if betas_at else step


@kernel("jffff" + 11 * "i" + "rrr")
def decay_keys(
    inputs,
    rows,
    times,
    betas,
    a,
    stride,
    times_stride,
    betas_stride,
    size,
    key_dim,
    n_heads,
    decay_at,
    beta_at,
    n_units,
    n_scaled,
    unit_size,
    floor,
    eps,
    scale,
):
    """Decays by key exp(a * softplus(t)), or exp(floor * sigmoid(a * t)), and betas sigmoid(b), after heads of length 1."""
    t, i = cuda.blockIdx.y, (cuda.blockIdx.x - n_units) * WARP + cuda.threadIdx.x
    if t >= inputs[N_TOKENS] or i >= size:
        return
    if cuda.blockIdx.x < n_units:
        start = t * stride + cuda.blockIdx.x * unit_size
        _unit_head(rows, start, unit_size, scale if cuda.blockIdx.x < n_scaled else np.float32(1), eps)
        return
    step, factor = times[t * times_stride + i], a[i // key_dim]
    step = mul(factor, softplus(step)) if floor == 0 else mul(np.float32(floor), sigmoid(mul(factor, step)))
    rows[t * stride + decay_at + i] = exp(step)
    if i < n_heads:
        rows[t * stride + beta_at + i] = sigmoid(betas[t * betas_stride + i])


@kernel("jffii")
def light(inputs, rows, ends, stride, size):
    """Rows (n, stride) through SiLU; those values that come after `size` are the same for all; a thread for each."""
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if t < inputs[N_TOKENS] and i < stride:
        rows[t * stride + i] = silu(rows[t * stride + i]) if i < size else ends[i - size]


@lane
def _gated(value, gate, is_sigmoid):
    return mul(value, sigmoid(gate) if is_sigmoid else silu(gate))


@lane
def _skip(y, values, skip, gates, y_at, values_at, gates_at, first, group, i, has_skip, is_gated_first, is_sigmoid):
    """Y += skip * values of a group, gated if that comes first; a lane's share of the squares of that."""
    total = np.float32(0)
    for j in range(first + i, first + group, WARP):
        value = y[y_at + j]
        if has_skip:
            value = fma(skip[j], values[values_at + j], value)
        if is_gated_first:
            value = _gated(value, gates[gates_at + j], is_sigmoid)
        y[y_at + j] = value
        total = fma(value, value, total)
    return total


@lane
def _norm_group(
    y, weight, gates, out, y_at, gates_at, to, first, group, step, i, inverse, has_norm, is_gated_first, is_sigmoid
):
    for j in range(i, group, WARP):
        value = y[y_at + first + j]
        if has_norm:
            value = mul(mul(value, np.float32(inverse)), weight[step + j])
        if not is_gated_first:
            value = _gated(value, gates[gates_at + first + j], is_sigmoid)
        out[to + first + j] = value


@lane
def _keep_aside(inputs, x, aside, t, stride, key_at, n_keys, step_at, n_aside, n_kept, first, step):
    """Keep keys and steps of a drafted token aside, where no recurrence reads any more what was there."""
    place = inputs[SLOTS + t] * n_aside + remainder(inputs[CELLS + t], n_aside)
    for i in range(first, n_kept, step):
        aside[place * n_kept + i] = x[t * stride + (key_at + i if i < n_keys else step_at + i - n_keys)]


@kernel("jffffffbfjff" + 18 * "i" + "r", most_registers=112)  # two blocks
def gate_groups(
    inputs,
    y,
    values,
    skip,
    gates,
    weight,
    out,
    quantised,
    factors,
    sums,
    x,
    aside,
    size,
    values_stride,
    gates_stride,
    group,
    step,
    width,
    has_skip,
    has_norm,
    is_gated_first,
    is_sigmoid,
    as_bytes,
    stride,
    key_at,
    n_keys,
    step_at,
    n_aside,
    n_kept,
    per_block,
    eps,
):
    """Y += skip * values; y = norm(y) times the activated gates, or the other way round; a block for some groups of a token.

    Besides, what drafted tokens have fed the recurrence is kept aside, as this comes after it.

    Args:
        inputs: Of the pass.
        y: (n, size).
        values, gates: (n, values_stride), (n, gates_stride).
        skip: (size,).
        weight: Of the norm, of a group; weights of the next one come after `step`.
        out: (n, width), of which units are made.
        group: Values that are normed together.
        per_block: Groups of a block, which are whole units unless it has all groups.
        x: (n, stride), what tokens feed, from `key_at` on keys, from `step_at` on steps.
        aside: (slots, n_aside, n_kept).
    """
    t, thread, block = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockIdx.y
    if t >= inputs[N_TOKENS]:
        return
    n_groups = size // group
    n_blocks = (n_groups + per_block - 1) // per_block
    if inputs[STATES + t] >= 0:
        own, step_of_all = block * THREADS + thread, n_blocks * THREADS
        _keep_aside(inputs, x, aside, t, stride, key_at, n_keys, step_at, n_aside, n_kept, own, step_of_all)
    i = thread % WARP
    y_at, values_at, gates_at, to = t * size, t * values_stride, t * gates_stride, t * width
    end = min(n_groups, (block + 1) * per_block)
    for number in range(block * per_block + thread // WARP, end, _WARPS):
        first = number * group
        total = warp_sum(
            _skip(y, values, skip, gates, y_at, values_at, gates_at, first, group, i, has_skip, is_gated_first, is_sigmoid)
        )
        inverse = inverse_root(total, group, eps)
        at = number * step
        _norm_group(
            y, weight, gates, out, y_at, gates_at, to, first, group, at, i, inverse, has_norm, is_gated_first, is_sigmoid
        )
    is_last = block == n_blocks - 1
    if is_last and thread < width - size:
        out[to + size + thread] = np.float32(0)
    cuda.syncthreads()
    if as_bytes:
        last = width // WARP if is_last else end * group // WARP
        for unit in range(block * per_block * group // WARP + thread // WARP, last, _WARPS):
            quantise(out[to + WARP * unit + i], i, quantised, factors, sums, unit_of(inputs, t, unit, width // WARP))
