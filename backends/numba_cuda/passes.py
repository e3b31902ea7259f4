"""A pass whose logits are on a device: what comes to the host are best tokens, a few logits, sums; rarely whole rows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from attrs import evolve, frozen

from augury.backends.numba_cuda.device import Launch, Pointer
from augury.backends.numba_cuda.gpu import Gpu
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_ROWS, N_ROWS
from augury.backends.numba_cuda.kernels.sample import best_of_chunks, best_tokens, chunk_of, gather_logits, sums_of_chunks
from augury.passes import ArrayPass, Pass
from augury.types import read_only

MAX_K = 256  # best tokens that are looked for on the device; of more the row is read
MAX_GATHERED = 4096  # logits that are gathered there; of more ids of a row the row is read
_MAX_FORESEEN = 256  # of a slot: penalties look at 64 tokens, a constraint's mask is another set each time
KERNELS = (best_of_chunks, best_tokens, sums_of_chunks, gather_logits)
_K_STEP = 8  # the set grows with the window of penalties: it is not computed again for each token


@frozen(eq=False)
class Logits:
    """Rows of logits on a device, and the kernels that look through them.

    Attributes:
        inputs: The inputs of the pass.
        at: (MAX_ROWS, n_vocab).
        chunks: The best of the chunks of each row: `n_bytes` of them.
    """

    inputs: Pointer
    at: Pointer
    chunks: Pointer
    n_vocab: int

    n_bytes = 8 * MAX_ROWS * THREADS

    def n_chunks(self, n: int) -> int:
        """The number of chunks of the first n logits of a row."""
        return -(-n // chunk_of(self.n_vocab))

    def best_of_chunks(self, n_rows: int, n: int) -> Launch:
        """The launch that finds the best of every chunk of the first n logits."""
        ids = self.chunks.at(self.n_bytes // 2)
        sizes = (n, self.n_vocab, self.n_chunks(n), chunk_of(self.n_vocab))
        return Launch(best_of_chunks, (self.n_chunks(n), n_rows, 1), THREADS, (self.inputs, self.at, self.chunks, ids, *sizes))

    def best(self, n_rows: int, n: int, k: int, to: Pointer, values: Pointer) -> Launch:
        """The launch that then finds the k best of each row: ids (n_rows, k), and their logits."""
        places = (self.inputs, self.at, self.chunks, self.chunks.at(self.n_bytes // 2), to, values)
        sizes = (n, self.n_vocab, self.n_chunks(n), chunk_of(self.n_vocab))
        return Launch(best_tokens, (n_rows, 1, 1), THREADS, (*places, *sizes, k))

    def sums(self, n_rows: int, n: int, to: Pointer) -> Launch:
        """The launch that then finds the sums of every chunk, (n_rows, chunks) float64."""
        sizes = (n, self.n_vocab, self.n_chunks(n), chunk_of(self.n_vocab))
        return Launch(sums_of_chunks, (self.n_chunks(n), n_rows, 1), THREADS, (self.inputs, self.at, self.chunks, to, *sizes))


@frozen
class RowRequest:
    """The results for every row: so many of the best tokens, and the normaliser."""

    k: int = 0
    has_sums: bool = False


@frozen(eq=False)
class RowResult:
    """The results of r rows: ids and logits (r, k), and normalisers (r,) float64."""

    wanted: RowRequest
    ids: np.ndarray
    values: np.ndarray
    normalizers: np.ndarray


@frozen(eq=False)
class PendingRows:
    """A search that was begun for a pass in advance: tokens by row, rising, and the place of their logits."""

    wanted: RowRequest = RowRequest()
    ids: Mapping[int, np.ndarray] = MappingProxyType({})
    places: Mapping[int, int] = MappingProxyType({})


class RowReader:
    """Finds the results of all rows of a pass at once, and in advance, if the last pass needed them."""

    def __init__(self, device: Gpu, logits: Logits) -> None:
        self.device, self.logits = device, logits
        self.n_of_chunks = logits.n_vocab  # the first of a row's logits whose chunks' best ones are on the device
        self._asked = RowRequest()
        self._asked_ids: dict[int, np.ndarray] = {}  # by slot, the requests of the last pass with rows of it
        n_top, n_sums = 2 * MAX_ROWS * MAX_K, 2 * MAX_ROWS * logits.n_chunks(logits.n_vocab or 1)
        self._top, self._sums = (device.allocate(4 * n, "scratch") for n in (n_top, n_sums))
        self._places, self._gathered = (device.allocate(4 * MAX_GATHERED, "scratch") for _ in range(2))
        self._staged_top, self._staged_sums = device.staging(n_top), device.staging(n_sums)
        self._staged_chunks = device.staging(n_sums // 2)
        self._staged_places, self._staged_gathered = device.staging(MAX_GATHERED), device.staging(MAX_GATHERED)

    def begin_pass(self, row_slots: np.ndarray, tokens: np.ndarray, slots: np.ndarray) -> PendingRows:
        """Begin, after a pass was begun, to find the same as for the last one.

        Args:
            row_slots: (r,) of each row of logits.
            tokens: (n,) of the pass. Only these can enter the window of penalties.
            slots: (n,) of each token.
        """
        self.n_of_chunks, n_rows = self.logits.n_vocab, len(row_slots)
        if not n_rows:
            return PendingRows()
        wanted, self._asked = self._asked, RowRequest()
        self.begin(n_rows, self.logits.n_vocab, wanted)
        ids: dict[int, np.ndarray] = {}
        for slot in [each for each in self._asked_ids if each in row_slots]:
            wanted_ids = np.union1d(self._asked_ids.pop(slot), tokens[slots == slot])
            ids |= dict.fromkeys(np.flatnonzero(row_slots == slot).tolist(), wanted_ids)
        ends = np.cumsum([0, *(len(each) for each in ids.values())]).tolist()
        if not ids or ends[-1] > MAX_GATHERED:
            return PendingRows(wanted)
        self._begin_gather(np.concatenate([each + row * self.logits.n_vocab for row, each in ids.items()]))
        return PendingRows(wanted, ids, dict(zip(ids, ends, strict=False)))

    def begin(self, n_rows: int, n: int, wanted: RowRequest) -> None:
        """Begin to find the results of the first n tokens of each row."""
        logits, device = self.logits, self.device
        if not n_rows or wanted == RowRequest():
            return
        if n != self.n_of_chunks:
            device.launch(logits.best_of_chunks(n_rows, n))
            self.n_of_chunks = n
        if wanted.k:
            n_top = n_rows * wanted.k
            device.launch(logits.best(n_rows, n, wanted.k, self._top, self._top.at(4 * n_top)))
            device.fetch(self._top, self._staged_top[: 2 * n_top])
        if wanted.has_sums:
            n_sums = n_rows * logits.n_chunks(n)
            device.launch(logits.sums(n_rows, n, self._sums))
            device.fetch(self._sums, self._staged_sums[: 2 * n_sums])
            device.fetch(logits.chunks, self._staged_chunks[:n_sums])

    def found(self, n_rows: int, n: int, wanted: RowRequest) -> RowResult:
        """The results of a search, once it is over."""
        n_top = n_rows * wanted.k
        ids = self._staged_top[:n_top].reshape(n_rows, wanted.k).copy()
        values = self._staged_top[n_top : 2 * n_top].view(np.float32).reshape(n_rows, wanted.k).copy()
        values[ids < 0] = np.nan
        if not wanted.has_sums:
            return RowResult(wanted, ids, values, np.empty(0))
        n_sums = n_rows * self.logits.n_chunks(n)
        sums = self._staged_sums[: 2 * n_sums].view(np.float64).reshape(n_rows, -1)
        best = self._staged_chunks[:n_sums].view(np.float32).astype(np.float64).reshape(n_rows, -1)
        return RowResult(wanted, ids, values, _normalizers(sums, best))

    def normalizer(self, row: np.ndarray) -> float:
        """The normalizer of a row (n,) that has left the device."""
        self.device.write(self.logits.inputs.at(4 * N_ROWS), np.ones(1, np.int32))
        self.device.write(self.logits.at, row)
        self.n_of_chunks, wanted = -1, RowRequest(has_sums=True)
        self.begin(1, len(row), wanted)
        self.device.wait()
        return float(self.found(1, len(row), wanted).normalizers[0])

    def ask(self, n: int, wanted: RowRequest) -> RowRequest:
        """The search, among the first n tokens, that is enough for the request, and for the next pass's likely one."""
        k = min(max(wanted.k, self._asked.k), n, MAX_K)
        asked = RowRequest(min(-(-k // _K_STEP) * _K_STEP if k > 1 else k, n, MAX_K), wanted.has_sums or self._asked.has_sums)
        if n == self.logits.n_vocab:
            self._asked = asked
        return asked

    def ask_ids(self, slot: int, ids: np.ndarray) -> None:
        """The next pass of a slot may be asked for the logits of these tokens, too."""
        known = self._asked_ids.get(slot)
        ids = ids if known is None else np.union1d(known, ids)
        if len(ids) <= _MAX_FORESEEN:
            self._asked_ids[slot] = ids

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        """The logits (m,) of some tokens of a row, MAX_GATHERED at most."""
        self._begin_gather(ids + row * self.logits.n_vocab)
        self.device.wait()
        return self.gathered(len(ids))

    def _begin_gather(self, places: np.ndarray) -> None:
        n = len(places)
        self._staged_places[:n] = places
        self.device.send(self._staged_places[:n], self._places)
        arguments = (self.logits.at, self._places, self._gathered, n)
        self.device.launch(Launch(gather_logits, (-(-n // WARP), 1, 1), WARP, arguments))
        self.device.fetch(self._gathered, self._staged_gathered[:n])

    def gathered(self, n: int) -> np.ndarray:
        """The first n logits that were gathered last, once that is over."""
        return self._staged_gathered[:n].view(np.float32).copy()


def _normalizers(sums: np.ndarray, best: np.ndarray) -> np.ndarray:
    """log(sum(exp(row))) of rows, of whose chunks (r, c) these are the best logits and sums relative to them."""
    with np.errstate(invalid="ignore"):  # where all logits are -inf there is none
        largest = best.max(axis=1, keepdims=True)
        normalizers: np.ndarray = largest[:, 0] + np.log((sums * np.exp(best - largest)).sum(axis=1))
    return normalizers


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
