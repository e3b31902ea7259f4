"""The operations that kernels compute: a class each that writes its launches. Packages write theirs with these names."""

from __future__ import annotations

from augury.backends.numba_cuda.device import Arguments
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.operations import attention, experts, latent, recurrence, rows  # noqa: F401 - they register
from augury.backends.numba_cuda.operations.emitter import EMITTERS, OperationEmitter, launches
from augury.backends.numba_cuda.operations.rows import activate, look_up
from augury.backends.numba_cuda.products import DeviceRows
from augury.backends.numba_cuda.tape import Gate, Tape

__all__ = [
    "EMITTERS",
    "MAX_TOKENS",
    "THREADS",
    "WARP",
    "Arguments",
    "DeviceRows",
    "Gate",
    "OperationEmitter",
    "Tape",
    "activate",
    "launches",
    "look_up",
]
