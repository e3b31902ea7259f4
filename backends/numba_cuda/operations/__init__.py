"""The operations that kernels compute: a class each that writes its launches. Packages write theirs with these names."""

from __future__ import annotations

from augury.backends.numba_cuda.device import Arguments
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.operations import attention, ends, experts, latent, recurrence, rows
from augury.backends.numba_cuda.operations.emitter import OperationEmitter
from augury.backends.numba_cuda.operations.rewrites import ConvolveAndDecay
from augury.backends.numba_cuda.operations.rows import activate, look_up
from augury.backends.numba_cuda.rows import DeviceRows
from augury.backends.numba_cuda.tape import Gate, Tape
from augury.lowering import emitters_of

__all__ = [
    "MAX_TOKENS",
    "OPERATIONS",
    "THREADS",
    "WARP",
    "Arguments",
    "DeviceRows",
    "Gate",
    "OperationEmitter",
    "Tape",
    "activate",
    "look_up",
]

_FILES = (attention, ends, experts, latent, recurrence, rows)
OPERATIONS = emitters_of(OperationEmitter, _FILES) | {ConvolveAndDecay: recurrence.ConvolveAndDecayEmitter}
"""The emitter of each operation that this backend computes."""
