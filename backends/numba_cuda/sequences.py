"""What a pass does to the states of its sequences, as kernels are told it; see `kernels/inputs`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from attrs import Factory, define

from augury.backends.numba_cuda.kernels import inputs
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.batch import Batch, Tree
from augury.errors import UnsupportedError


@define
class _Slot:
    """What is left to be done for a slot of a batch, whose tokens may come in several passes."""

    accepted: list[int] = Factory(list)  # places aside
    is_restored: bool = False
    save: int = -1
    is_begun: bool = False
    last: int = -1  # the last of its tokens that was written


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
        self._slots: defaultdict[int, _Slot] = defaultdict(_Slot)
        for slot, cell, _ in batch.accepted.tolist() if batch.accepted is not None else ():
            self._slots[slot].accepted.append(cell % self._n_aside)
        for slot in batch.restores.tolist() if batch.restores is not None else ():
            self._slots[slot].is_restored = True
        for slot, n_before in batch.saves.tolist() if batch.saves is not None else ():
            self._slots[slot].save = n_before

    def write_first(self, to: np.ndarray) -> Iterator[None]:
        """Write passes over no tokens, through all layers, that come before the batch, if there are some.

        A pass through some layers begins for all: with what it restores, takes in or saves before its own tokens.
        """
        touched = {slot for slot, left in self._slots.items() if left.accepted or left.is_restored or left.save == 0}
        if self._batch.layers is None:
            touched -= set(self._batch.slots.tolist())
        starting = set(self._batch.slots[self._batch.positions == 0].tolist())
        some = sorted(touched)
        for start in range(0, len(some), MAX_TOKENS):
            end = inputs.TABLE
            for run, slot in enumerate(some[start : start + MAX_TOKENS]):
                left = self._slots[slot]
                end = self._write(
                    to, run, end, slot, (0, 0, 0), left, is_start=slot in starting, save=0 if left.save == 0 else -1
                )
                left.save = -1 if left.save == 0 else left.save
            to[inputs.N_TOKENS], to[inputs.N_ROWS], to[inputs.N_RUNS] = 0, 0, len(some[start : start + MAX_TOKENS])
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
            left = self._slots[slot]
            n_certain = int((~self._is_drafted[places]).sum())
            is_start = not left.is_begun and self._batch.positions[places[0]] == 0
            is_saved = left.save <= n_certain
            save = left.save if is_saved else -1
            end = self._write(to, run, end, slot, (first, len(places), n_certain), left, is_start=bool(is_start), save=save)
            left.save = -1 if is_saved else left.save - n_certain
            left.is_begun = True
            end = self._write_paths(to, places.tolist(), left, span.start, end)
        to[inputs.N_RUNS] = len(starts)

    def _write(
        self,
        to: np.ndarray,
        run: int,
        end: int,
        slot: int,
        tokens: tuple[int, int, int],
        left: _Slot,
        *,
        is_start: bool,
        save: int,
    ) -> int:
        first, n, n_certain = tokens
        if is_start:
            left.accepted, left.is_restored = [], False
        at = inputs.RUNS + run * inputs.RUN_FIELDS
        to[at : at + inputs.RUN_FIELDS] = (first, n, slot, n_certain, is_start, left.is_restored, save, end)
        end = _write_path(to, end, [-1 - place for place in left.accepted])
        left.accepted, left.is_restored = [], False
        return end

    def _write_paths(self, to: np.ndarray, places: list[int], left: _Slot, start: int, end: int) -> int:
        """Write the paths of a run's drafted tokens that do not follow the token before them."""
        for place in places:
            before, left.last = left.last, place
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
