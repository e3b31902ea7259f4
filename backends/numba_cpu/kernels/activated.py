"""Activations, gates and limits of products on their way to the next matrix."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import activation as functions
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.simd import div, maximum, minimum, mul, put_f32, splat_f32, sub, zero_f32
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, Entry, claim, multiply_panels, share
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows

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
            return mul(of_gate(value), functions.capped(value, constants.a))
        return of_gate(value)

    @helper
    def activate_lanes(value: Any, up: int, divisors: int, left: int, limit: Any, constants: Any) -> Any:
        if is_limited and not limits_activated:
            value = minimum(limit, value)  # the second operand stays where it is NaN
        value = activated_gate(value, constants)
        if is_limited and limits_activated:
            value = minimum(limit, value)
        if divisors != 0:
            value = div(value, load_part(divisors, left))
        if is_gated:
            other = load_part(up, left)
            if is_limited:
                other = minimum(limit, maximum(sub(zero_f32(), limit), other))
            if is_capped:
                other = functions.capped(other, constants.b)
            value = mul(value, of_up(other))
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
        limit, constants = splat_f32(np.float32(record.activation.limit)), record.activation.constants
        first, end = share(state.n_tokens, thread, n_threads, 0)
        for t in range(first, end):
            for index in range(0, size, 16):
                left, other, divisor = size - index, 0, 0
                if is_gated:
                    other = up + 4 * (t * ldu + index)
                if divisors != 0:
                    divisor = divisors + 4 * index
                value = activate_lanes(load_part(x + 4 * (t * ldx + index), left), other, divisor, left, limit, constants)
                store_part(out + 4 * (t * ldo + index), value, left)

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
        limit, constants = splat_f32(np.float32(record.activation.limit)), record.activation.constants
        width = min(PANEL_ROWS * stop, n_rows) - PANEL_ROWS * first
        for t in range(n):
            for index in range(0, width, 16):
                place, left, divisor = 4 * (t * ldy + index), width - index, 0
                if divisors != 0:
                    divisor = divisors + before + 4 * index
                value = activate_lanes(load_part(gate + place, left), up + place, divisor, left, limit, constants)
                if quantize == 0:
                    store_part(out + 4 * (t * n_rows + index) + before, value, left)
                else:
                    store_part(gate + place, value, left)
            for index in range(width, PANEL_ROWS * (stop - first)):  # of a panel that is partly filled
                put_f32(gate + 4 * (t * ldy + index), np.float32(0))
        if quantize != 0:  # a panel of rows is a block of columns
            invoke(quantize, (gate, out + first * n * n_bytes, n, ldy, 0, (stop - first) * n))

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
