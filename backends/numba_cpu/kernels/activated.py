"""What becomes of products on their way to the next matrix: activations, gates and limits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels.activation import (
    as_it_is,
    capped,
    gelu,
    gelu_half,
    relu,
    relu_squared,
    sigmoid,
    silu,
    softplus,
    swiglu_oai,
    swiglu_oai_up,
    xielu,
)
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.simd import div, get_i64, maximum, minimum, mul, put_f32, splat_f32, sub, zero_f32
from augury.backends.numba_cpu.kernels.step import ENTRY_BYTES, PANEL_ROWS, Y, claim, multiply_panels, share
from augury.backends.numba_cpu.kernels.team import N_TOKENS

__all__ = ["FUNCTIONS", "activate_kernel", "multiply_activated_kernel"]

FUNCTIONS = {
    "silu": (silu, as_it_is),
    "gelu": (gelu, as_it_is),
    "gelu_half": (gelu_half, as_it_is),
    "relu": (relu, as_it_is),
    "relu_squared": (relu_squared, as_it_is),
    "swiglu_oai": (swiglu_oai, swiglu_oai_up),
    "sigmoid": (sigmoid, as_it_is),
    "softplus": (softplus, as_it_is),
    "situ": (sigmoid, as_it_is),
    "xielu": (as_it_is, as_it_is),
}
"""What becomes of the gate, and of what it is multiplied with, by activation; of those with constants the part without."""

_NEAR = 4096  # tokens times panels of gate and as many of up that are activated before they leave the second cache
_TOGETHER = 8  # panels that products of many tokens take together


def _activated(*, activation: str, is_gated: bool, is_limited: bool, limits_activated: bool) -> Any:
    """Make what becomes of products: (gate, address of up, address of divisors or 0, how many are left, limit, record)."""
    (bend, of_up), is_capped, is_xielu = FUNCTIONS[activation], activation == "situ", activation == "xielu"

    @helper
    def bent(value: Any, record: int) -> Any:
        """What becomes of a gate."""
        if is_xielu:
            slope, eps = get_f64(record + 88), get_f64(record + 96)
            return xielu(value, get_f64(record + 72), get_f64(record + 80), slope, eps)
        if is_capped:
            return mul(bend(value), capped(value, get_f64(record + 72)))
        return bend(value)

    @helper
    def activated(value: Any, up: int, divisors: int, left: int, limit: Any, record: int) -> Any:
        if is_limited and not limits_activated:
            value = minimum(limit, value)  # what comes second stays where it is NaN
        value = bent(value, record)
        if is_limited and limits_activated:
            value = minimum(limit, value)
        if divisors != 0:
            value = div(value, load_part(divisors, left))
        if is_gated:
            other = load_part(up, left)
            if is_capped:
                other = capped(other, get_f64(record + 80))
            if is_limited:
                other = minimum(limit, maximum(sub(zero_f32(), limit), other))
            value = mul(value, of_up(other))
        return value

    return activated


def _named(function: Any, name: str, *, activation: str, is_gated: bool, is_limited: bool, limits_activated: bool) -> Any:
    limits = ("_limited" + "_activated" * limits_activated) * is_limited
    function.__name__ = function.__qualname__ = f"{'gated' if is_gated else 'plain'}_{activation}{limits}{name}"
    return kernel(function)


@cache
def activate_kernel(**of: Any) -> Any:
    """The kernel that sends rows through an activation: out = activation(x) / divisors * up.

    Operands: x, floats of a row, up, likewise, out, divisors (or 0), limit, four constants, floats of a row of out, values.
    """
    activated, is_gated = _activated(**of), of["is_gated"]

    def activate(record: int, state: int, thread: int, n_threads: int) -> None:
        x, ldx, up, ldu = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32), get_i64(record + 40)
        out, ldo, size, divisors = get_i64(record + 48), get_i64(record + 104), get_i64(record + 112), get_i64(record + 56)
        limit = splat_f32(np.float32(get_f64(record + 64)))
        first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
        for t in range(first, end):
            for index in range(0, size, 16):
                left, other, divisor = size - index, 0, 0
                if is_gated:
                    other = up + 4 * (t * ldu + index)
                if divisors != 0:
                    divisor = divisors + 4 * index
                value = activated(load_part(x + 4 * (t * ldx + index), left), other, divisor, left, limit, record)
                store_part(out + 4 * (t * ldo + index), value, left)

    return _named(activate, "", **of)


@cache
def multiply_activated_kernel(**of: Any) -> Any:
    """The kernel that makes products and activates them where they are still near: activation(gate) / divisors * up.

    Operands: entries of gate and up (or of up), how many, panels of one, out, n_rows, divisors (or 0), what limits both,
    four constants of the activation, the kernel that makes operands of what comes out (or 0, for rows), bytes of a block of
    a token.
    """
    activated, is_gated = _activated(**of), of["is_gated"]

    @helper
    def activate_panels(record: int, n: int, first: int, stop: int, gate: int, up: int, ldy: int) -> None:
        """Activate the products of panels `first` to `stop`, (n, ldy) float32 each."""
        out, n_rows, divisors = get_i64(record + 40), get_i64(record + 48), get_i64(record + 56)
        quantize, n_bytes, before = get_i64(record + 104), get_i64(record + 112), 4 * PANEL_ROWS * first
        limit, width = splat_f32(np.float32(get_f64(record + 64))), min(PANEL_ROWS * stop, n_rows) - PANEL_ROWS * first
        for t in range(n):
            for index in range(0, width, 16):
                place, left, divisor = 4 * (t * ldy + index), width - index, 0
                if divisors != 0:
                    divisor = divisors + before + 4 * index
                value = activated(load_part(gate + place, left), up + place, divisor, left, limit, record)
                if quantize == 0:
                    store_part(out + 4 * (t * n_rows + index) + before, value, left)
                else:
                    store_part(gate + place, value, left)
            for index in range(width, PANEL_ROWS * (stop - first)):  # of a panel that is partly filled
                put_f32(gate + 4 * (t * ldy + index), np.float32(0))
        if quantize != 0:  # a panel of rows is a block of columns
            invoke(quantize, (gate, out + first * n * n_bytes, n, ldy, 0, (stop - first) * n))

    def activate(record: int, state: int, thread: int, n_threads: int) -> None:
        entry, n_panels, n, up = get_i64(record + 16), get_i64(record + 32), get_i64(state + N_TOKENS), 0
        while True:
            start, end = claim(state, n_panels, n_threads)
            if start == end:
                return
            step = min(max(_NEAR // n // _TOGETHER, 1) * _TOGETHER, end - start)
            ldy, own = PANEL_ROWS * step, 4 * PANEL_ROWS * start * n  # where a share has its products, some panels at a time
            gate = get_i64(entry + Y) + own
            if is_gated:
                up = get_i64(entry + ENTRY_BYTES + Y) + own
            for first in range(start, end, step):
                stop, before = min(first + step, end), 4 * PANEL_ROWS * first
                multiply_panels(entry, first, stop, n, gate - before, ldy, state, thread)
                if is_gated:
                    multiply_panels(entry + ENTRY_BYTES, first, stop, n, up - before, ldy, state, thread)
                activate_panels(record, n, first, stop, gate, up, ldy)

    return _named(activate, "_products", **of)
