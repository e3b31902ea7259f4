"""Logits that kernels read where the pass left them."""

from __future__ import annotations

import math

import numpy as np

from augury.backends.numba_cpu.kernels import logits as kernels
from augury.logits import ArrayLogits

KERNELS = (kernels.argmax, kernels.best, kernels.sum_exponentials)
_FLOAT = 4


class KernelLogits(ArrayLogits):
    """Rows of logits whose best tokens and sums kernels find, with the results of `ArrayLogits`."""

    def argmax(self) -> np.ndarray:
        """The most probable token of each row, (r,) int32; of equals the lowest id, -1 where the row is not finite."""
        n_rows, n = self._array.shape
        best = np.empty(n_rows, np.int32)
        kernels.argmax(self._array.ctypes.data, self._array.strides[0] // _FLOAT, n_rows, n, best.ctypes.data)
        return best

    def top_k(self, row: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k most probable tokens of a row: ids (k,) int32 and logits (k,) float32, best first, equals by rising id."""
        logits = self._array[row]
        k = min(k, len(logits))
        if not 1 <= k <= kernels.MAX_BEST:
            return super().top_k(row, k)
        ids, values, counts = np.empty(k, np.int32), np.empty(k, np.float32), np.empty(2, np.int64)
        kernels.best(logits.ctypes.data, len(logits), k, ids.ctypes.data, values.ctypes.data, counts.ctypes.data)
        n_found, n_odd = counts.tolist()
        return (ids[:0], values[:0]) if n_odd else (ids[:n_found], values[:n_found])

    def log_normalizer(self, row: int) -> float:
        """log(sum(exp(logits))) of a row, accumulated in float64 in one order."""
        logits = self._array[row]
        largest, sums = logits.max(), np.empty(kernels.SUMS_BYTES // 8 + 1)
        if not np.isfinite(largest):
            return super().log_normalizer(row)
        address = sums.ctypes.data
        here = np.array([largest])
        kernels.sum_exponentials(logits.ctypes.data, len(logits), here.ctypes.data, address, address + kernels.SUMS_BYTES)
        return float(largest) + math.log(sums[-1])
