"""A pass whose logits kernels read in place, and programs for the logits of some tokens alone."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
from attrs import frozen

from augury.backends.numba.passes import groups_of, tokens_of
from augury.backends.numba_cpu.kernels import logits as kernels, step
from augury.backends.numba_cpu.kernels.logits import MultiplyLogits
from augury.backends.numba_cpu.kernels.struct import index, view
from augury.backends.numba_cpu.tape import Program
from augury.passes import ArrayPass

KERNELS = (kernels.best, kernels.sum_exponentials)
_FLOAT = 4


class BestTokens:
    """Finds the best tokens of rows of logits.

    It works in memory whose addresses are asked for once: NumPy takes 40 us to tell one after a pass that emptied the caches.
    """

    def __init__(self) -> None:
        # by k: ids (m, k), logits (m, k), rows (m,), and their addresses
        self._rooms: dict[int, tuple[np.ndarray, np.ndarray, memoryview, int, int, int]] = {}

    def find(
        self, place: tuple[int, int, int], rows: Sequence[int] | None, n_rows: int, n: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The ids and logits (n_rows, k) of the best of n tokens; `place` is the first three arguments of `kernels.best`.

        Without `rows` they are of all, and from a row whose best logit is infinite -1 is chosen.
        """
        if k not in self._rooms or len(self._rooms[k][0]) < n_rows:
            m = max(n_rows, 1)
            made = np.empty((m, k), np.int32), np.empty((m, k), np.float32), np.empty(m, np.int64)
            ids, values, wanted = (each.ctypes.data for each in made)
            self._rooms[k] = made[0], made[1], made[2].data.cast("B").cast("q"), ids, values, wanted
        best, logits, chosen, ids, values, wanted = self._rooms[k]
        if rows is not None:
            chosen[:n_rows] = array("q", rows)
        kernels.best(*place, 0 if rows is None else wanted, n_rows, n, k, ids, values)
        return best[:n_rows].copy(), logits[:n_rows].copy()


class KernelPass(ArrayPass):
    """Rows of logits whose best tokens and sums kernels find, with the results of `ArrayPass`."""

    def __init__(
        self,
        array: np.ndarray,
        width: int,
        features: Mapping[str, np.ndarray] | None = None,
        address: int = 0,
        best: BestTokens | None = None,
    ) -> None:
        """Take rows of logits (r, V) float32; `width` floats after the beginning of each row lie the largest of each block.

        Their address need not be asked for where it is known, and the memory to find best tokens in may be shared.
        """
        super().__init__(array, features)
        self._width, self._best = width, BestTokens() if best is None else best
        self._address = address or array.ctypes.data

    def argmax(self) -> np.ndarray:
        n_rows, n = self._array.shape
        return self._best.find(self._place(), None, n_rows, n, 1)[0][:, 0]

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        n_rows, n = self._array.shape
        k = min(k, n)
        if not 1 <= k <= kernels.MAX_BEST:
            return super().top_k(rows, k)
        of = rows.tolist()
        if of and not 0 <= min(of) <= max(of) < n_rows:
            raise IndexError(f"rows {of} of a pass that has {n_rows}")
        return self._best.find(self._place(), of, len(of), n, k)

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
        return KernelPass(self._array[:, :n], self._width, self._features, self._address, self._best)

    def _place(self) -> tuple[int, int, int]:
        """The address of the logits and of the largest of blocks, and floats from one row to the next."""
        return self._address, self._address + _FLOAT * self._width, self._array.strides[0] // _FLOAT


_PANEL_BYTES = 4 * step.PANEL_ROWS  # of logits
_ENTRIES = index(MultiplyLogits, "entries")


@frozen(eq=False)
class NarrowOutput:
    """The tape that computes the logits of a vocabulary."""

    program: Program  # as the whole output's
    tokens: np.ndarray  # (m,) int32, rising, of each logit: all rows of the panels

    @classmethod
    def of(cls, program: Program, vocabulary: np.ndarray, n_vocab: int) -> NarrowOutput:
        """That of a vocabulary (m,) int32, rising."""
        panels = groups_of(vocabulary, step.PANEL_ROWS).astype(np.int64)
        tokens = tokens_of(panels, step.PANEL_ROWS)
        return cls(_narrowed(program, panels), tokens[tokens < n_vocab])


def _narrowed(program: Program, panels: np.ndarray) -> Program:
    """The program with products of some panels (p,) int64, rising, alone; their logits follow one another."""
    is_first = np.diff(panels, prepend=-2) != 1
    places = np.flatnonzero(is_first)  # of the runs' first panels, among all
    firsts = panels[places]
    entries = np.repeat(program.logits, len(places))
    entries["first"], entries["n_panels"] = firsts, np.diff(places, append=len(panels))
    records = program.records.copy()
    (i,) = np.flatnonzero(records == program.logits.ctypes.data)
    record = view(records[i - _ENTRIES :], MultiplyLogits)
    record["entries"], record["n_panels"] = entries.ctypes.data, len(panels)
    return attrs.evolve(program, records=records, logits=entries, places=_PANEL_BYTES * (places - firsts))
