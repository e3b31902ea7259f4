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
    root,
    warp_sum,
)
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.norm import inverse_root, squares
from augury.backends.numba_cuda.kernels.quantise import quantise, unit_of

_WARPS = THREADS // WARP


@kernel("jffffiiiiiiii")
def decay(inputs, rows, ends, dt, a, stride, ends_stride, size, decay_at, beta_at, has_dt, has_a, has_beta):
    """Decays exp(a * s), s = softplus(t + dt), and betas of all tokens: sigmoid(b), or s; a thread for each.

    Args:
        inputs: Of the pass.
        rows: (n, stride), in which decays and betas have their places.
        ends: (n, ends_stride), each t, then, if `has_beta`, b.
        dt, a: (size,).
    """
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if t >= inputs[N_TOKENS] or i >= size:
        return
    step = ends[t * ends_stride + i]
    if has_dt:
        step = add(step, dt[i])
    step = softplus(step)
    if has_a:
        rows[t * stride + decay_at + i] = exp(mul(step, a[i]))
    rows[t * stride + beta_at + i] = sigmoid(ends[t * ends_stride + size + i]) if has_beta else step


@kernel("jffffiiiiiiiir")
def decay_keys(
    inputs, rows, times, betas, a, stride, times_stride, betas_stride, size, key_dim, n_heads, decay_at, beta_at, floor
):
    """Decays by key exp(a * softplus(t)), or exp(floor * sigmoid(a * t)), and betas sigmoid(b); a thread for each."""
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if t >= inputs[N_TOKENS] or i >= size:
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
def _scale(rows, start, size, i, factor):
    for j in range(start + i, start + size, WARP):
        rows[j] = mul(rows[j], np.float32(factor))


@kernel("jfiiirr")
def unit_heads(inputs, rows, stride, n_scaled, size, eps, scale):
    """Divide heads by their lengths, and multiply the first of them by a scale; a warp for each."""
    t, head, i = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    if t >= inputs[N_TOKENS]:
        return
    start = t * stride + head * size
    total = add(warp_sum(squares(rows, start, size, i, WARP)), np.float32(eps))
    factor = div(np.float32(scale) if head < n_scaled else np.float32(1), root(total))
    _scale(rows, start, size, i, factor)


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


@kernel("jffffffbfjiiiiiiiiiiir")
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
    eps,
):
    """Y += skip * values; y = norm(y) times the activated gates, or the other way round; a block for each token.

    Args:
        inputs: Of the pass.
        y: (n, size).
        values, gates: (n, values_stride), (n, gates_stride).
        skip: (size,).
        weight: Of the norm, of a group; weights of the next one come after `step`.
        out: (n, width), of which units are made.
        group: Values that are normed together.
    """
    t, thread = cuda.blockIdx.x, cuda.threadIdx.x
    if t >= inputs[N_TOKENS]:
        return
    i = thread % WARP
    y_at, values_at, gates_at, to = t * size, t * values_stride, t * gates_stride, t * width
    for number in range(thread // WARP, size // group, _WARPS):
        first = number * group
        total = warp_sum(
            _skip(y, values, skip, gates, y_at, values_at, gates_at, first, group, i, has_skip, is_gated_first, is_sigmoid)
        )
        inverse = inverse_root(total, group, eps)
        at = number * step
        _norm_group(
            y, weight, gates, out, y_at, gates_at, to, first, group, at, i, inverse, has_norm, is_gated_first, is_sigmoid
        )
    if thread < width - size:
        out[to + size + thread] = np.float32(0)
    cuda.syncthreads()
    if as_bytes:
        for unit in range(thread // WARP, width // WARP, _WARPS):
            quantise(out[to + WARP * unit + i], i, quantised, factors, sums, unit_of(inputs, t, unit, width // WARP))
