"""The updates of sequences' states in a pass, as kernels read them; see `kernels/inputs`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from augury.backends.numba_cuda.kernels import inputs
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.batch import Batch, StateUpdate, StateUpdates, Tree
from augury.errors import UnsupportedError


class SequenceUpdates:
    """Writes the runs of passes."""

    def __init__(self, n_aside: int) -> None:
        self._n_aside = n_aside

    def begin(self, batch: Batch, tree: Tree | None) -> None:
        """Take up a batch."""
        n = len(batch.tokens)
        self._batch, self._cells = batch, batch.positions if tree is None else tree.cells
        self._parents = None if tree is None else tree.parents
        self._is_drafted = np.zeros(n, bool) if batch.is_drafted is None else batch.is_drafted
        self._updates = StateUpdates(batch)
        self._last: dict[int, int] = {}  # by slot: the last of its tokens that was written

    def write_first(self, to: np.ndarray) -> Iterator[None]:
        """Write passes over no tokens, through all layers, that come before the batch, if there are some."""
        first = self._updates.before()
        for start in range(0, len(first), MAX_TOKENS):
            some, end = first[start : start + MAX_TOKENS], inputs.TABLE
            for run, (slot, update) in enumerate(some):
                end = self._write(to, run, end, slot, (0, 0, 0), update)
            to[inputs.N_TOKENS], to[inputs.N_ROWS], to[inputs.N_RUNS] = 0, 0, len(some)
            yield

    def write(self, to: np.ndarray, span: slice, end: int) -> None:
        """Write the runs of a pass over a span of the batch; from `end` on, the array is free.

        Raises:
            UnsupportedError: There is too little room.
        """
        slots = self._batch.slots[span]
        order = np.argsort(slots, kind="stable")
        to[inputs.ORDER : inputs.ORDER + len(order)] = order
        starts = np.flatnonzero(np.diff(slots[order], prepend=-1))
        for run, (first, stop) in enumerate(zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True)):
            places = order[first:stop] + span.start
            slot = int(slots[order[first]])
            n_certain = int((~self._is_drafted[places]).sum())
            end = self._write(to, run, end, slot, (first, len(places), n_certain), self._updates.take(slot, n_certain))
            end = self._write_paths(to, places.tolist(), slot, span.start, end)
        to[inputs.N_RUNS] = len(starts)

    def _write(self, to: np.ndarray, run: int, end: int, slot: int, tokens: tuple[int, int, int], update: StateUpdate) -> int:
        first, n, n_certain = tokens
        at = inputs.RUNS + run * inputs.RUN_FIELDS
        fields = (first, n, slot, n_certain, update.is_start, update.is_restored, update.save, end)
        to[at : at + inputs.RUN_FIELDS] = fields
        return _write_path(to, end, [-1 - cell % self._n_aside for cell in update.accepted])

    def _write_paths(self, to: np.ndarray, places: list[int], slot: int, start: int, end: int) -> int:
        """Write the paths of a run's drafted tokens that do not follow the token before them."""
        for place in places:
            before, self._last[slot] = self._last.get(slot, -1), place
            to[inputs.STATES + place - start] = 0 if self._is_drafted[place] else -1
            if not self._is_drafted[place]:
                continue
            above = before if self._parents is None else int(self._parents[place])
            is_certain = above < 0 or not self._is_drafted[above]
            is_next = above == before and before >= start
            if is_next or (is_certain and (before < 0 or not self._is_drafted[before])):
                continue
            path: list[int] = []
            while above >= 0 and self._is_drafted[above]:
                path.append(above - start if above >= start else -1 - int(self._cells[above]) % self._n_aside)
                above = self._above(above)
            to[inputs.STATES + place - start] = end
            end = _write_path(to, end, path[::-1])
        return end

    def _above(self, place: int) -> int:
        """The token of its slot that a token follows, or -1."""
        if self._parents is not None:
            return int(self._parents[place])
        earlier = np.flatnonzero(self._batch.slots[:place] == self._batch.slots[place])
        return int(earlier[-1]) if len(earlier) else -1


def _write_path(to: np.ndarray, at: int, path: list[int]) -> int:
    end = at + 1 + len(path)
    if end > inputs.SIZE:
        raise UnsupportedError("the paths of a tree are too long for one pass; draft fewer tokens")
    to[at:end] = [len(path), *path]
    return end
