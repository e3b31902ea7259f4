"""Logits that lie in memory as one numpy array."""

from __future__ import annotations

import numpy as np

from augury.interfaces import Logits
from augury.types import read_only

__all__ = ["ArrayLogits"]


class ArrayLogits(Logits):
    """Rows of logits (r, V) float32, read-only to those who hold the handle."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = read_only(array)

    def argmax(self) -> np.ndarray:
        """The most probable token of each row, (r,) int32; of equals the lowest id, -1 where the row is not finite.

        >>> ArrayLogits(np.float32([[1, 3, 3], [1, 9, np.nan], [1, 9, np.inf], [1, 9, -np.inf]])).argmax().tolist()
        [1, -1, -1, 1]
        """
        best: np.ndarray = self._array.argmax(axis=1).astype(np.int32)  # to argmax NaN is more than anything
        best[~np.isfinite(self._array[np.arange(len(best)), best])] = -1
        return best

    def top_k(self, row: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k most probable tokens of a row: ids (k,) int32 and logits (k,) float32, best first, equals by rising id.

        >>> ids, logits = ArrayLogits(np.float32([[1, 3, 3, 2]])).top_k(0, 3)
        >>> ids.tolist(), logits.tolist()
        ([1, 2, 3], [3.0, 3.0, 2.0])
        """
        logits = self._array[row]
        k = min(k, len(logits))
        if k < 1 or np.isnan(logits).any():
            return np.empty(0, np.int32), np.empty(0, np.float32)
        worst = np.partition(logits, len(logits) - k)[len(logits) - k]
        above = np.flatnonzero(logits > worst)
        ids = np.concatenate([above, np.flatnonzero(logits == worst)[: k - len(above)]])
        ids = ids[np.lexsort((ids, -logits[ids]))]
        return ids.astype(np.int32), logits[ids]

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        """The logits (m,) float32 of the tokens `ids` (m,) in a row."""
        logits: np.ndarray = self._array[row, ids]
        return logits

    def log_normalizer(self, row: int) -> float:
        """log(sum(exp(logits))) of a row, accumulated in float64."""
        logits = self._array[row].astype(np.float64)
        largest = logits.max()
        return float(largest + np.log(np.exp(logits - largest).sum()))

    def rows(self) -> np.ndarray:
        """All rows, (r, V) float32."""
        return self._array

    def first(self, n: int) -> Logits:
        """The same rows over the first n tokens alone."""
        return type(self)(self._array[:, :n])
