"""`Output`: logits = W norm(x), of the rows that are asked for, and what else happens to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.emitter import Emitter
from augury.backends.numba_cpu.kernels.activation import hyperbolic_tangent
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import load_part, store_part
from augury.backends.numba_cpu.kernels.simd import get_i64, mul, splat_f32
from augury.backends.numba_cpu.kernels.step import Entry, gather_rows
from augury.backends.numba_cpu.kernels.struct import pointer_to, struct
from augury.backends.numba_cpu.kernels.team import N_ROWS, Record
from augury.backends.numba_cpu.profile import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cpu.tape import Tape
    from augury.blocks import Output

__all__ = ["OutputEmitter"]

_RUN = 1024  # logits that a thread takes at once


@struct
class CapLogits(Record):
    """Operands of `cap_logits`."""

    entry: Any = pointer_to(Entry)  # of the matrix that made them; the first field, as of `Multiply`
    cap: float


@kernel(record=CapLogits)
def cap_logits(record: Any, state: int, thread: int, n_threads: int) -> None:
    """Logits l → cap * tanh(l / cap)."""
    entry, cap = record.entry, record.cap
    top, inverse = splat_f32(np.float32(cap)), splat_f32(np.float32(1 / cap))
    y, ld, size = entry.y, entry.ldy, entry.n_rows
    n_runs = (size + _RUN - 1) // _RUN
    n_items = get_i64(state + N_ROWS) * n_runs
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        row, start = y + 4 * (item // n_runs) * ld, item % n_runs * _RUN
        for i in range(start, min(start + _RUN, size), 16):
            left = size - i
            store_part(row + 4 * i, mul(hyperbolic_tangent(mul(load_part(row + 4 * i, left), inverse)), top), left)


class OutputEmitter(Emitter):
    """Computes logits; where to is written into the tape before every pass."""

    block: Output

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        has_no_norm = self.block.norm is None and self.block.weight is not None
        return (*[cap_logits] * (self.block.softcap is not None), *[gather_rows] * has_no_norm)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        if self.block.weight is None:
            tape.norm_x(None)  # adds what was left
            return
        rows = tape.norm(self.block.norm, is_output=True)
        tape.logits = tape.multiply("output", rows, ((self.block.weight, 0),), is_output=True)
        if self.block.softcap is not None:
            tape.add(Work("capping logits"), cap_logits, entry=tape.logits.ctypes.data, cap=self.block.softcap)
