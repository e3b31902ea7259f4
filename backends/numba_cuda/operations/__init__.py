"""The operations that kernels compute: a class each that writes its launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.operations import attention, choice, ends, experts, latent, ngrams, recurrence, rows

if TYPE_CHECKING:
    from augury.backends.numba_cuda.operations.emitter import Emitters

__all__ = ["OPERATIONS"]

_FILES = (attention, choice, ends, experts, latent, ngrams, recurrence, rows)
OPERATIONS: Emitters = {operation: emitter for file in _FILES for operation, emitter in file.OPERATIONS.items()}
"""The emitter of each operation that this backend computes."""
