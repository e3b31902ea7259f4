"""Memory manager `contiguous`: every slot is a run of positions 0 … n_ctx - 1, and undoing is forgetting the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.batch import Reservation
from augury.errors import CapacityError, UnsupportedError
from augury.interfaces import MemoryManager, Opened
from augury.slot_states import join_parts, split_parts
from augury.types import StateSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.slot_states import SlotStates


class SlotText:
    """The text of one slot: `tokens[:n]`, of which `accepted` have yet to be taken in, or to come to their places."""

    def __init__(self, n_ctx: int) -> None:
        self.tokens = np.empty(n_ctx, np.int32)
        self.n = 0
        self.accepted: tuple[tuple[int, int], ...] = ()  # cell, position; for the next pass
        self.n_certain: int | None = None  # of a pass that was prepared and not committed
        self.is_free = True
        self.is_private = False  # others may not reuse it
        self.last_used = 0
        self.variant = ""  # of its states

    def n_shared(self, tokens: np.ndarray, variant: str) -> int:
        """Length of the common prefix with `tokens` that others of a variant may reuse."""
        n = 0 if self.is_private or self.variant != variant else min(self.n, len(tokens))
        differs = self.tokens[:n] != tokens[:n]
        return int(differs.argmax()) if differs.any() else n


class Contiguous(MemoryManager):
    """KV caches that grow at their end and are cut back there.

    A request goes to the free slot of which it can reuse most; among equals to the one that was left unused for the longest
    time, so that prefixes worth keeping survive. Where a slot in use holds more of its prompt, that is copied.
    """

    name = "contiguous"

    def __init__(self, options: Any, spec: StateSpec, states: SlotStates) -> None:
        super().__init__(options, spec, states)
        self._slots = [SlotText(spec.n_ctx) for _ in range(spec.n_slots)]
        self._clock = 0
        self._can_share = True  # whether the backend can copy slots; known once it was asked to

    @classmethod
    def suitable(cls, spec: StateSpec) -> str | None:
        return "the model has a recurrent state, which cannot be cut; take checkpoints" if spec.n_bytes_per_sequence else None

    def open(self, tokens: np.ndarray, *, may_reuse: bool, slot: int | None = None, variant: str = "") -> Opened | None:
        free = [i for i, each in enumerate(self._slots) if each.is_free and slot in (None, i)]
        if not free:
            return None
        if len(tokens) > self.spec.n_ctx:
            raise CapacityError(
                f"the prompt has {len(tokens)} tokens, which exceeds the available context size of {self.spec.n_ctx}; "
                "shorten it or load the model with a larger context (-c, n_ctx)"
            )
        shared = [each.n_shared(tokens[:-1], variant) if may_reuse else 0 for each in self._slots]
        reusable = {i: self._reusable(i, shared[i]) for i in free}
        best = min(free, key=lambda i: (-reusable[i], self._slots[i].last_used))
        n = reusable[best]
        shareable = [0 if each.is_free else self._shareable(i, shared[i]) for i, each in enumerate(self._slots)]
        if max(shareable) > n and self._can_share:
            best = min(free, key=lambda i: self._slots[i].last_used)
            n = self._share(shareable.index(max(shareable)), best, max(shareable))
        self._cut(best, n)
        self._slots[best].is_free, self._slots[best].is_private = False, not may_reuse
        self._slots[best].variant = variant
        return Opened(best, n, max(shared))

    def room(self, slot: int) -> int:
        return self.spec.n_ctx - self._slots[slot].n

    def prepare(self, slot: int, n_certain: int, n_drafted: int) -> Reservation:
        state = self._slots[slot]
        if n_certain + n_drafted > self.spec.n_ctx - state.n:
            raise CapacityError(
                f"{n_certain + n_drafted} more tokens do not fit: slot {slot} has room for {self.spec.n_ctx - state.n}"
            )
        state.n_certain = n_certain
        return Reservation(mark=state.n, accepted=state.accepted)

    def commit(self, slot: int, reservation: Reservation, tokens: np.ndarray, path: np.ndarray | None = None) -> None:
        state = self._slots[slot]
        state.n = reservation.mark + len(tokens)
        state.tokens[reservation.mark : state.n] = tokens
        state.accepted = ()
        if path is not None:
            moved = [(cell, i) for i, cell in enumerate(path.tolist()) if cell != i]
            state.accepted = tuple([(reservation.mark + cell, reservation.mark + i) for cell, i in moved])
        state.n_certain = None

    def truncate(self, slot: int, n: int) -> int:
        self._cut(slot, self._reusable(slot, n))
        return self._slots[slot].n

    def end(self, slot: int) -> None:
        self._clock += 1
        state = self._slots[slot]
        if state.n_certain is not None:
            self._after_failure(slot)
            state.n_certain = None
        if state.is_private:
            self._cut(slot, 0)
        state.is_free, state.is_private = True, False
        state.last_used = self._clock

    def save(self, slot: int) -> bytes:
        n = self._n_in_place(slot)
        text, variant = self._slots[slot].tokens[:n].tobytes(), self._slots[slot].variant.encode()
        return join_parts([text, self.states.save(slot, n), variant])

    def restore(self, slot: int, data: bytes) -> int:
        state, (text, states, variant, *_) = self._slots[slot], (*split_parts(data), b"", b"", b"")
        tokens = np.frombuffer(text[: len(text) // 4 * 4], np.int32)
        if not state.is_free or len(tokens) > self.spec.n_ctx:
            room = f"has {self.spec.n_ctx} positions; load the model with a larger context (-c, n_ctx)"
            why = room if state.is_free else "is in use; wait for its request, or name another slot"
            raise CapacityError(f"a saved text of {len(tokens)} tokens is to be restored to slot {slot}, which {why}")
        self.states.restore(slot, states)
        self._clock += 1
        state.tokens[: len(tokens)], state.n, state.accepted, state.last_used = tokens, len(tokens), (), self._clock
        state.variant = variant.decode()
        return len(tokens)

    def text(self, slot: int) -> np.ndarray:
        state = self._slots[slot]
        return state.tokens[: min((at for _, at in state.accepted), default=state.n)]

    def adopt(self, slot: int, tokens: np.ndarray, copies: Mapping[int, bytes]) -> None:  # noqa: ARG002 - it cuts
        state = self._slots[slot]
        state.tokens[: len(tokens)], state.n, state.accepted = tokens, len(tokens), ()

    def _n_in_place(self, slot: int) -> int:
        return len(self.text(slot))

    def _reusable(self, slot: int, n: int) -> int:
        """How much can be kept of a slot of which n tokens are wanted."""
        return min(n, self._slots[slot].n)

    def _shareable(self, slot: int, n: int) -> int:
        """How much can be copied of a slot in use of which n tokens are wanted."""
        return min(n, self._n_in_place(slot))

    def _share(self, source: int, target: int, n: int) -> int:
        """Let a free slot hold the first n tokens of another; returns how many it holds then."""
        self._cut(target, 0)
        try:
            self.states.copy(source, target, n)
        except UnsupportedError:
            self._can_share = False
            return 0
        state = self._slots[target]
        state.tokens[:n], state.n, state.accepted = self._slots[source].tokens[:n], n, ()
        return n

    def _cut(self, slot: int, n: int) -> None:
        """Forget everything from position n on, which can be kept up to there."""
        state = self._slots[slot]
        if n < state.n:
            state.n, state.accepted = n, tuple(pair for pair in state.accepted if pair[1] < n)

    def _after_failure(self, slot: int) -> None:
        """Forget the positions that a slot's last pass may have changed: it failed, with the accepted tokens moved or not."""
        self._cut(slot, self._n_in_place(slot))

    @property
    def n_bytes(self) -> int:
        return self.spec.n_slots * self.spec.n_ctx * self.spec.n_bytes_per_position
