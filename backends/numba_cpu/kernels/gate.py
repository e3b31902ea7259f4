"""The gate of what attention has mixed."""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import load_part, store_part
from augury.backends.numba_cpu.kernels.simd import get_f32, get_i64, mul, splat_f32
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, share
from augury.backends.numba_cpu.kernels.team import N_TOKENS


def gate_kernel(function: Any, name: str) -> Any:
    """The kernel that multiplies by what a function, a helper of 16 lanes, makes of a gate."""

    def gate(record: int, state: int, thread: int, n_threads: int) -> None:
        x, size, gate, n_gates = get_i64(record + 16), get_i64(record + 24), get_i64(record + 32), get_i64(record + 40)
        ld, head = (n_gates + PANEL_ROWS - 1) // PANEL_ROWS * PANEL_ROWS, size // n_gates
        first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
        for t in range(first, end):
            row, gates = x + 4 * t * size, gate + 4 * t * ld
            if head == 1:
                for i in range(0, size, 16):
                    left = size - i
                    value = mul(load_part(row + 4 * i, left), function(load_part(gates + 4 * i, left)))
                    store_part(row + 4 * i, value, left)
            else:
                for h in range(n_gates):
                    factor = function(splat_f32(np.float32(get_f32(gates + 4 * h))))
                    for i in range(h * head, (h + 1) * head, 16):
                        left = (h + 1) * head - i
                        store_part(row + 4 * i, mul(load_part(row + 4 * i, left), factor), left)

    gate.__name__ = gate.__qualname__ = f"gate_rows_{name}"
    gate.__doc__ = f"""X *= {name}(gate).

    Operands: x, floats of a row; gate, floats of a row (as many, or one by head), but whole panels.
    """
    return kernel(gate)
