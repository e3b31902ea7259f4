"""What feed-forwards do between their products: the activated gate, times `up`, quantised; by itself, or after a product."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import activated, beside_gate
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, div, kernel, lane, mul, together
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.quantise import quantise, unit_among, unit_of

_UNIT = WARP  # values


@lane
def _gated(staged, at, i, size, kind, has_up, limits_activated, limit, a, b, c, d):
    """One value of a token whose gates and ups are staged; 0 beyond `size`."""
    if i >= size:
        return np.float32(0)
    value = activated(kind, staged[at], limits_activated, limit, a, b, c, d)
    return mul(value, beside_gate(kind, staged[at + _UNIT], limits_activated, limit, b)) if has_up else value


@together
def put_gated(
    staged,
    n,
    place,
    step,
    unit,
    size,
    out,
    quantised,
    factors,
    sums,
    width,
    kind,
    has_up,
    limits_activated,
    as_floats,
    as_bytes,
    limit,
    a,
    b,
    c,
    d,
):
    """Activate a unit of each of n tokens, in every `step`-th row from `place` on; of each 32 gates, then 32 ups are staged."""
    thread = cuda.threadIdx.x
    i = thread % WARP
    for token in range(thread // WARP, n, cuda.blockDim.x // WARP):
        at = 2 * _UNIT * token + i
        value = _gated(staged, at, _UNIT * unit + i, size, kind, has_up, limits_activated, limit, a, b, c, d)
        if as_floats:
            out[(place + token * step) * width + _UNIT * unit + i] = value
        if as_bytes:
            quantise(value, i, quantised, factors, sums, (place + token * step) * (width // _UNIT) + unit)


@lane
def _value(rows, at, ups, up_at, divisors, i, size, kind, has_up, has_divisors, limits_activated, limit, a, b, c, d):
    if i >= size:
        return np.float32(0)
    value = activated(kind, rows[at + i], limits_activated, limit, a, b, c, d)
    if has_divisors:
        value = div(value, divisors[i])
    return mul(value, beside_gate(kind, ups[up_at + i], limits_activated, limit, b)) if has_up else value


@kernel("jffffbfj" + 12 * "i" + "rrrrr")
def gate(
    inputs,
    rows,
    ups,
    divisors,
    out,
    quantised,
    factors,
    sums,
    stride,
    up_stride,
    size,
    width,
    per_token,
    n_apart,
    kind,
    has_up,
    has_divisors,
    limits_activated,
    as_floats,
    as_bytes,
    limit,
    a,
    b,
    c,
    d,
):
    """Activation(gate) / divisors * up, or without one of them; a warp takes 32 values.

    They become floats (n, width), units, or both. Rows are tokens, or, if `per_token` is not 0, so many rows
    of each that experts have, whose units lie as `unit_among` says. What is beyond `size` is 0.

    Args:
        inputs: Of the pass.
        rows: (n, stride) of gates.
        ups: (n, up_stride).
        divisors: (size,).
        kind: Which activation, see `activation.NUMBERS`.
        limits_activated: Whether a gate is limited once it is activated, not before.
        limit: A gate is at most that, up between it and its negative.
        a, b, c, d: Constants of the activation.
    """
    t = cuda.blockIdx.y
    if t >= inputs[N_TOKENS] * max(1, per_token):
        return
    thread = cuda.threadIdx.x
    unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
    if WARP * unit >= size:  # a row may hold more than these values
        return
    i = WARP * unit + thread % WARP
    at, up_at, has = t * stride, t * up_stride, (has_up, has_divisors, limits_activated)
    value = _value(rows, at, ups, up_at, divisors, i, size, kind, has[0], has[1], has[2], limit, a, b, c, d)
    if as_floats:
        out[t * width + i] = value
    if as_bytes:
        n_units = width // WARP
        place = unit_among(n_apart, t, unit, n_units) if per_token else unit_of(inputs, t, unit, n_units)
        quantise(value, thread % WARP, quantised, factors, sums, place)
