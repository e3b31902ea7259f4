"""A pass whose logits kernels read where it left them."""

from __future__ import annotations

import math

import numpy as np

from augury.backends.numba_cpu.kernels import logits as kernels
from augury.passes import ArrayPass

KERNELS = (kernels.argmax, kernels.best, kernels.sum_exponentials)
_FLOAT = 4


class KernelPass(ArrayPass):
    """Rows of logits whose best tokens and sums kernels find, with the results of `ArrayPass`."""

    def argmax(self) -> np.ndarray:
        n_rows, n = self._array.shape
        best = np.empty(n_rows, np.int32)
        kernels.argmax(self._array.ctypes.data, self._array.strides[0] // _FLOAT, n_rows, n, best.ctypes.data)
        return best

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        n_rows, n = self._array.shape
        k = min(k, n)
        if not 1 <= k <= kernels.MAX_BEST:
            return super().top_k(rows, k)
        of, wanted = rows.tolist(), rows.astype(np.int64)
        if of and not 0 <= min(of) <= max(of) < n_rows:
            raise IndexError(f"rows {of} of a pass that has {n_rows}")
        n_wanted, width = len(of), self._array.strides[0] // _FLOAT
        found = np.empty((2, n_wanted, k), np.int32)  # tokens, then their logits
        ids = found.ctypes.data
        kernels.best(self._array.ctypes.data, width, wanted.ctypes.data, n_wanted, n, k, ids, ids + found.nbytes // 2)
        return found[0], found[1].view(np.float32)

    def log_normalizer(self, row: int) -> float:
        """See `Pass.log_normalizer`; the sum has one order."""
        logits = self._array[row]
        largest, sums = logits.max(), np.empty(kernels.SUMS_BYTES // 8 + 1)
        if not np.isfinite(largest):
            return super().log_normalizer(row)
        address = sums.ctypes.data
        here = np.array([largest])
        kernels.sum_exponentials(logits.ctypes.data, len(logits), here.ctypes.data, address, address + kernels.SUMS_BYTES)
        return float(largest) + math.log(sums[-1])
