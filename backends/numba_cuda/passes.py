"""A pass whose logits are on a device, or were there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import evolve

from augury.backends.numba_cuda.choosing import MAX_GATHERED, MAX_K, PendingRows, RowReader, RowRequest, RowResult
from augury.backends.numba_cuda.kernels.inputs import MAX_ROWS
from augury.passes import ArrayPass, Pass
from augury.types import read_only


class DevicePass(Pass):
    """Rows of logits (r, V) on a device. A few hundred bytes come to the host: `fetched` has best tokens, then logits.

    Features (n, F) come, too, because they are requested when the pass begins: their staging arrays are the next pass's.
    """

    def __init__(
        self,
        reader: RowReader,
        fetched: np.ndarray,
        row_slots: np.ndarray,
        features: Mapping[str, np.ndarray],
        n: int,
        begun: PendingRows,
        before_s: float = 0.0,
    ) -> None:
        self._reader, self._fetched, self._row_slots, self._features, self._n = reader, fetched, row_slots, features, n
        self._begun, self._n_rows, self._before_s = begun, len(row_slots), before_s
        self._gathered = np.empty(0, np.float32)
        self._rows: dict[int, np.ndarray] = {}
        self._read: np.ndarray | None = None
        self._found: RowResult | None = None
        self._seconds: float | None = None
        self._is_over = False

    def wait(self) -> float | None:
        if not self._is_over:
            own_s, self._is_over = self._reader.device.wait(), True
            self._seconds = None if own_s is None else self._before_s + own_s
            self._fetched = self._fetched.copy()
            self._found = self._reader.found(self._n_rows, self._n, self._begun.wanted)
            self._gathered = self._reader.gathered(sum(map(len, self._begun.ids.values())))
        return self._seconds

    def argmax(self) -> np.ndarray:
        if self._n != self._reader.logits.n_vocab:
            found = self._all(RowRequest(1))
            ids, values = found.ids[:, 0], found.values[:, 0]
        else:
            self.wait()
            ids, values = self._fetched[: self._n_rows], self._fetched[MAX_ROWS:].view(np.float32)[: self._n_rows]
        return np.where(np.isfinite(values), ids, np.int32(-1))

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        k = max(0, min(k, self._n))
        if not 0 < k <= MAX_K:
            return ArrayPass(np.stack([self.row(row) for row in rows])).top_k(np.arange(len(rows), dtype=np.int32), k)
        found = self._all(RowRequest(k))
        return found.ids[rows, :k], found.values[rows, :k]

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        self.wait()
        if not len(ids):
            return np.empty(0, np.float32)
        if len(ids) == 1 and ids[0] == self._fetched[row]:
            best: np.ndarray = self._fetched[MAX_ROWS + row :][:1].view(np.float32)
            return best
        if self._found is not None and len(ids) == 1:  # a token that was chosen from the best ones
            known = np.flatnonzero(self._found.ids[row] == ids[0])
            if len(known):
                values: np.ndarray = self._found.values[row, known]
                return values
        if len(ids) > MAX_GATHERED or row in self._rows or self._read is not None:
            of_row: np.ndarray = self.row(row)[ids]
            return of_row
        self._reader.ask_ids(int(self._row_slots[row]), ids)
        if row in self._begun.ids:
            foreseen = self._begun.ids[row]
            at = np.minimum(np.searchsorted(foreseen, ids), len(foreseen) - 1)
            if np.array_equal(foreseen[at], ids):
                gathered: np.ndarray = self._gathered[self._begun.places[row] + at]
                return gathered
        return self._reader.gather(row, ids)

    def log_normalizer(self, row: int) -> float:
        return float(self._all(RowRequest(has_sums=True)).normalizers[row])

    def _all(self, wanted: RowRequest) -> RowResult:
        """The results of all rows."""
        self.wait()
        wanted = self._reader.ask(self._n, wanted)
        found = self._found
        if found is None or found.wanted.k < wanted.k or found.wanted.has_sums < wanted.has_sums:
            self._reader.begin(self._n_rows, self._n, wanted)
            self._reader.device.wait()
            self._found = found = self._reader.found(self._n_rows, self._n, wanted)
        return found

    def rows(self) -> np.ndarray:
        if self._read is None:
            whole = np.empty((self._n_rows, self._reader.logits.n_vocab), np.float32)
            if self._n_rows:
                self._reader.device.read(self._reader.logits.at, whole)
            self._read = read_only(whole[:, : self._n])
        return self._read

    def row(self, row: int) -> np.ndarray:
        if self._read is not None:
            return super().row(row)
        if row not in self._rows:
            whole = np.empty(self._reader.logits.n_vocab, np.float32)
            self._reader.device.read(self._reader.logits.at.at(row * whole.nbytes), whole)
            self._rows[row] = read_only(whole[: self._n])
        return self._rows[row]

    def features(self, name: str) -> np.ndarray:
        if name not in self._features:
            return super().features(name)
        self.wait()
        return read_only(self._features[name].copy())

    def first(self, n: int) -> Pass:
        self.wait()
        begun = evolve(self._begun, wanted=RowRequest())
        narrowed = DevicePass(self._reader, self._fetched, self._row_slots, self._features, n, begun)
        narrowed._gathered, narrowed._seconds, narrowed._is_over = self._gathered, self._seconds, True
        return narrowed


class GatheredPass(ArrayPass):
    """Rows of several passes, in memory. A device computes their normalizers, in the same order of additions as of others."""

    def __init__(self, reader: RowReader, array: np.ndarray, features: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__(array, features)
        self._reader = reader

    def log_normalizer(self, row: int) -> float:
        return self._reader.normalizer(self._array[row])

    def first(self, n: int) -> Pass:
        return GatheredPass(self._reader, self._array[:, :n], self._features)
