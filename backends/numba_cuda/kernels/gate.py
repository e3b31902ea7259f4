"""What feed-forwards do between their products: the activated gate, times `up`, quantised."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import ACTIVATIONS, clamped, limited
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, div, kernel, lane, mul
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.quantise import quantise, unit_of


def _gate(name, activation, of_up):
    @lane
    def value_of(rows, at, ups, up_at, divisors, i, size, has_up, has_divisors, limits_activated, limit, a, b, c, d):
        if i >= size:
            return np.float32(0)
        before = np.float32(np.inf) if limits_activated else np.float32(limit)
        after = np.float32(limit) if limits_activated else np.float32(np.inf)
        value = limited(activation(limited(rows[at + i], before), a, b, c, d), after)
        if has_divisors:
            value = div(value, divisors[i])
        return mul(value, clamped(of_up(clamped(ups[up_at + i], before), b), after)) if has_up else value

    @kernel("jffffbfj" + 10 * "i" + "rrrrr", name=f"gate_{name}")
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
        of each that experts have, whose units lie one after another. What is beyond `size` is 0.

        Args:
            inputs: Of the pass.
            rows: (n, stride) of gates.
            ups: (n, up_stride).
            divisors: (size,).
            limits_activated: Whether a gate is limited once it is activated, not before.
            limit: A gate is at most that, up between it and its negative.
            a, b, c, d: Constants of the activation.
        """
        t = cuda.blockIdx.y
        if t >= inputs[N_TOKENS] * max(1, per_token):
            return
        thread = cuda.threadIdx.x
        unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
        if WARP * unit >= width:
            return
        i = WARP * unit + thread % WARP
        at, up_at, has = t * stride, t * up_stride, (has_up, has_divisors, limits_activated)
        value = value_of(rows, at, ups, up_at, divisors, i, size, has[0], has[1], has[2], limit, a, b, c, d)
        if as_floats:
            out[t * width + i] = value
        if as_bytes:
            place = t * (width // WARP) + unit if per_token else unit_of(inputs, t, unit, width // WARP)
            quantise(value, thread % WARP, quantised, factors, sums, place)

    return gate


GATE = {name: _gate(name, *functions) for name, functions in ACTIVATIONS.items()}
"""Kernels by the activation."""
