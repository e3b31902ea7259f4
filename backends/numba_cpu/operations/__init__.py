"""The operations that kernels compute: a class each that writes its records. Packages write theirs with these names."""

from __future__ import annotations

from augury.backends.numba_cpu.kernels.struct import table
from augury.backends.numba_cpu.operations import attention, ends, experts, latent, recurrence, rows
from augury.backends.numba_cpu.operations.emitter import OperationEmitter, Placed
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Tape, ThreadRows, row_bytes
from augury.lowering import emitters_of

__all__ = ["OPERATIONS", "OperationEmitter", "Placed", "Tape", "ThreadRows", "Work", "row_bytes", "table"]

_FILES = (attention, ends, experts, latent, recurrence, rows)
OPERATIONS = emitters_of(OperationEmitter, _FILES)
"""The emitter of each operation that this backend computes."""
