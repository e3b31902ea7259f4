"""`FeedForward`: down(activation(gate(n)) * up(n)) of n = norm(x), or down(activation(up(n)))."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.emitter import Emitter
from augury.backends.numba_cpu.heads import Ways
from augury.backends.numba_cpu.kernels.activation import (
    as_it_is,
    capped,
    gelu,
    gelu_half,
    relu,
    relu_squared,
    sigmoid,
    silu,
    swiglu_oai,
    swiglu_oai_up,
    xielu,
)
from augury.backends.numba_cpu.kernels.head import prepare_head, prepare_rows
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.matmul import activation_bytes
from augury.backends.numba_cpu.kernels.simd import div, get_i64, maximum, minimum, mul, put_f32, splat_f32, sub, zero_f32
from augury.backends.numba_cpu.kernels.step import ENTRY_BYTES, PANEL_ROWS, Y, claim, multiply_panels
from augury.backends.numba_cpu.kernels.team import N_TOKENS
from augury.backends.numba_cpu.memory import bits
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes
from augury.blocks import Activation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import FeedForward
    from augury.types import ModelOptions

__all__ = ["ACTIVATIONS", "FUNCTIONS", "FeedForwardEmitter"]


FUNCTIONS = {
    Activation.SILU: (silu, as_it_is),
    Activation.GELU: (gelu, as_it_is),
    Activation.GELU_HALF: (gelu_half, as_it_is),
    Activation.RELU: (relu, as_it_is),
    Activation.RELU_SQUARED: (relu_squared, as_it_is),
    Activation.SWIGLU_OAI: (swiglu_oai, swiglu_oai_up),
}
"""What becomes of the gate, and of what it is multiplied with."""
ACTIVATIONS = FUNCTIONS | {Activation.SITU: (sigmoid, as_it_is), Activation.XIELU: (as_it_is, as_it_is)}
"""Likewise, with those that have constants: there, the part that has none."""

_NEAR = 4096  # tokens times panels of gate and as many of up that are activated before they leave the second cache
_TOGETHER = 8  # panels that products of many tokens take together
_N_CONSTANTS = 4


def _activated(kind: Activation, *, is_gated: bool, is_limited: bool, limits_activated: bool) -> Any:
    """Make what becomes of products: (gate, address of up, address of divisors or 0, how many are left, limit, record)."""
    (activation, of_up), is_capped, is_xielu = ACTIVATIONS[kind], kind is Activation.SITU, kind is Activation.XIELU

    @helper
    def bent(value: Any, record: int) -> Any:
        """What becomes of a gate."""
        if is_xielu:
            slope, eps = get_f64(record + 88), get_f64(record + 96)
            return xielu(value, get_f64(record + 72), get_f64(record + 80), slope, eps)
        if is_capped:
            return mul(activation(value), capped(value, get_f64(record + 72)))
        return activation(value)

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


@cache
def _kernel(kind: Activation, *, is_gated: bool, is_limited: bool, limits_activated: bool) -> Any:
    activated = _activated(kind, is_gated=is_gated, is_limited=is_limited, limits_activated=limits_activated)

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

    limits = ("_limited" + "_activated" * limits_activated) * is_limited
    activate.__name__ = activate.__qualname__ = f"{'gated' if is_gated else 'plain'}_{kind.value}{limits}"
    activate.__doc__ = """Out = activation(gate) / divisors * up, or activation(up) / divisors.

    Operands: entries of gate and up (or of up), how many, panels of one, out, n_rows, divisors (or 0), what limits both,
    four constants of the activation, the kernel that makes operands of what comes out (or 0, for rows), bytes of a block of
    a token.
    """
    return kernel(activate)


class FeedForwardEmitter(Emitter):
    """Multiplies by gate and up in one record, and activates where the products are still near."""

    block: FeedForward

    def __init__(self, block: FeedForward, options: ModelOptions) -> None:
        super().__init__(block, options)
        self._products = {"up": block.up} if block.gate is None else {"gate": block.gate, "up": block.up}
        limits = {"is_limited": block.limit is not None, "limits_activated": block.limits_activated}
        self._kernel = _kernel(block.activation, is_gated=block.gate is not None, **limits)

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (self._kernel,) if self.block.hidden_norm is None else (self._kernel, prepare_head, prepare_rows)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        return {name: row_bytes(linear.n_out) for name, linear in self._products.items()} | {
            "hidden": row_bytes(self.block.down.n_in)
        }

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:  # noqa: ARG002 - as its parent's
        """Write what happens to what is hidden before `down`."""
        block = self.block
        self._ways = Ways(norm=block.hidden_norm).place(weights, arena, self.options.n_ctx)
        self._divisors = 0 if block.divisors is None else weights.vector(block.divisors.weight, block.divisors.size)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        self.emit_products(tape, tape.norm(self.block.norm), tape.y)
        tape.leave(self.block.post_norm)

    def emit_products(self, tape: Tape, x: Rows, y: int) -> None:
        """Write all but the norms around it: from x to y."""
        block, hidden = self.block, tape.buffers["hidden"]
        products = [(linear, tape.buffers[name]) for name, linear in self._products.items()]
        entries = tape.entries(x, products)
        matrices = [tape.weights.matrix(linear) for linear, _ in products]
        operands = (entries.ctypes.data, len(entries), matrices[0].n_panels, hidden, block.up.n_out, self._divisors)
        constants = (*block.constants, *(0.0,) * (_N_CONSTANTS - len(block.constants)))
        kind, activation = tape.weights.matrix(block.down).kind, tape.weights.activation(block.down)
        to = (0, 0) if self._ways else (tape.weights.address(kind, "quantize"), activation_bytes(activation, 1, 1))
        bounds = map(bits, (block.limit or 0.0, *constants))
        tape.add(Work.of_matrices(", ".join(self._products), matrices), self._kernel, *operands, *bounds, *to)
        if self._ways:
            tape.prepare(hidden, block.down.n_in, 1, block.down.n_in, self._ways)
        tape.multiply("down", Rows(hidden, 0, block.down.n_in), ((block.down, y),), are_operands=not self._ways)
