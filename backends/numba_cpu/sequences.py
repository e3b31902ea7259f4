"""What a pass does to the states of its sequences, run by run."""

from __future__ import annotations

import numpy as np
from attrs import define, field

from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.sequence import SequenceUpdate
from augury.backends.numba_cpu.kernels.struct import dtype, values
from augury.batch import Batch

_NO_PLACES = np.empty(0, np.int64)


@define
class _Slot:
    """What is left to be done for a slot of a batch, whose tokens may come in several passes."""

    accepted: list[int] = field(factory=list)  # places aside
    is_restored: bool = False
    save: int = -1
    before: np.ndarray = _NO_PLACES  # places aside of drafted tokens of this batch
    is_begun: bool = False


class SequenceUpdates:
    """Writes the records of `kernels/sequence.py`.

    Attributes:
        records: (MAX_TOKENS,) `SequenceUpdate` of the runs of a pass.
    """

    def __init__(self, n_aside: int) -> None:
        self.records = np.zeros(MAX_TOKENS, dtype(SequenceUpdate))
        self._n_aside = n_aside
        self._slots: dict[int, _Slot] = {}
        self._is_drafted: np.ndarray | None = None
        self._taken: list[np.ndarray] = []  # what records point to

    def begin(self, batch: Batch, is_drafted: np.ndarray | None) -> None:
        """Take up a batch; `is_drafted` is its own, sorted by slot."""
        self._slots, self._is_drafted = {}, is_drafted
        for slot, cell, _ in batch.accepted.tolist() if batch.accepted is not None else ():
            self._of(slot).accepted.append(cell % self._n_aside)
        for slot in batch.restores.tolist() if batch.restores is not None else ():
            self._of(slot).is_restored = True
        for slot, n in batch.saves.tolist() if batch.saves is not None else ():
            self._of(slot).save = n

    def first(self, batch: Batch) -> np.ndarray | None:
        """Runs (m, 4) of no tokens that go through all layers before the batch, with their records; None if there are none.

        A pass through some layers begins for all: with what it restores, takes in or saves before its own tokens.
        """
        touched = {slot for slot, left in self._slots.items() if left.accepted or left.is_restored or left.save == 0}
        if batch.layers is None:
            touched -= set(batch.slots.tolist())
        if not touched:
            return None
        starting = set(batch.slots[batch.positions == 0].tolist())
        runs = np.zeros((len(touched), 4), np.int64)
        runs[:, 2] = list(touched)
        self._taken.clear()
        for index, slot in enumerate(touched):
            left = self._of(slot)
            self._write(index, left, _NO_PLACES, 0, is_start=slot in starting, save=min(left.save, 0))
            left.save = -1 if left.save == 0 else left.save
        return runs

    def write(self, runs: np.ndarray, start: int, cells: np.ndarray, positions: np.ndarray) -> None:
        """Write the records of a pass.

        Args:
            runs: (m, 4), see `passes.runs_of`.
            start: Where the pass begins in the batch.
            cells: (n,) of its tokens.
            positions: (n,).
        """
        self._taken.clear()
        for index, (first, n, slot, _) in enumerate(runs.tolist()):
            left = self._of(slot)
            n_drafted = 0
            if self._is_drafted is not None:
                n_drafted = int(self._is_drafted[start + first : start + first + n].sum())
            n_certain = n - n_drafted
            is_start = not left.is_begun and positions[first] == 0
            is_saved = left.save <= n_certain
            self._write(index, left, left.before, n_certain, is_start=is_start, save=left.save if is_saved else -1)
            left.save = -1 if is_saved else left.save - n_certain
            if n_drafted:
                places = cells[first + n_certain : first + n] % self._n_aside
                left.before = np.concatenate([left.before, places])
            left.is_begun = True

    def _write(self, index: int, left: _Slot, before: np.ndarray, n_certain: int, *, is_start: bool, save: int) -> None:
        if is_start:
            left.accepted, left.is_restored = [], False
        taken = np.concatenate([np.array(left.accepted, np.int64), before.astype(np.int64)])
        self._taken.append(taken)
        update = SequenceUpdate(
            n_certain=n_certain,
            is_start=is_start,
            is_restored=left.is_restored,
            save=save,
            taken=taken.ctypes.data,
            n_accepted=len(left.accepted),
            n_before=len(before),
        )
        self.records[index] = values(update)
        left.accepted, left.is_restored = [], False

    def _of(self, slot: int) -> _Slot:
        return self._slots.setdefault(slot, _Slot())
