"""What feed-forwards do between their products: the activated gate, times `up`, quantised."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import WARP, add, cuda, div, exp, fma, kernel, lane, mul, tanh
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.quantise import quantise


@lane
def _silu(g):
    return div(g, add(np.float32(1), exp(-g)))


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


def _gate(activation, name):
    @lane
    def value_of(rows, start, i, size, up):
        if i >= size:
            return np.float32(0)
        return mul(activation(rows[start + i]), rows[start + up + i]) if up else activation(rows[start + i])

    @kernel("jffbfjiiiiii", name=f"gate_{name}")
    def gate(inputs, rows, out, quantised, factors, sums, stride, up, size, width, as_floats, as_bytes):
        """Activation(gate) * up of rows (n, stride), `up` values apart, or activation(up) where that is 0; a warp takes 32.

        They become floats (n, width), units, or both. What is beyond `size` is 0.
        """
        t = cuda.blockIdx.y
        if t >= inputs[N_TOKENS]:
            return
        thread = cuda.threadIdx.x
        unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
        if WARP * unit >= width:
            return
        value = value_of(rows, t * stride, WARP * unit + thread % WARP, size, up)
        if as_floats:
            out[t * width + WARP * unit + thread % WARP] = value
        if as_bytes:
            quantise(value, thread % WARP, quantised, factors, sums, t * (width // WARP) + unit)

    return gate


GATE = {
    name: _gate(function, name)
    for name, function in (("silu", _silu), ("gelu", _gelu), ("relu", _relu), ("relu_squared", _relu_squared))
}
"""Kernels by the activation."""
