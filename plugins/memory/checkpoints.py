"""Memory manager `checkpoints`: saves a state before drafted tokens, and goes back to it where they were rejected.

A backend that cannot keep drafted tokens aside takes them into its recurrent states. After a rejection the state is set back to
what was saved, and the accepted tokens are computed again, in front of the next pass::

    text a b c     draft x y     accepted x     sampled z
    pass           a b c | x y                  the state is saved where | stands
    next pass      x z | ...                    after it was restored: x is replayed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define

from augury.batch import Step
from augury.hookspecs import hookimpl
from augury.plugins.memory.contiguous import Contiguous

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from augury.interfaces import MemoryManager
    from augury.slot_states import SlotStates
    from augury.types import StateSpec

__all__ = ["Checkpoints"]


@define
class _Checkpoint:
    """Of one slot: how many of its tokens the saved state has taken in, None: none is saved, and what is to come of a pass."""

    n: int | None = None
    n_fed: int = 0  # tokens of the pass that goes on
    is_behind: bool = False  # the state has taken in other tokens than the slot keeps


class Checkpoints(Contiguous):
    """Slots whose recurrent states take in whatever is fed, and are set back where that was too much.

    A text that goes on differently from what the slot holds is shared as far as the checkpoint.
    """

    name = "checkpoints"
    replays_accepted = True

    def __init__(self, options: Any, spec: StateSpec, states: SlotStates) -> None:
        super().__init__(options, spec, states)
        self._checkpoints = [_Checkpoint() for _ in range(spec.n_slots)]

    @classmethod
    def suitable(cls, spec: StateSpec) -> str | None:
        """See `MemoryManager.suitable`."""
        return None if spec.n_bytes_per_sequence else "the model has no recurrent state to restore; take contiguous"

    def prepare(self, slot: int, n_certain: int, n_drafted: int) -> Step:
        """See `MemoryManager.prepare`."""
        step, state, checkpoint = super().prepare(slot, n_certain, n_drafted), self._slots[slot], self._checkpoints[slot]
        mark, replay = step.mark, ()
        restore = checkpoint.is_behind and mark > 0  # a pass that starts at 0 starts from an empty state
        if restore:
            assert checkpoint.n is not None
            mark, replay = checkpoint.n, tuple(state.tokens[checkpoint.n : state.n].tolist())
        checkpoint.n_fed = len(replay) + n_certain + n_drafted
        return Step(mark, replay=replay, restore=restore, save=len(replay) + n_certain if n_drafted else None)

    def commit(self, slot: int, step: Step, tokens: np.ndarray, path: np.ndarray | None = None) -> None:
        """See `MemoryManager.commit`."""
        super().commit(slot, step, tokens, path)
        state, checkpoint = self._slots[slot], self._checkpoints[slot]
        state.accepted = ()
        checkpoint.is_behind = len(tokens) < checkpoint.n_fed
        if step.save is not None:
            checkpoint.n = step.mark + step.save

    def _cut(self, slot: int, n: int) -> None:
        checkpoint = self._checkpoints[slot]
        checkpoint.is_behind = checkpoint.is_behind or n < self._slots[slot].n
        super()._cut(slot, n)
        if checkpoint.n is not None and checkpoint.n > n:
            checkpoint.n = None

    def _reusable(self, slot: int, n: int) -> int:
        state, saved = self._slots[slot], self._checkpoints[slot].n
        if n >= state.n:
            return state.n
        return saved if saved is not None and saved <= n else 0


@hookimpl
def augury_memory_managers() -> Iterable[type[MemoryManager]]:
    """Offer `checkpoints`."""
    return [Checkpoints]
