"""The memory of slots: caches of positions, see `Block.cached`; states of sequences, see `Block.states`, and their updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from augury.backends.numba.lowering import SequenceStates
from augury.backends.numba_cuda.device import Device, Launch, Pointer, Region
from augury.backends.numba_cuda.kernels import inputs, recurrence
from augury.backends.numba_cuda.kernels.cells import F32, TYPES, halves_of, move_cells
from augury.backends.numba_cuda.kernels.convolution import MAX_SIZE
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.batch import Batch, StateUpdate, StateUpdates, Tree
from augury.blocks import SequenceState
from augury.errors import UnsupportedError
from augury.types import ModelOptions


class Cache:
    """Heads of `dim` values of every position, in cells that `Batch` names: planes (slots, heads, n_ctx, halves).

    They are kept as an option says, or as "f32".

    Attributes:
        n_heads: How many heads a cell has.
        dim: Values of each.
        kept_as: The cache type.
        number: Its number in kernels.
        codes: The plane that has codes, or all there is.
        halves: The plane of codes' scales, or of all values.
    """

    codes: Pointer
    halves: Pointer

    def __init__(self, option: str, n_heads: int, dim: int, options: ModelOptions) -> None:
        self.kept_as: str = getattr(options, option, option)
        if self.kept_as not in TYPES and option != "f32":
            known = ", ".join(TYPES)
            raise UnsupportedError(
                f"{option} is {self.kept_as!r}, which backend numba-cuda does not keep; choose one of {known}"
            )
        self.number = TYPES.get(self.kept_as, F32)
        self.n_heads, self.dim, self._n_ctx, self._n_slots = n_heads, dim, options.n_ctx, options.n_slots
        self._n_halves = halves_of(self.kept_as, dim)
        self._planes: list[tuple[Pointer, int]] = []

    @property
    def bytes_per_position(self) -> int:
        """Bytes of one position of one slot."""
        return 2 * self.n_heads * sum(self._n_halves)

    def place(self, device: Device) -> None:
        """Allocate it."""
        n_cells = self._n_slots * self.n_heads * self._n_ctx
        self._planes = [(device.allocate(2 * n_cells * n, "KV cache"), n) for n in self._n_halves]
        self.codes, self.halves = self._planes[0][0], self._planes[-1][0]

    def slot_memory(self, slot: int, n: int, start: int = 0) -> Sequence[Region]:
        """The memory of a slot's first n positions, or of those from `start` on."""
        return [
            (plane.at(2 * n_halves * (self._n_ctx * (slot * self.n_heads + head) + start)), 2 * n_halves * (n - start))
            for plane, n_halves in self._planes
            for head in range(self.n_heads)
        ]

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """The launches that copy cells: n moves (n, 3) of slot, from, to."""
        given = {"moves": moves, "n_moves": n, "n_heads": self.n_heads, "length": self._n_ctx}
        return [
            Launch.of(move_cells, (-(-self.n_heads * size // WARP),), WARP, plane, n_halves=size, **given)
            for plane, size in self._planes
        ]


class State(SequenceStates[Pointer]):
    """A state of every slot, of the shapes that kernels compute."""

    def __init__(self, state: SequenceState, options: ModelOptions) -> None:
        is_matrix = len(state.shape) == 3
        n_added = state.shape[0] * state.shape[2] if is_matrix else 0
        super().__init__(options, 4 * state.size, (4 * (state.n_fed - n_added), 4 * n_added))
        if is_matrix and (state.shape[1] > recurrence.MAX_ROWS or state.shape[2] % recurrence.COLUMNS):
            expected = f"keys of {recurrence.MAX_ROWS} at most and values in fours"
            raise UnsupportedError(f"a state of {state.shape}, backend numba-cuda computes {expected}; choose another one")
        if not is_matrix and not 0 < state.shape[0] < MAX_SIZE:
            found = f"a convolution of {state.shape[0] + 1} inputs"
            raise UnsupportedError(f"{found}, backend numba-cuda computes 2 to {MAX_SIZE}; choose another one")

    def slot_memory(self, slot: int) -> Region:
        """A slot's state."""
        return self.values.at(slot * self.n_bytes), self.n_bytes


class SequenceUpdates:
    """Writes the updates of sequences' states in a pass, run by run, as kernels read them; see `kernels/inputs`."""

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
