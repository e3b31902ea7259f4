"""What feed-forwards do between their products: the activated gate, times `up`, quantised."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import (
    WARP,
    add,
    cuda,
    div,
    exp,
    fma,
    kernel,
    lane,
    larger,
    log1p,
    mul,
    tanh,
)
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.quantise import quantise

_OAI_LIMIT, _OAI_FACTOR = 7.0, 1.702


@lane
def sigmoid(a):
    """1 / (1 + e^-a)."""
    return div(np.float32(1), add(np.float32(1), exp(-np.float32(a))))


@lane
def softplus(a):
    """Ln(1 + e^a)."""
    a = np.float32(a)
    rest = log1p(exp(-abs(a)))
    return add(a, rest) if a > np.float32(0) else rest


@lane
def silu(g):
    """G * sigmoid(g)."""
    return div(g, add(np.float32(1), exp(-g)))


@lane
def at_most(limit, a):
    """The smaller of two, NaN if either is."""
    return -larger(-np.float32(limit), -np.float32(a))


@lane
def within(limit, a):
    """What is next to a between a limit and its negative."""
    return larger(-np.float32(limit), at_most(limit, a))


@lane
def _gelu(g):
    cube = mul(mul(g, g), g)
    bent = tanh(mul(np.float32(0.7978845608028654), fma(np.float32(0.044715), cube, g)))  # sqrt(2 / pi)
    return mul(mul(np.float32(0.5), g), add(np.float32(1), bent))


@lane
def _relu(g):
    return np.float32(0) if g < np.float32(0) else g  # noqa: FURB136 - NaN stays


@lane
def _relu_squared(g):
    return mul(_relu(g), g)


@lane
def _swiglu_oai(g):
    limited = at_most(_OAI_LIMIT, g)
    return mul(limited, sigmoid(mul(np.float32(_OAI_FACTOR), limited)))


@lane
def _swiglu_oai_up(up):
    return add(within(_OAI_LIMIT, up), np.float32(1))


@lane
def _as_it_is(up):
    return up


def _gate(activation, of_up, name):
    @lane
    def value_of(rows, start, i, size, up, limit, limits_activated):
        if i >= size:
            return np.float32(0)
        value = rows[start + i]
        if up == 0:
            return activation(value)
        other = rows[start + up + i]
        if limit > 0:
            other = within(limit, other)
            value = activation(value) if limits_activated else at_most(limit, value)
            value = at_most(limit, value) if limits_activated else activation(value)
        else:
            value = activation(value)
        return mul(value, of_up(other))

    @kernel("jffbfjiiiiiiiir", name=f"gate_{name}")
    def gate(
        inputs,
        rows,
        out,
        quantised,
        factors,
        sums,
        stride,
        up,
        size,
        width,
        per_token,
        as_floats,
        as_bytes,
        limits_activated,
        limit,
    ):
        """Activation(gate) * up of rows (n, stride), `up` values apart, or activation(up) where that is 0; a warp takes 32.

        Above a `limit` of 0, `up` stays between it and its negative, and the gate, or what it is activated to, below it. They
        become floats (n, width), units, or both; n are `per_token` rows of each. What is beyond `size` is 0.
        """
        t = cuda.blockIdx.y
        if t >= inputs[N_TOKENS] * per_token:
            return
        thread = cuda.threadIdx.x
        unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
        if WARP * unit >= width:
            return
        value = value_of(rows, t * stride, WARP * unit + thread % WARP, size, up, limit, limits_activated)
        if as_floats:
            out[t * width + WARP * unit + thread % WARP] = value
        if as_bytes:
            quantise(value, thread % WARP, quantised, factors, sums, t * (width // WARP) + unit)

    return gate


GATE = {
    name: _gate(function, of_up, name)
    for name, function, of_up in (
        ("silu", silu, _as_it_is),
        ("gelu", _gelu, _as_it_is),
        ("relu", _relu, _as_it_is),
        ("relu_squared", _relu_squared, _as_it_is),
        ("swiglu_oai", _swiglu_oai, _swiglu_oai_up),
    )
}
"""Kernels by the activation, of a gate and of what is multiplied with it."""
