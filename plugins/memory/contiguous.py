"""Memory manager `contiguous`: every slot is a run of positions 0 … n_ctx - 1, and undoing is forgetting the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.errors import CapacityError
from augury.hookspecs import hookimpl
from augury.interfaces import MemoryManager
from augury.types import Opened, StateSpec, Step

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Slot:
    """What one slot holds: `tokens[:n]` have their states in the cache."""

    def __init__(self, n_ctx: int) -> None:
        self.tokens = np.empty(n_ctx, np.int32)
        self.n = 0
        self.moves: tuple[tuple[int, int], ...] = ()  # that the next pass has to make
        self.is_free = True
        self.last_used = 0

    def n_shared(self, tokens: np.ndarray) -> int:
        """Length of the common prefix with `tokens`."""
        n = min(self.n, len(tokens))
        differs = self.tokens[:n] != tokens[:n]
        return int(differs.argmax()) if differs.any() else n


class Contiguous(MemoryManager):
    """Slots of a KV cache that grow at their end and are cut back there.

    A request goes to the free slot that shares the longest prefix with it; among equals to the one that was left unused for
    the longest time, so that prefixes worth keeping survive.
    """

    name = "contiguous"

    def __init__(self, options: Any, spec: StateSpec) -> None:
        super().__init__(options, spec)
        self._slots = [_Slot(spec.n_ctx) for _ in range(spec.n_slots)]
        self._clock = 0

    def open(self, tokens: np.ndarray, *, may_reuse: bool) -> Opened | None:
        """See `MemoryManager.open`."""
        free = [i for i, slot in enumerate(self._slots) if slot.is_free]
        if not free:
            return None
        if len(tokens) > self.spec.n_ctx:
            raise CapacityError(
                f"the prompt has {len(tokens)} tokens, a sequence can use {self.spec.n_ctx}; "
                "shorten it or load the model with a larger context (-c, n_ctx)"
            )
        shared = {i: self._slots[i].n_shared(tokens) if may_reuse else 0 for i in free}
        best = min(free, key=lambda i: (-shared[i], self._slots[i].last_used))
        n_reused = min(shared[best], len(tokens) - 1)
        self._slots[best].is_free = False
        self._slots[best].n = n_reused
        return Opened(best, n_reused)

    def room(self, slot: int) -> int:
        """See `MemoryManager.room`."""
        return self.spec.n_ctx - self._slots[slot].n

    def prepare(self, slot: int, n_new: int) -> Step:
        """See `MemoryManager.prepare`."""
        if n_new > self.room(slot):
            raise CapacityError(f"{n_new} more tokens do not fit: slot {slot} has room for {self.room(slot)}")
        return Step(mark=self._slots[slot].n, moves=self._slots[slot].moves)

    def commit(self, slot: int, step: Step, tokens: np.ndarray, path: np.ndarray | None = None) -> None:
        """See `MemoryManager.commit`."""
        state = self._slots[slot]
        state.n = step.mark + len(tokens)
        state.tokens[step.mark : state.n] = tokens
        places = range(len(tokens)) if path is None else path.tolist()
        state.moves = tuple((step.mark + place, step.mark + i) for i, place in enumerate(places) if place != i)

    def end(self, slot: int) -> None:
        """See `MemoryManager.end`."""
        self._clock += 1
        state = self._slots[slot]
        if state.moves:  # whether a last pass has made them is not known where it failed
            state.n, state.moves = state.moves[0][1], ()
        state.is_free = True
        state.last_used = self._clock

    @property
    def n_bytes(self) -> int:
        """See `MemoryManager.n_bytes`."""
        return self.spec.n_slots * self.spec.n_ctx * self.spec.n_bytes_per_position


@hookimpl
def augury_memory_managers() -> Iterable[type[MemoryManager]]:
    """Offer `contiguous`."""
    return [Contiguous]
