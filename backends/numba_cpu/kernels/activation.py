"""Functions of vectors that have no instruction: exponential, gates of feed-forwards."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cpu.kernels.jit import helper
from augury.backends.numba_cpu.kernels.machine import choose_below
from augury.backends.numba_cpu.kernels.simd import (
    absolute,
    add,
    div,
    exp2_of_integer,
    fma,
    fnma,
    maximum,
    minimum,
    mul,
    round_even,
    round_f16,
    splat_f32,
    sub,
    zero_f32,
)

f32 = np.float32
LOWEST, HIGHEST = f32(-87.0), f32(88.0)  # where the exponential leaves float32's normal range


@helper
def exponential(x):
    """Exp of 16 lanes; below -87 exactly 0, above 88 as at 88; of NaN NaN.

    Numerics: relative error below 2e-7. x = n ln 2 + r, exp(r) by a polynomial of degree 7.
    Source: the polynomial of Cephes' expf.
    """
    y = minimum(splat_f32(HIGHEST), maximum(splat_f32(LOWEST), x))  # in this order, which keeps NaN
    n = round_even(mul(y, splat_f32(f32(1.4426950408889634))))
    r = fnma(n, splat_f32(f32(0.693359375)), y)  # ln 2 in two parts, the first exact in a product with n
    r = fnma(n, splat_f32(f32(-2.12194440e-4)), r)
    p = splat_f32(f32(1.9875691500e-4))
    p = fma(p, r, splat_f32(f32(1.3981999507e-3)))
    p = fma(p, r, splat_f32(f32(8.3334519073e-3)))
    p = fma(p, r, splat_f32(f32(4.1665795894e-2)))
    p = fma(p, r, splat_f32(f32(1.6666665459e-1)))
    p = fma(p, r, splat_f32(f32(5.0000001201e-1)))
    p = fma(mul(r, r), p, add(r, splat_f32(f32(1.0))))
    return choose_below(x, LOWEST, zero_f32(), mul(p, exp2_of_integer(n)))


@helper
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    one = splat_f32(f32(1.0))
    return div(one, add(one, exponential(sub(zero_f32(), x))))


@helper
def softplus(x):
    """log(1 + exp(x)) of 16 lanes.

    Numerics: relative error below 3e-7. max(x, 0) + 2 atanh(z) of z = y / (2 + y), y = exp(-|x|), by nine terms of its series.
    """
    y = exponential(sub(zero_f32(), absolute(x)))
    z = div(y, add(splat_f32(f32(2.0)), y))
    square = mul(z, z)
    p = splat_f32(f32(1.0 / 17.0))
    p = fma(p, square, splat_f32(f32(1.0 / 15.0)))
    p = fma(p, square, splat_f32(f32(1.0 / 13.0)))
    p = fma(p, square, splat_f32(f32(1.0 / 11.0)))
    p = fma(p, square, splat_f32(f32(1.0 / 9.0)))
    p = fma(p, square, splat_f32(f32(1.0 / 7.0)))
    p = fma(p, square, splat_f32(f32(1.0 / 5.0)))
    p = fma(p, square, splat_f32(f32(1.0 / 3.0)))
    p = fma(p, square, splat_f32(f32(1.0)))
    return fma(add(z, z), p, maximum(x, zero_f32()))


@helper
def hyperbolic_tangent(x):
    """Tanh of 16 lanes, NaN of NaN.

    Numerics: relative error below 3e-7: by a polynomial up to 0.625, else from the exponential.
    Source: the polynomial of Cephes' tanhf.
    """
    square, one = mul(x, x), splat_f32(f32(1.0))
    p = splat_f32(f32(-5.70498872745e-3))
    p = fma(p, square, splat_f32(f32(2.06390887954e-2)))
    p = fma(p, square, splat_f32(f32(-5.37397155531e-2)))
    p = fma(p, square, splat_f32(f32(1.33314422036e-1)))
    p = fma(p, square, splat_f32(f32(-3.33332819422e-1)))
    near = fma(mul(p, square), x, x)
    far = sub(one, div(splat_f32(f32(2.0)), add(exponential(add(x, x)), one)))
    return choose_below(sub(zero_f32(), absolute(x)), f32(-0.625), far, near)


@helper
def capped(x, cap):
    """Cap * tanh(x / cap); x where cap, which is no vector, is 0."""
    if cap == 0.0:
        return x
    return mul(hyperbolic_tangent(mul(x, splat_f32(f32(1.0 / cap)))), splat_f32(f32(cap)))


@helper
def exponential_rest(x):
    """e^x - 1 - x of 16 lanes, where x is below 0 or near it.

    Numerics: relative error below 4e-7: from -1 on by a polynomial, else from the exponential.
    Source: Taylor's series to the power of 10.
    """
    p = splat_f32(f32(1 / 3628800))
    p = fma(p, x, splat_f32(f32(1 / 362880)))
    p = fma(p, x, splat_f32(f32(1 / 40320)))
    p = fma(p, x, splat_f32(f32(1 / 5040)))
    p = fma(p, x, splat_f32(f32(1 / 720)))
    p = fma(p, x, splat_f32(f32(1 / 120)))
    p = fma(p, x, splat_f32(f32(1 / 24)))
    p = fma(p, x, splat_f32(f32(1 / 6)))
    p = fma(p, x, splat_f32(f32(1 / 2)))
    far = sub(sub(exponential(x), splat_f32(f32(1.0))), x)
    return choose_below(x, f32(-1.0), far, mul(p, mul(x, x)))


@helper
def xielu(x, below, above, slope, eps):
    """Above x^2 + slope x above 0, below (e^min(x, eps) - 1 - x) + slope x elsewhere; none but x is a vector."""
    least = minimum(splat_f32(f32(eps)), x)
    low = mul(splat_f32(f32(below)), add(exponential_rest(least), sub(least, x)))
    gated = choose_below(sub(zero_f32(), x), f32(0.0), mul(splat_f32(f32(above)), mul(x, x)), low)
    return fma(splat_f32(f32(slope)), x, gated)


@helper
def silu(x):
    """X * sigmoid(x)."""
    return mul(x, sigmoid(x))


@helper
def gelu(x):
    """x/2 * (1 + tanh(u)) = x * sigmoid(2u), where u = sqrt(2/pi) * (x + 0.044715 x^3)."""
    cubic = fma(mul(mul(x, x), splat_f32(f32(0.044715))), x, x)
    return mul(x, sigmoid(mul(cubic, splat_f32(f32(1.5957691216057308)))))


@helper
def relu(x):
    """The larger of x and 0, NaN of NaN."""
    return maximum(zero_f32(), x)


@helper
def gelu_half(x):
    """GELU as ggml has it, in a table: of x rounded to half precision, and rounded so; 0 below -10, x above 10."""
    return choose_below(absolute(x), f32(10.0), round_f16(gelu(round_f16(x))), relu(x))


@helper
def relu_squared(x):
    """The square of the larger of x and 0."""
    y = relu(x)
    return mul(y, y)


@helper
def swiglu_oai(x):
    """G * sigmoid(1.702 g), where g = min(x, 7)."""
    limited = minimum(splat_f32(f32(7.0)), x)  # the second operand stays where it is NaN
    return mul(limited, sigmoid(mul(limited, splat_f32(f32(1.702)))))


@helper
def swiglu_oai_up(x):
    """The factor of `swiglu_oai`: x between -7 and 7, plus 1."""
    limit = splat_f32(f32(7.0))
    return add(minimum(limit, maximum(sub(zero_f32(), limit), x)), splat_f32(f32(1.0)))


@helper
def as_it_is(x):
    """The factor of other activations."""
    return x
