"""Functions of vectors that have no instruction, and the activations, gates and limits of products made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import activation as functions, simd
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, Entry, claim, multiply_panels, share
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows

f32 = np.float32
LOWEST, HIGHEST = f32(-87.0), f32(88.0)  # where the exponential leaves float32's normal range


def _polynomial(*coefficients):
    """Make the function of 16 lanes that is a polynomial, the highest power first; each step is rounded once."""

    def emit(b, x):
        value, *others = (simd.constant(simd.F32X16, float(f32(each))) for each in coefficients)
        for other in others:
            value = simd.emit_fma(b, value, x, other)
        return value

    return simd.operation("polynomial", simd.f32x16, (simd.f32x16,), emit)


_exponential = _polynomial(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_inverse_tangent = _polynomial(*(1.0 / odd for odd in range(17, 0, -2)))
_tangent = _polynomial(-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_exponential_rest = _polynomial(*(1.0 / math.factorial(power) for power in range(10, 1, -1)))


@helper
def exponential(x):
    """Exp of 16 lanes; below -87 exactly 0, above 88 as at 88; of NaN NaN.

    Numerics: relative error below 2e-7. x = n ln 2 + r, exp(r) by a polynomial of degree 7.
    Source: the polynomial of Cephes' expf.
    """
    y = simd.minimum(simd.splat_f32(HIGHEST), simd.maximum(simd.splat_f32(LOWEST), x))  # in this order, which keeps NaN
    n = simd.round_even(simd.mul(y, simd.splat_f32(f32(1.4426950408889634))))
    r = simd.fnma(n, simd.splat_f32(f32(0.693359375)), y)  # ln 2 in two parts, the first exact in a product with n
    r = simd.fnma(n, simd.splat_f32(f32(-2.12194440e-4)), r)
    p = _exponential(r)
    p = simd.fma(simd.mul(r, r), p, simd.add(r, simd.splat_f32(f32(1.0))))
    return simd.choose_below(x, LOWEST, simd.zero_f32(), simd.mul(p, simd.exp2_of_integer(n)))


@helper
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    one = simd.splat_f32(f32(1.0))
    return simd.div(one, simd.add(one, exponential(simd.sub(simd.zero_f32(), x))))


@helper
def softplus(x):
    """log(1 + exp(x)) of 16 lanes.

    Numerics: relative error below 3e-7. max(x, 0) + 2 atanh(z) of z = y / (2 + y), y = exp(-|x|), by nine terms of its series.
    """
    y = exponential(simd.sub(simd.zero_f32(), simd.absolute(x)))
    z = simd.div(y, simd.add(simd.splat_f32(f32(2.0)), y))
    p = _inverse_tangent(simd.mul(z, z))
    return simd.fma(simd.add(z, z), p, simd.maximum(x, simd.zero_f32()))


@helper
def hyperbolic_tangent(x):
    """Tanh of 16 lanes, NaN of NaN.

    Numerics: relative error below 3e-7: by a polynomial up to 0.625, else from the exponential.
    Source: the polynomial of Cephes' tanhf.
    """
    square, one = simd.mul(x, x), simd.splat_f32(f32(1.0))
    near = simd.fma(simd.mul(_tangent(square), square), x, x)
    far = simd.sub(one, simd.div(simd.splat_f32(f32(2.0)), simd.add(exponential(simd.add(x, x)), one)))
    return simd.choose_below(simd.sub(simd.zero_f32(), simd.absolute(x)), f32(-0.625), far, near)


@helper
def capped(x, cap):
    """Cap * tanh(x / cap); x where cap, which is no vector, is 0."""
    if cap == 0.0:
        return x
    return simd.mul(hyperbolic_tangent(simd.mul(x, simd.splat_f32(f32(1.0 / cap)))), simd.splat_f32(f32(cap)))


@helper
def exponential_rest(x):
    """e^x - 1 - x of 16 lanes, where x is below 0 or near it.

    Numerics: relative error below 4e-7: from -1 on by a polynomial, else from the exponential.
    Source: Taylor's series to the power of 10.
    """
    p = _exponential_rest(x)
    far = simd.sub(simd.sub(exponential(x), simd.splat_f32(f32(1.0))), x)
    return simd.choose_below(x, f32(-1.0), far, simd.mul(p, simd.mul(x, x)))


@helper
def xielu(x, below, above, slope, eps):
    """Above x^2 + slope x above 0, below (e^min(x, eps) - 1 - x) + slope x elsewhere; none but x is a vector."""
    least = simd.minimum(simd.splat_f32(f32(eps)), x)
    low = simd.mul(simd.splat_f32(f32(below)), simd.add(exponential_rest(least), simd.sub(least, x)))
    gated = simd.choose_below(simd.sub(simd.zero_f32(), x), f32(0.0), simd.mul(simd.splat_f32(f32(above)), simd.mul(x, x)), low)
    return simd.fma(simd.splat_f32(f32(slope)), x, gated)


@helper
def silu(x):
    """X * sigmoid(x)."""
    return simd.mul(x, sigmoid(x))


@helper
def gelu(x):
    """x/2 * (1 + tanh(u)) = x * sigmoid(2u), where u = sqrt(2/pi) * (x + 0.044715 x^3)."""
    cubic = simd.fma(simd.mul(simd.mul(x, x), simd.splat_f32(f32(0.044715))), x, x)
    return simd.mul(x, sigmoid(simd.mul(cubic, simd.splat_f32(f32(1.5957691216057308)))))


@helper
def relu(x):
    """The larger of x and 0, NaN of NaN."""
    return simd.maximum(simd.zero_f32(), x)


@helper
def gelu_half(x):
    """GELU as ggml has it, in a table: of x rounded to half precision, and rounded so; 0 below -10, x above 10."""
    return simd.choose_below(simd.absolute(x), f32(10.0), simd.round_f16(gelu(simd.round_f16(x))), relu(x))


@helper
def relu_squared(x):
    """The square of the larger of x and 0."""
    y = relu(x)
    return simd.mul(y, y)


@helper
def swiglu_oai(x):
    """G * sigmoid(1.702 g), where g = min(x, 7)."""
    limited = simd.minimum(simd.splat_f32(f32(7.0)), x)  # the second operand stays where it is NaN
    return simd.mul(limited, sigmoid(simd.mul(limited, simd.splat_f32(f32(1.702)))))


@helper
def swiglu_oai_up(x):
    """The factor of `swiglu_oai`: x between -7 and 7, plus 1."""
    limit = simd.splat_f32(f32(7.0))
    return simd.add(simd.minimum(limit, simd.maximum(simd.sub(simd.zero_f32(), limit), x)), simd.splat_f32(f32(1.0)))


@helper
def as_it_is(x):
    """The factor of other activations."""
    return x


_PLAIN = ("silu", "gelu", "gelu_half", "relu", "relu_squared", "sigmoid", "softplus")
_FUNCTIONS = {name: (getattr(functions, name), functions.as_it_is) for name in _PLAIN} | {
    "swiglu_oai": (functions.swiglu_oai, functions.swiglu_oai_up),
    "situ": (functions.sigmoid, functions.as_it_is),
    "xielu": (functions.as_it_is, functions.as_it_is),
}
"""The functions of the gate, and of its factor, by activation; without the part that has constants."""

_NEAR = 4096  # tokens times panels of gate and as many of up that are activated before they leave the second cache
_TOGETHER = 8  # panels that products of many tokens take together


@struct
class Constants:
    """Constants of an activation, in the order of `augury.blocks.Activation`; the rest is 0."""

    a: float
    b: float
    c: float
    d: float


@struct
class Activating:
    """The operands of an activation beside its function."""

    divisors: int  # (n_rows,) float32 that divide activated values, address; 0: none
    limit: float  # of gate and up, where the kernel has one
    constants: Any = nested(Constants)


def activating(limit: float | None, numbers: Sequence[float], divisors: int = 0) -> Activating:
    """The operands of an activation that has so many constants."""
    constants = Constants(**dict.fromkeys("abcd", 0.0) | dict(zip("abcd", numbers, strict=False)))
    return Activating(divisors=divisors, limit=limit or 0.0, constants=constants)


@struct
class Activate(Record):
    x: Any = nested(StridedRows)  # (n, size) float32
    up: Any = nested(StridedRows)  # (n, size) float32, where the kernel multiplies by it
    out: Any = nested(StridedRows)
    activation: Any = nested(Activating)
    size: int


@struct
class MultiplyActivated(Record):
    entries: Any = pointer_to(Entry)  # of gate and up, or of up
    n_panels: int  # of one
    out: int  # (n, n_rows) float32, or operands that `quantize` makes, address
    n_rows: int
    activation: Any = nested(Activating)
    quantize: int  # address of a kernel, see `MatmulKernel.quantize`; 0: none
    block_bytes: int  # of an operand's block of one token


def activated(*, activation: str, is_gated: bool, is_limited: bool, limits_activated: bool) -> Any:
    """Make the helper of (gate, address of up, address of divisors or 0, how many are left, limit, constants)."""
    (of_gate, of_up), is_capped, is_xielu = _FUNCTIONS[activation], activation == "situ", activation == "xielu"

    @helper
    def activated_gate(value: Any, constants: Any) -> Any:
        """The activation of a gate."""
        if is_xielu:
            return functions.xielu(value, constants.a, constants.b, constants.c, constants.d)
        if is_capped:
            return simd.mul(of_gate(value), functions.capped(value, constants.a))
        return of_gate(value)

    @helper
    def activate_lanes(value: Any, up: int, divisors: int, left: int, limit: Any, constants: Any) -> Any:
        if is_limited and not limits_activated:
            value = simd.minimum(limit, value)  # the second operand stays where it is NaN
        value = activated_gate(value, constants)
        if is_limited and limits_activated:
            value = simd.minimum(limit, value)
        if divisors != 0:
            value = simd.div(value, simd.load_part(divisors, left))
        if is_gated:
            other = simd.load_part(up, left)
            if is_limited:
                other = simd.minimum(limit, simd.maximum(simd.sub(simd.zero_f32(), limit), other))
            if is_capped:
                other = functions.capped(other, constants.b)
            value = simd.mul(value, of_up(other))
        return value

    return activate_lanes


def named(
    function: Any, record: type, name: str, *, activation: str, is_gated: bool, is_limited: bool, limits_activated: bool
) -> Any:
    """The kernel of a function that was made for an activation."""
    limits = ("_limited" + "_activated" * limits_activated) * is_limited
    return kernel(function, f"{'gated' if is_gated else 'plain'}_{activation}{limits}{name}", record=record)


@cache
def activate_kernel(**of: Any) -> Any:
    """The kernel that sends rows through an activation: out = activation(x) / divisors * up."""
    activate_lanes, is_gated = activated(**of), of["is_gated"]

    def activate(record: Any, state: int, thread: int, n_threads: int) -> None:
        x, ldx, up, ldu = record.x.address, record.x.width, record.up.address, record.up.width
        out, ldo, size, divisors = record.out.address, record.out.width, record.size, record.activation.divisors
        limit, constants = simd.splat_f32(np.float32(record.activation.limit)), record.activation.constants
        first, end = share(state.n_tokens, thread, n_threads, 0)
        for t in range(first, end):
            for index in range(0, size, 16):
                left, other, divisor = size - index, 0, 0
                if is_gated:
                    other = up + 4 * (t * ldu + index)
                if divisors != 0:
                    divisor = divisors + 4 * index
                value = activate_lanes(simd.load_part(x + 4 * (t * ldx + index), left), other, divisor, left, limit, constants)
                simd.store_part(out + 4 * (t * ldo + index), value, left)

    return named(activate, Activate, "", **of)


@cache
def multiply_activated_kernel(**of: Any) -> Any:
    """The kernel that makes products and activates them where they are still near: activation(gate) / divisors * up."""
    activate_lanes, is_gated = activated(**of), of["is_gated"]

    @helper
    def activate_panels(record: Any, n: int, first: int, stop: int, gate: int, up: int, ldy: int) -> None:
        """Activate the products of panels `first` to `stop`, (n, ldy) float32 each."""
        out, n_rows, divisors = record.out, record.n_rows, record.activation.divisors
        quantize, n_bytes, before = record.quantize, record.block_bytes, 4 * PANEL_ROWS * first
        limit, constants = simd.splat_f32(np.float32(record.activation.limit)), record.activation.constants
        width = min(PANEL_ROWS * stop, n_rows) - PANEL_ROWS * first
        for t in range(n):
            for index in range(0, width, 16):
                place, left, divisor = 4 * (t * ldy + index), width - index, 0
                if divisors != 0:
                    divisor = divisors + before + 4 * index
                value = activate_lanes(simd.load_part(gate + place, left), up + place, divisor, left, limit, constants)
                if quantize == 0:
                    simd.store_part(out + 4 * (t * n_rows + index) + before, value, left)
                else:
                    simd.store_part(gate + place, value, left)
            for index in range(width, PANEL_ROWS * (stop - first)):  # of a panel that is partly filled
                simd.put_f32(gate + 4 * (t * ldy + index), np.float32(0))
        if quantize != 0:  # a panel of rows is a block of columns
            simd.invoke(quantize, (gate, out + first * n * n_bytes, n, ldy, 0, (stop - first) * n))

    def activate(record: Any, state: int, thread: int, n_threads: int) -> None:
        entries, n_panels, n, up = record.entries, record.n_panels, state.n_tokens, 0
        while True:
            start, end = claim(state, n_panels, n_threads)
            if start == end:
                return
            step = min(max(_NEAR // n // _TOGETHER, 1) * _TOGETHER, end - start)
            ldy, own = PANEL_ROWS * step, 4 * PANEL_ROWS * start * n  # where a share has its products, some panels at a time
            gate = entries[0].y + own
            if is_gated:
                up = entries[1].y + own
            for first in range(start, end, step):
                stop, before = min(first + step, end), 4 * PANEL_ROWS * first
                multiply_panels(entries[0], first, stop, n, gate - before, ldy, state, thread)
                if is_gated:
                    multiply_panels(entries[1], first, stop, n, up - before, ldy, state, thread)
                activate_panels(record, n, first, stop, gate, up, ldy)

    return named(activate, MultiplyActivated, "_products", **of)
