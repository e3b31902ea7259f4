"""A pass whose logits are on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cuda.choosing import MAX_GATHERED, MAX_K, Chooser, Found, Wanted
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.passes import ArrayPass, Pass
from augury.types import read_only

if TYPE_CHECKING:
    from augury.backends.numba_cuda.device import Pointer

__all__ = ["DevicePass"]


class DevicePass(Pass):
    """Rows of logits (r, V) on a device, of which a few hundred bytes come to the host: `told` has best tokens, then logits."""

    def __init__(
        self,
        chooser: Chooser,
        told: np.ndarray,
        n_rows: int,
        features: Mapping[str, tuple[Pointer, int, int]],
        n: int,
        begun: Wanted,
    ) -> None:
        self._chooser, self._told, self._n_rows, self._features, self._n = chooser, told, n_rows, features, n
        self._begun = begun
        self._read: np.ndarray | None = None
        self._found: Found | None = None
        self._seconds: float | None = None
        self._is_over = False

    def wait(self) -> float | None:
        """See `Pass.wait`."""
        if not self._is_over:
            self._seconds, self._is_over = self._chooser.device.wait(), True
            self._told = self._told.copy()
            self._found = self._chooser.found(self._n_rows, self._n, self._begun)
        return self._seconds

    def argmax(self) -> np.ndarray:
        """See `Pass.argmax`."""
        if self._n != self._chooser.logits.n_vocab:
            found = self._all(Wanted(1))
            ids, values = found.ids[:, 0], found.values[:, 0]
        else:
            self.wait()
            ids, values = self._told[: self._n_rows], self._told[MAX_TOKENS:].view(np.float32)[: self._n_rows]
        return np.where(np.isfinite(values), ids, np.int32(-1))

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Pass.top_k`."""
        k = max(0, min(k, self._n))
        if not 0 < k <= MAX_K:
            return ArrayPass(self.rows()).top_k(rows, k)
        found = self._all(Wanted(k))
        return found.ids[rows, :k], found.values[rows, :k]

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        """See `Pass.gather`."""
        if self._found is not None and len(ids) == 1:  # a token that was chosen from the best ones
            known = np.flatnonzero(self._found.ids[row] == ids[0])
            if len(known):
                values: np.ndarray = self._found.values[row, known]
                return values
        if self._read is None and len(ids) <= MAX_GATHERED:
            self.wait()
            return self._chooser.gather(row, ids)
        found: np.ndarray = self.rows()[row, ids]
        return found

    def log_normalizer(self, row: int) -> float:
        """See `Pass.log_normalizer`."""
        return float(self._all(Wanted(has_sums=True)).normalizers[row])

    def _all(self, wanted: Wanted) -> Found:
        """What is wanted of all rows."""
        self.wait()
        wanted = self._chooser.ask(self._n, wanted)
        found = self._found
        if found is None or found.wanted.k < wanted.k or found.wanted.has_sums < wanted.has_sums:
            self._chooser.begin(self._n_rows, self._n, wanted)
            self._chooser.device.wait()
            self._found = found = self._chooser.found(self._n_rows, self._n, wanted)
        return found

    def rows(self) -> np.ndarray:
        """See `Pass.rows`."""
        if self._read is None:
            whole = np.empty((self._n_rows, self._chooser.logits.n_vocab), np.float32)
            if self._n_rows:
                self._chooser.device.read(self._chooser.logits.at, whole)
            self._read = read_only(whole[:, : self._n])
        return self._read

    def features(self, name: str) -> np.ndarray:
        """See `Pass.features`."""
        if name not in self._features:
            return super().features(name)
        at, n, width = self._features[name]
        values = np.empty((n, width), np.float32)
        self._chooser.device.read(at, values)
        return read_only(values)

    def first(self, n: int) -> Pass:
        """See `Pass.first`."""
        self.wait()
        return DevicePass(self._chooser, self._told, self._n_rows, self._features, n, Wanted())
