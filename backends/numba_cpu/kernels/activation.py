"""Functions of vectors that have no instruction: exponential, gates of feed-forwards."""

import math

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.jit import helper
from augury.backends.numba_cpu.kernels.machine import choose_below

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
    return choose_below(x, LOWEST, simd.zero_f32(), simd.mul(p, simd.exp2_of_integer(n)))


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
    return choose_below(simd.sub(simd.zero_f32(), simd.absolute(x)), f32(-0.625), far, near)


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
    return choose_below(x, f32(-1.0), far, simd.mul(p, simd.mul(x, x)))


@helper
def xielu(x, below, above, slope, eps):
    """Above x^2 + slope x above 0, below (e^min(x, eps) - 1 - x) + slope x elsewhere; none but x is a vector."""
    least = simd.minimum(simd.splat_f32(f32(eps)), x)
    low = simd.mul(simd.splat_f32(f32(below)), simd.add(exponential_rest(least), simd.sub(least, x)))
    gated = choose_below(simd.sub(simd.zero_f32(), x), f32(0.0), simd.mul(simd.splat_f32(f32(above)), simd.mul(x, x)), low)
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
    return choose_below(simd.absolute(x), f32(10.0), simd.round_f16(gelu(simd.round_f16(x))), relu(x))


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
