"""The updates of sequences' states in a pass, run by run."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.struct import dtype, values
from augury.backends.numba_cpu.kernels.team import SequenceUpdate
from augury.batch import Batch, StateUpdate, StateUpdates

_NO_PLACES = np.empty(0, np.int64)


class SequenceUpdates:
    """Writes the `SequenceUpdate`s of `kernels/team.py`.

    Attributes:
        records: (MAX_TOKENS,) `SequenceUpdate` of the runs of a pass.
    """

    def __init__(self, n_aside: int) -> None:
        self.records = np.zeros(MAX_TOKENS, dtype(SequenceUpdate))
        self._n_aside = n_aside
        self._taken: list[np.ndarray] = []  # targets of records' pointers

    def begin(self, batch: Batch, is_drafted: np.ndarray | None) -> np.ndarray | None:
        """Take up a batch; `is_drafted` is its own, sorted by slot.

        Returns:
            Runs (m, 4) of no tokens that go through all layers before the batch, with their records; None if there are none.
        """
        self._updates, self._is_drafted = StateUpdates(batch), is_drafted
        self._before: dict[int, np.ndarray] = {}  # by slot: places aside of drafted tokens of this batch
        if not (first := self._updates.before()):
            return None
        self._taken.clear()
        for index, (_, update) in enumerate(first):
            self._write(index, update, _NO_PLACES, 0)
        return np.array([(0, 0, slot, 0) for slot, _ in first], np.int64)

    def write(self, runs: np.ndarray, start: int, cells: np.ndarray) -> None:
        """Write the records of a pass.

        Args:
            runs: (m, 4), see `passes.runs_of`.
            start: Where the pass begins in the batch.
            cells: (n,) of its tokens.
        """
        self._taken.clear()
        for index, (first, n, slot, _) in enumerate(runs.tolist()):
            n_drafted = 0
            if self._is_drafted is not None:
                n_drafted = int(self._is_drafted[start + first : start + first + n].sum())
            n_certain, before = n - n_drafted, self._before.get(slot, _NO_PLACES)
            self._write(index, self._updates.take(slot, n_certain), before, n_certain)
            if n_drafted:
                self._before[slot] = np.concatenate([before, cells[first + n_certain : first + n] % self._n_aside])

    def _write(self, index: int, update: StateUpdate, before: np.ndarray, n_certain: int) -> None:
        taken = np.concatenate([np.array(update.accepted, np.int64) % self._n_aside, before.astype(np.int64)])
        self._taken.append(taken)
        self.records[index] = values(
            SequenceUpdate(
                n_certain=n_certain,
                is_start=update.is_start,
                is_restored=update.is_restored,
                save=update.save,
                taken=taken.ctypes.data,
                n_accepted=len(update.accepted),
                n_before=len(before),
            )
        )
