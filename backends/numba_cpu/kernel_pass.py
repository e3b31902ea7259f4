"""A pass whose logits kernels read where it left them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from augury.backends.numba_cpu.kernels import logits as kernels
from augury.passes import ArrayPass

KERNELS = (kernels.argmax, kernels.best, kernels.sum_exponentials)
_FLOAT = 4


class KernelPass(ArrayPass):
    """Rows of logits whose best tokens and sums kernels find, with the results of `ArrayPass`."""

    def __init__(self, array: np.ndarray, width: int, features: Mapping[str, np.ndarray] | None = None) -> None:
        """Take rows (r, V) float32; `width` floats after the beginning of each lie the largest of each block."""
        super().__init__(array, features)
        self._width = width

    def argmax(self) -> np.ndarray:
        n_rows, n = self._array.shape
        ids, values = np.empty(n_rows, np.int32), np.empty(n_rows, np.float32)
        kernels.argmax(*self._place(), n_rows, n, ids.ctypes.data, values.ctypes.data)
        return ids

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        n_rows, n = self._array.shape
        k = min(k, n)
        if not 1 <= k <= kernels.MAX_BEST:
            return super().top_k(rows, k)
        of, wanted = rows.tolist(), rows.astype(np.int64)
        if of and not 0 <= min(of) <= max(of) < n_rows:
            raise IndexError(f"rows {of} of a pass that has {n_rows}")
        ids, values = np.empty((len(of), k), np.int32), np.empty((len(of), k), np.float32)
        kernels.best(*self._place(), wanted.ctypes.data, len(of), n, k, ids.ctypes.data, values.ctypes.data)
        return ids, values

    def log_normalizer(self, row: int) -> float:
        """See `Pass.log_normalizer`; the sum has one order."""
        _, (largest,) = self.top_k(np.array([row]), 1)
        if not np.isfinite(largest):
            return super().log_normalizer(row)
        logits, sums = self._array[row], np.empty(kernels.SUMS_BYTES // 8 + 1)
        address = sums.ctypes.data
        kernels.sum_exponentials(logits.ctypes.data, len(logits), largest.ctypes.data, address, address + kernels.SUMS_BYTES)
        return float(largest[0]) + math.log(sums[-1])

    def first(self, n: int) -> KernelPass:
        return KernelPass(self._array[:, :n], self._width, self._features)

    def _place(self) -> tuple[int, int, int]:
        """The address of the logits and of the largest of blocks, and floats from one row to the next."""
        logits = self._array.ctypes.data
        return logits, logits + _FLOAT * self._width, self._array.strides[0] // _FLOAT
