"""A pass whose logits are on a device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from augury.backends.numba_cuda.device import Device, Launch, Pointer
from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.sample import best_tokens
from augury.passes import ArrayPass, Pass
from augury.types import read_only

__all__ = ["Chooser", "DevicePass"]

MAX_K = 256  # best tokens that are looked for on the device; of more the row is read


class Chooser:
    """Looks for the best tokens of rows of logits, on the device."""

    def __init__(self, device: Device, logits: Pointer, inputs: Pointer, n_vocab: int) -> None:
        self.device, self.logits, self.n_vocab = device, logits, n_vocab
        self._inputs = inputs
        self._rows, self._found = (device.allocate(n, "scratch").at(0) for n in (4 * MAX_TOKENS, 8 * MAX_TOKENS * MAX_K))

    def top_k(self, rows: np.ndarray, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best of the first n tokens of some rows."""
        m = len(rows)
        ids, values = np.empty((m, k), np.int32), np.empty((m, k), np.float32)
        for start in range(0, m, MAX_TOKENS):
            some = np.ascontiguousarray(rows[start : start + MAX_TOKENS], np.int32)
            to = (self._found, self._found.at(4 * len(some) * k))
            self.device.write(self._rows, some)
            places = (self._inputs, self.logits, self._rows, *to)
            self.device.launch(Launch(best_tokens, (len(some), 1, 1), THREADS, (*places, n, self.n_vocab, k, 0)))
            for place, array in zip(to, (ids, values), strict=True):
                self.device.read(place, array[start : start + MAX_TOKENS])
        return ids, values


class DevicePass(Pass):
    """Rows of logits (r, V) on a device, of which a few hundred bytes come to the host: `told` has best tokens, then logits."""

    def __init__(
        self, chooser: Chooser, told: np.ndarray, n_rows: int, features: Mapping[str, tuple[Pointer, int, int]], n: int
    ) -> None:
        self._chooser, self._told, self._n_rows, self._features, self._n = chooser, told, n_rows, features, n
        self._read: np.ndarray | None = None
        self._seconds: float | None = None
        self._is_over = False

    def wait(self) -> float | None:
        """See `Pass.wait`."""
        if not self._is_over:
            self._seconds, self._is_over = self._chooser.device.wait(), True
            self._told = self._told.copy()
        return self._seconds

    def argmax(self) -> np.ndarray:
        """See `Pass.argmax`."""
        if self._n != self._chooser.n_vocab:
            ids, values = self._chooser.top_k(np.arange(self._n_rows, dtype=np.int32), 1, self._n)
            return np.where(np.isfinite(values[:, 0]), ids[:, 0], np.int32(-1))
        self.wait()
        ids = self._told[: self._n_rows].copy()
        ids[~np.isfinite(self._told[MAX_TOKENS:].view(np.float32)[: self._n_rows])] = -1
        return ids

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Pass.top_k`."""
        k = max(0, min(k, self._n))
        if not 0 < k <= MAX_K:
            return ArrayPass(self.rows()).top_k(rows, k)
        ids, values = self._chooser.top_k(rows, k, self._n)
        values[ids < 0] = np.nan
        return ids, values

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        """See `Pass.gather`."""
        found: np.ndarray = self._row(row)[ids]
        return found

    def log_normalizer(self, row: int) -> float:
        """See `Pass.log_normalizer`."""
        return ArrayPass(self._row(row)[None]).log_normalizer(0)

    def rows(self) -> np.ndarray:
        """See `Pass.rows`."""
        if self._read is None:
            whole = np.empty((self._n_rows, self._chooser.n_vocab), np.float32)
            if self._n_rows:
                self._chooser.device.read(self._chooser.logits, whole)
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
        return DevicePass(self._chooser, self._told, self._n_rows, self._features, n)

    def _row(self, row: int) -> np.ndarray:
        if self._read is not None:
            return self._read[row]
        values = np.empty(self._n, np.float32)
        self._chooser.device.read(self._chooser.logits.at(4 * row * self._chooser.n_vocab), values)
        return values
