"""The operations that kernels compute: a class each that writes its records. Packages write theirs with these names."""

from __future__ import annotations

from augury.backends.numba_cpu.operations import attention, experts, recurrence, rows  # noqa: F401 - they register
from augury.backends.numba_cpu.operations.emitter import EMITTERS, OperationEmitter
from augury.backends.numba_cpu.tape import Tape, ThreadRows, Work, row_bytes

__all__ = ["EMITTERS", "OperationEmitter", "Tape", "ThreadRows", "Work", "row_bytes"]
