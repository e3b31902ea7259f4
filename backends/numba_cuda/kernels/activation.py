"""Activations of one value, of a gate `g` with the constants that some have, and its factor; and of rows between products."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane, record, together
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.quantise import TargetArgs, put, unit_among, unit_of

GateArgs = record("GateArgs", i="kind has_up limits_activated", r="limit a b c d")
"""How a gate is activated: see `NUMBERS`; whether it is multiplied with `up`; its constants.

A gate is at most `limit`, once it is activated if `limits_activated`, else before; up is between that and its negative.
"""
_OAI_LIMIT, _OAI_FACTOR = 7.0, 1.702


@lane
def sigmoid(g):
    """1 / (1 + e^-g)."""
    return gpu.div(np.float32(1), gpu.add(np.float32(1), gpu.exp(-g)))


@lane
def softplus(g):
    """Ln(1 + e^g)."""
    return gpu.add(_relu(g), gpu.log1p(gpu.exp(-abs(g))))


@lane
def capped(value, cap):
    """Cap * tanh(value / cap); where cap is 0 the value."""
    cap = np.float32(cap)
    return gpu.mul(cap, gpu.tanh(gpu.div(value, cap))) if cap != 0 else value


@lane
def limited(value, limit):
    """At most the limit, NaN of NaN."""
    limit = np.float32(limit)
    return limit if value > limit else value  # noqa: FURB136


@lane
def clamped(value, limit):
    """Between a limit and its negative, NaN of NaN."""
    return -limited(-limited(value, limit), limit)


@lane
def silu(g):
    """G * sigmoid(g)."""
    return gpu.div(g, gpu.add(np.float32(1), gpu.exp(-g)))


@lane
def _tanh_gelu(g):
    cube = gpu.mul(gpu.mul(g, g), g)
    gated = gpu.tanh(gpu.mul(np.float32(0.7978845608028654), gpu.fma(np.float32(0.044715), cube, g)))  # sqrt(2 / pi)
    return gpu.mul(gpu.mul(np.float32(0.5), g), gpu.add(np.float32(1), gated))


@lane
def _gelu_half(g):
    if abs(g) < np.float32(10):
        return gpu.float_of_half(gpu.half_of_float(_tanh_gelu(gpu.float_of_half(gpu.half_of_float(g)))))
    return _relu(g)


@lane
def _relu(g):
    return np.float32(0) if g < np.float32(0) else g  # noqa: FURB136 - NaN stays


@lane
def _relu_squared(g):
    return gpu.mul(_relu(g), g)


@lane
def _situ(g, a, b, c, d):
    return gpu.mul(capped(g, a), sigmoid(g))


@lane
def _xielu(g, below, above, slope, eps):
    least = limited(g, eps)
    low = gpu.mul(np.float32(below), gpu.add(gpu.expm1(least), -g))
    return gpu.fma(np.float32(slope), g, gpu.mul(np.float32(above), gpu.mul(g, g)) if g > np.float32(0) else low)


@lane
def _swiglu_oai(g):
    g = limited(g, _OAI_LIMIT)
    return gpu.mul(g, sigmoid(gpu.mul(np.float32(_OAI_FACTOR), g)))


@lane
def _as_it_is(up, b):
    return up


@lane
def _capped_up(up, b):
    return capped(up, b)


@lane
def _swiglu_oai_up(up, b):
    return gpu.add(clamped(up, _OAI_LIMIT), np.float32(1))


def _plain(function):
    """The lane function of a gate and four constants of one that has none."""

    @lane
    def activation(g, a, b, c, d):
        return function(g)

    return activation


ACTIVATIONS = {
    "silu": (_plain(silu), _as_it_is),
    "gelu": (_plain(_tanh_gelu), _as_it_is),
    "gelu_half": (_plain(_gelu_half), _as_it_is),
    "relu": (_plain(_relu), _as_it_is),
    "relu_squared": (_plain(_relu_squared), _as_it_is),
    "situ": (_situ, _capped_up),
    "xielu": (_xielu, _as_it_is),
    "swiglu_oai": (_plain(_swiglu_oai), _swiglu_oai_up),
    "softplus": (_plain(softplus), _as_it_is),
    "sigmoid": (_plain(sigmoid), _as_it_is),
}
"""By the activation, lane functions (gate, four constants) and (up, the second constant)."""
NUMBERS = {name: number for number, name in enumerate(ACTIVATIONS)}
"""The numbers of activations in kernels."""
NOT_ACTIVATED = len(NUMBERS)


def _either(number, functions, others):
    """The lane functions of one activation, or others where it is another one."""
    (activation, of_up), (other, other_of_up) = functions, others

    @lane
    def activated(kind, g, a, b, c, d):
        return activation(g, a, b, c, d) if kind == number else other(kind, g, a, b, c, d)

    @lane
    def beside(kind, up, b):
        return of_up(up, b) if kind == number else other_of_up(kind, up, b)

    return activated, beside


@lane
def _none(kind, g, a, b, c, d):
    return g


@lane
def _none_beside(kind, up, b):
    return up


_activated, _beside = _none, _none_beside
for _number, _functions in enumerate(ACTIVATIONS.values()):
    _activated, _beside = _either(_number, _functions, (_activated, _beside))


@lane
def activated(g, params):
    """The activation of a gate."""
    value = _activated(
        params.kind, g if params.limits_activated else limited(g, params.limit), params.a, params.b, params.c, params.d
    )
    return limited(value, params.limit) if params.limits_activated else value


@lane
def beside_gate(up, params):
    """The factor of an activated gate."""
    value = _beside(params.kind, up if params.limits_activated else clamped(up, params.limit), params.b)
    return clamped(value, params.limit) if params.limits_activated else value


_UNIT = WARP  # values


@lane
def _gated(staged, at, i, size, params):
    """One value of a token whose gates and ups are staged; 0 beyond `size`."""
    if i >= size:
        return np.float32(0)
    value = activated(staged[at], params)
    return gpu.mul(value, beside_gate(staged[at + _UNIT], params)) if params.has_up else value


@together
def put_gated(staged, n, place, step, unit, size, params, to):
    """Activate a unit of each of n tokens, in every `step`-th row from `place` on; of each 32 gates, then 32 ups are staged."""
    thread = cuda.threadIdx.x
    i = thread % WARP
    for token in range(thread // WARP, n, cuda.blockDim.x // WARP):
        value, row = _gated(staged, 2 * _UNIT * token + i, _UNIT * unit + i, size, params), place + token * step
        put(value, i, to, row * to.width + _UNIT * unit + i, row * (to.width // _UNIT) + unit)


@lane
def _value(rows, at, ups, up_at, divisors, has_divisors, i, size, params):
    if i >= size:
        return np.float32(0)
    value = activated(rows[at + i], params)
    if has_divisors:
        value = gpu.div(value, divisors[i])
    return gpu.mul(value, beside_gate(ups[up_at + i], params)) if params.has_up else value


@kernel("jfffiiiiii", GateArgs, TargetArgs)
def gate(inputs, rows, ups, divisors, stride, up_stride, size, per_token, n_apart, has_divisors, params, to):
    """Activation(gate) / divisors * up, or without one of them; a warp takes 32 values.

    Rows are tokens, or, if `per_token` is not 0, so many rows of each that experts have, whose units lie as `unit_among` says.
    Values beyond `size` are 0.

    Args:
        rows: (n, stride) of gates.
        ups: (n, up_stride).
        divisors: (size,).
    """
    t = cuda.blockIdx.y
    if t >= inputs[N_TOKENS] * max(1, per_token):
        return
    i, n_units = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, to.width // WARP
    if i // WARP * WARP >= size:  # a row may hold more than these values
        return
    value = _value(rows, t * stride, ups, t * up_stride, divisors, has_divisors, i, size, params)
    place = unit_among(n_apart, t, i // WARP, n_units) if per_token else unit_of(inputs, t, i // WARP, n_units)
    put(value, i % WARP, to, t * to.width + i, place)
