"""What an engine is doing and has done, for metrics: `Tally` counts on its thread, `EngineStats` is what others read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs
from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Sequence as Items

    from augury.engine.request import Request
    from augury.engine.sequence import Sequence
    from augury.types import Round

__all__ = ["Counts", "EngineStats", "SlotStats", "Tally"]


@frozen
class SlotStats:
    """One slot, at the end of the last round."""

    slot: int
    state: Literal["idle", "prompt", "decoding", "evaluating"] = "idle"
    id: str | None = None  # of its request
    n_prompt: int = 0  # of the request
    n_held: int = 0  # tokens of the request whose states the slot holds
    n_emitted: int = 0
    drafters: tuple[str, ...] = ()  # of the request, by priority


@frozen
class Counts:
    """Since the engine was loaded; evaluations are not counted."""

    n_finished: int = 0  # requests that came to their end
    n_failed: int = 0
    n_cancelled: int = 0
    n_reused: int = 0  # prompt tokens that slots still held
    n_prompt: int = 0  # prompt tokens processed
    n_emitted: int = 0
    n_drafted: int = 0  # drafted tokens that were verified
    n_accepted: int = 0
    n_rounds: int = 0  # passes of the target
    draft_s: float = 0.0
    forward_s: float = 0.0  # in the target's passes


@frozen
class EngineStats:
    """What `Engine.stats` gives."""

    slots: tuple[SlotStats, ...]
    n_waiting: int  # requests without a slot
    counts: Counts

    @property
    def n_running(self) -> int:
        """Requests that have a slot."""
        return sum(slot.id is not None for slot in self.slots)


class Tally:
    """Counts on the engine's thread, which publishes what may be read by any: values that are never changed again."""

    def __init__(self, n_slots: int) -> None:
        self._counts = attrs.asdict(Counts())
        self._n_slots = n_slots
        self._seen: tuple[dict[str, Any], tuple[tuple[int, Request, int, int], ...]] = (self._counts.copy(), ())

    def started(self, n_reused: int) -> None:
        """A request has a slot, which holds so many tokens of its prompt."""
        self._add(n_reused=n_reused)

    def passed(self, seen: Round, n_prompt: int) -> None:
        """A round is over, with so many tokens of prompts in its pass."""
        self._add(
            n_rounds=1,
            n_prompt=n_prompt,
            n_emitted=seen.n_emitted,
            n_drafted=seen.n_drafted,
            n_accepted=seen.n_accepted,
            draft_s=seen.draft_s,
            forward_s=seen.forward_s,
        )

    def ended(self, sequence: Sequence, error: BaseException | None) -> None:
        """A request is over."""
        if error is not None or sequence.error is not None:
            self._add(n_failed=1)
        elif sequence.finish_reason is None:
            self._add(n_cancelled=1)
        else:
            self._add(n_finished=1)

    def _add(self, **more: float) -> None:
        for name, n in more.items():
            self._counts[name] += n

    def publish(self, running: Items[Sequence]) -> None:
        """Let others see what was counted, and who runs."""
        slots = tuple((each.slot, each.request, each.n_kept, each.n_emitted) for each in running)
        self._seen = self._counts.copy(), slots

    def stats(self, n_waiting: int, evaluating: Collection[int]) -> EngineStats:
        """What was published last. Any thread may ask."""
        counts, running = self._seen
        slots = [SlotStats(slot, "evaluating" if slot in evaluating else "idle") for slot in range(self._n_slots)]
        for slot, request, n_held, n_emitted in running:
            drafters = tuple(member.name for member in request.speculation.members)
            state: Literal["prompt", "decoding"] = "decoding" if n_emitted else "prompt"
            slots[slot] = SlotStats(slot, state, request.id, len(request.prompt), n_held, n_emitted, drafters)
        return EngineStats(tuple(slots), n_waiting, Counts(**counts))
