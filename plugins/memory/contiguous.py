"""Memory manager `contiguous`: every slot is a run of positions 0 … n_ctx - 1, and undoing is forgetting the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.batch import Step
from augury.errors import CapacityError
from augury.hookspecs import hookimpl
from augury.interfaces import MemoryManager
from augury.types import Opened, StateSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from augury.slot_states import SlotStates


class _Slot:
    """What one slot holds: `tokens[:n]`, of which `accepted` have yet to be taken in, or to come to their places."""

    def __init__(self, n_ctx: int) -> None:
        self.tokens = np.empty(n_ctx, np.int32)
        self.n = 0
        self.accepted: tuple[tuple[int, int], ...] = ()  # cell, position; for the next pass
        self.n_certain: int | None = None  # of a pass that was prepared and not committed
        self.is_free = True
        self.last_used = 0

    def n_shared(self, tokens: np.ndarray) -> int:
        """Length of the common prefix with `tokens`."""
        n = min(self.n, len(tokens))
        differs = self.tokens[:n] != tokens[:n]
        return int(differs.argmax()) if differs.any() else n


class Contiguous(MemoryManager):
    """Slots that grow at their end and are cut back there; drafted tokens are kept aside until they are accepted.

    A request goes to the free slot that shares the longest prefix with it; among equals to the one that was left unused for
    the longest time, so that prefixes worth keeping survive. A recurrent state cannot be cut: it is shared as a whole or not.
    """

    name = "contiguous"

    def __init__(self, options: Any, spec: StateSpec, states: SlotStates) -> None:
        super().__init__(options, spec, states)
        self._slots = [_Slot(spec.n_ctx) for _ in range(spec.n_slots)]
        self._has_sequence_state = spec.n_bytes_per_sequence > 0
        self._clock = 0

    @classmethod
    def suitable(cls, spec: StateSpec) -> str | None:
        """See `MemoryManager.suitable`."""
        keeps = not spec.n_bytes_per_sequence or spec.can_keep_aside
        return None if keeps else "the model takes drafted tokens into its recurrent state; take checkpoints"

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
        reusable = {i: self._reusable(i, self._slots[i].n_shared(tokens[:-1])) if may_reuse else 0 for i in free}
        best = min(free, key=lambda i: (-reusable[i], self._slots[i].last_used))
        self._slots[best].is_free = False
        self._cut(best, reusable[best])
        return Opened(best, reusable[best])

    def room(self, slot: int) -> int:
        """See `MemoryManager.room`."""
        return self.spec.n_ctx - self._slots[slot].n

    def prepare(self, slot: int, n_certain: int, n_drafted: int) -> Step:
        """See `MemoryManager.prepare`."""
        state = self._slots[slot]
        if n_certain + n_drafted > self.spec.n_ctx - state.n:
            raise CapacityError(
                f"{n_certain + n_drafted} more tokens do not fit: slot {slot} has room for {self.spec.n_ctx - state.n}"
            )
        state.n_certain = n_certain
        return Step(mark=state.n, accepted=state.accepted, keeps_aside=self._has_sequence_state)

    def commit(self, slot: int, step: Step, tokens: np.ndarray, path: np.ndarray | None = None) -> None:
        """See `MemoryManager.commit`."""
        state = self._slots[slot]
        state.n = step.mark + len(tokens)
        state.tokens[step.mark : state.n] = tokens
        if self._has_sequence_state or path is not None:
            assert state.n_certain is not None
            places = enumerate(range(len(tokens)) if path is None else path.tolist())
            named = state.n_certain if self._has_sequence_state else len(tokens)  # from here on, whether it moves or not
            state.accepted = tuple((step.mark + cell, step.mark + i) for i, cell in places if cell != i or i >= named)
        else:
            state.accepted = ()
        state.n_certain = None

    def truncate(self, slot: int, n: int) -> int:
        """See `MemoryManager.truncate`."""
        self._cut(slot, self._reusable(slot, n))
        return self._slots[slot].n

    def end(self, slot: int) -> None:
        """See `MemoryManager.end`."""
        self._clock += 1
        state = self._slots[slot]
        if state.n_certain is not None:  # its last pass failed: it may have taken in what was accepted, or not
            self._cut(slot, 0 if self._has_sequence_state else min((at for _, at in state.accepted), default=state.n))
            state.n_certain = None
        state.is_free = True
        state.last_used = self._clock

    def _cut(self, slot: int, n: int) -> None:
        """Forget everything from position n on."""
        state = self._slots[slot]
        if n < state.n:
            state.n, state.accepted = n, tuple(pair for pair in state.accepted if pair[1] < n)

    def _reusable(self, slot: int, n: int) -> int:
        """How much can be kept of a slot of which n tokens are wanted."""
        state = self._slots[slot]
        n = min(n, state.n)
        return 0 if self._has_sequence_state and n < state.n - len(state.accepted) else n

    @property
    def n_bytes(self) -> int:
        """See `MemoryManager.n_bytes`."""
        return self.spec.n_slots * (self.spec.n_ctx * self.spec.n_bytes_per_position + self.spec.n_bytes_per_sequence)


@hookimpl
def augury_memory_managers() -> Iterable[type[MemoryManager]]:
    """Offer `contiguous`."""
    return [Contiguous]


@hookimpl(trylast=True)
def augury_choose(kind: str, names: Sequence[str]) -> str | None:
    """Recommend `contiguous`."""
    return "contiguous" if kind == "memory" and "contiguous" in names else None
