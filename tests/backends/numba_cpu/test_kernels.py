"""Small kernels against float64."""

import math

import numpy as np
import pytest

from augury.backends.numba_cpu.kernels import activation, head, jit, step
from augury.backends.numba_cpu.kernels.simd import load_part, store_part
from augury.backends.numba_cpu.kernels.struct import table

SLACK = 32


def lanes(function):
    """A kernel that applies `function` to every lane of n floats."""

    def apply(x, n):
        for i in range(0, n, 16):
            store_part(x + 4 * i, function(load_part(x + 4 * i, n - i)), n - i)

    apply.__qualname__ = apply.__name__ = f"apply_{function.py_func.__name__}"
    return jit.kernel(apply)


def applied(kernel, x):
    out = np.concatenate([x, np.full(SLACK, 7, np.float32)])
    kernel(out.ctypes.data, len(x))
    assert (out[len(x) :] == 7).all()
    return out[: len(x)].astype(np.float64)


@pytest.fixture(scope="module")
def values():
    return np.concatenate([np.linspace(-86, 87, 5001), np.random.default_rng(3).normal(0, 3, 5001)]).astype(np.float32)


def test_exponential_is_good_to_2e7(values):
    right = np.exp(values.astype(np.float64))

    assert np.max(np.abs(applied(lanes(activation.exponential), values) / right - 1)) < 2e-7


def test_exponential_is_zero_far_below_and_finite_far_above():
    x = np.float32([-1e30, -87.1, 0, 1000])

    assert applied(lanes(activation.exponential), x)[:3].tolist() == [0, 0, 1]
    assert np.isfinite(applied(lanes(activation.exponential), x)).all()


def test_gates_are_good_to_a_few_last_places(values):
    x = values.astype(np.float64)
    gelu = x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    assert np.max(np.abs(applied(lanes(activation.silu), values) - x / (1 + np.exp(-x))) / (1 + abs(x))) < 3e-7
    assert np.max(np.abs(applied(lanes(activation.gelu), values) - gelu) / (1 + abs(x))) < 1e-6


def test_half_precision_gelu_rounds_before_and_after_and_is_a_line_far_out(values):
    x = np.concatenate([values / 9, values])
    half = x.astype(np.float16).astype(np.float64)
    near = (half * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (half + 0.044715 * half**3)))).astype(np.float16)
    right = np.where(np.abs(x) < 10, near, np.maximum(x, 0))

    found = applied(lanes(activation.gelu_half), x)

    assert np.array_equal(found[np.abs(x) >= 10], right[np.abs(x) >= 10])
    assert np.mean(found != right) < 1e-3  # where the exponential's last place decides
    assert np.max(np.abs(found - right) / (1e-3 + abs(right))) < 1e-3


def test_tangents_are_good_to_the_last_places(values):
    x = np.concatenate([values / 20, values / 1e4])

    assert np.allclose(applied(lanes(activation.hyperbolic_tangent), x), np.tanh(x.astype(np.float64)), rtol=3e-7, atol=0)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_half", "relu", "relu_squared", "hyperbolic_tangent"])
def test_what_is_no_number_stays_none(name):
    assert np.isnan(applied(lanes(getattr(activation, name)), np.float32([np.nan, 1]))).tolist() == [True, False]


@jit.kernel
def normalise_row(x, made, out, size, head, added):
    step.normalise(x, made, out, size, head, added)


@pytest.mark.parametrize("form", ["weight", "mean", "mean, bias", "bias, added", "bias, of a head"])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 576, 8960])
def test_a_norm_is_good_to_the_last_places_and_writes_nothing_else(size, form):
    rng = np.random.default_rng(size)
    x, weight = rng.normal(30, 100, size).astype(np.float32), rng.normal(1, 0.3, 3 * size).astype(np.float32)
    bias, added = rng.normal(0, 1, (2, size)).astype(np.float32)
    out = np.full(size + SLACK, 7, np.float32)
    head = 2 if "head" in form else 0
    places = {"weight": weight.ctypes.data, "bias": bias.ctypes.data if "bias" in form else 0}
    made = table([step.NormTable(**places, eps=1e-5, is_centred="mean" in form, step=size)])

    normalise_row(*(x.ctypes.data, made.ctypes.data, out.ctypes.data, size, head), added.ctypes.data if "added" in form else 0)

    wide = x.astype(np.float64)
    wide -= np.mean(wide) * ("mean" in form)
    right = wide / np.sqrt(np.mean(wide**2) + 1e-5) * weight[head * size :][:size]
    right += bias.astype(np.float64) * ("bias" in form) + added.astype(np.float64) * ("added" in form)
    assert np.allclose(out[:size], right, rtol=1e-6, atol=2e-6 if "mean" in form or "bias" in form else 0)
    assert (out[size:] == 7).all()


@jit.kernel
def rotate_head(x, turns, n_pairs, is_interleaved):
    head.rotate(x, turns, n_pairs, is_interleaved)


@pytest.mark.parametrize("n_pairs", [1, 5, 8, 16, 20, 64])
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_pairs_turn_and_what_is_after_them_stays(n_pairs, is_interleaved):
    rng = np.random.default_rng(n_pairs)
    x = rng.standard_normal(2 * n_pairs + SLACK).astype(np.float32)
    angles = rng.uniform(-9, 9, n_pairs)
    turns = np.concatenate([np.cos(angles), np.sin(angles), np.zeros(16)]).astype(np.float32)
    first = np.arange(n_pairs) * 2 if is_interleaved else np.arange(n_pairs)
    second = first + 1 if is_interleaved else first + n_pairs
    right = x.astype(np.float64)
    right[first] = x[first] * np.cos(angles) - x[second] * np.sin(angles)
    right[second] = x[second] * np.cos(angles) + x[first] * np.sin(angles)

    rotate_head(x.ctypes.data, turns.ctypes.data, n_pairs, int(is_interleaved))

    assert np.allclose(x, right, atol=1e-6)
    assert np.array_equal(x[2 * n_pairs :], right[2 * n_pairs :])


@jit.kernel
def copy_part(source, out, count):
    store_part(out, load_part(source, count), count)


@pytest.mark.parametrize("count", [0, 1, 7, 16, 99])
def test_parts_of_a_vector_touch_nothing_else(count):
    source, out = np.arange(16, dtype=np.float32), np.full(32, -1, np.float32)
    copy_part(source.ctypes.data, out.ctypes.data, count)

    n = min(count, 16)
    assert np.array_equal(out[:n], source[:n])
    assert (out[n:] == -1).all()
