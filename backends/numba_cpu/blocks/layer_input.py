"""`LayerInput`: o(activation(gate(x)) * e), and the e of all layers, which the embedding makes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.emitter import Emitter
from augury.backends.numba_cpu.blocks.feed_forward import FUNCTIONS
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, load_part, store_part
from augury.backends.numba_cpu.kernels.simd import fma, get_i64, mul, splat_f32
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, share
from augury.backends.numba_cpu.kernels.team import N_TOKENS
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.tape import Tape
    from augury.blocks import Activation, LayerInput
    from augury.types import ModelOptions

__all__ = ["INPUTS", "LayerInputEmitter", "add_rows_of_table"]

INPUTS = "layer inputs"
"""The buffer of the e of all layers: rows in whole panels."""


@kernel
def add_rows_of_table(record: int, state: int, thread: int, n_threads: int) -> None:
    """E = scale * (e + factor * row). Operands: e, floats of a row, rows of the table, their size, scale, factor."""
    e, ld, rows, size = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32), get_i64(record + 40)
    scale, factor = splat_f32(np.float32(get_f64(record + 48))), splat_f32(np.float32(get_f64(record + 56)))
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
    for t in range(first, end):
        for index in range(0, size, 16):
            left, place = size - index, e + 4 * (t * ld + index)
            value = fma(load_part(rows + 4 * (t * size + index), left), factor, load_part(place, left))
            store_part(place, mul(scale, value), left)


@cache
def _kernel(activation: Activation) -> Any:
    function = FUNCTIONS[activation][0]

    def activate(record: int, state: int, thread: int, n_threads: int) -> None:
        gates, ld, e, lde = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32), get_i64(record + 40)
        out, size = get_i64(record + 48), get_i64(record + 56)
        first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
        for t in range(first, end):
            for index in range(0, size, 16):
                left = size - index
                value = function(load_part(gates + 4 * (t * ld + index), left))
                store_part(out + 4 * (t * size + index), mul(value, load_part(e + 4 * (t * lde + index), left)), left)

    activate.__name__ = activate.__qualname__ = f"{activation.value}_of_inputs"
    activate.__doc__ = (
        """Out = activation(gates) * e. Operands: gates, floats of a row, e, likewise, out, its floats of a row."""
    )
    return kernel(activate)


class LayerInputEmitter(Emitter):
    """Two products, and what is between them."""

    block: LayerInput

    def __init__(self, block: LayerInput, options: ModelOptions) -> None:
        super().__init__(block, options)
        if block.activation not in FUNCTIONS:
            raise UnsupportedError(f"{block.activation.name} without constants; use backend reference")

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (_kernel(self.block.activation),)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        return {name: row_bytes(self.block.gate.n_out) for name in ("gate", "hidden")}

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, size = self.block, tape.buffers, self.block.gate.n_out
        tape.multiply("gate of inputs", tape.norm(None), ((block.gate, buffers["gate"]),))
        e = (buffers[INPUTS] + 4 * block.index * size, up(block.n_layers * size, PANEL_ROWS))
        operands = (buffers["gate"], up(size, PANEL_ROWS), *e, buffers["hidden"], size)
        tape.add(Work("inputs of a layer"), _kernel(block.activation), *operands)
        tape.multiply("inputs of a layer", Rows(buffers["hidden"], 0, size), ((block.o, tape.y),))
        tape.leave(block.post_norm)
