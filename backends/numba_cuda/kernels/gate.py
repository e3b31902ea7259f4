"""Feed-forwards between their products: the activated gate, times `up`, quantised; by itself, or after a product."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.activation import GateArgs, activated, beside_gate
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane, together
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.quantise import TargetArgs, put, unit_among, unit_of

_UNIT = WARP  # values


@lane
def _gated(staged, at, i, size, how):
    """One value of a token whose gates and ups are staged; 0 beyond `size`."""
    if i >= size:
        return np.float32(0)
    value = activated(staged[at], how)
    return gpu.mul(value, beside_gate(staged[at + _UNIT], how)) if how.has_up else value


@together
def put_gated(staged, n, place, step, unit, size, how, to):
    """Activate a unit of each of n tokens, in every `step`-th row from `place` on; of each 32 gates, then 32 ups are staged."""
    thread = cuda.threadIdx.x
    i = thread % WARP
    for token in range(thread // WARP, n, cuda.blockDim.x // WARP):
        value, row = _gated(staged, 2 * _UNIT * token + i, _UNIT * unit + i, size, how), place + token * step
        put(value, i, to, row * to.width + _UNIT * unit + i, row * (to.width // _UNIT) + unit)


@lane
def _value(rows, at, ups, up_at, divisors, has_divisors, i, size, how):
    if i >= size:
        return np.float32(0)
    value = activated(rows[at + i], how)
    if has_divisors:
        value = gpu.div(value, divisors[i])
    return gpu.mul(value, beside_gate(ups[up_at + i], how)) if how.has_up else value


@kernel("jfffiiiiii", GateArgs, TargetArgs)
def gate(inputs, rows, ups, divisors, stride, up_stride, size, per_token, n_apart, has_divisors, how, to):
    """Activation(gate) / divisors * up, or without one of them; a warp takes 32 values.

    Rows are tokens, or, if `per_token` is not 0, so many rows of each that experts have, whose units lie as `unit_among` says.
    Values beyond `size` are 0.

    Args:
        inputs: The inputs of the pass.
        rows: (n, stride) of gates.
        ups: (n, up_stride).
        divisors: (size,).
        how: See `GateArgs`.
        to: See `TargetArgs`.
    """
    t = cuda.blockIdx.y
    if t >= inputs[N_TOKENS] * max(1, per_token):
        return
    thread = cuda.threadIdx.x
    unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
    if WARP * unit >= size:  # a row may hold more than these values
        return
    i, n_units = WARP * unit + thread % WARP, to.width // WARP
    value = _value(rows, t * stride, ups, t * up_stride, divisors, has_divisors, i, size, how)
    place = unit_among(n_apart, t, unit, n_units) if per_token else unit_of(inputs, t, unit, n_units)
    put(value, thread % WARP, to, t * to.width + i, place)
