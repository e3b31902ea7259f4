"""Counts what one request did, and says it in a `Summary`."""

from __future__ import annotations

from copy import deepcopy
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs
from attrs import Factory, define

from augury.types import DrafterStats, Summary, Timings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.types import Verdict

__all__ = ["Recorder"]


@define
class _Counts:
    """Of one drafter."""

    calls: int = 0
    drafts: int = 0
    used: int = 0
    drafted: int = 0
    accepted: int = 0
    offered_by_position: list[int] = Factory(list)
    accepted_by_position: list[int] = Factory(list)
    begin_s: float = 0.0
    draft_s: float = 0.0
    accept_s: float = 0.0
    failed: str | None = None

    def verified(self, verdict: Verdict, depth: int) -> None:
        """A draft, `depth` tokens deep, was verified."""
        self.used += 1
        self.drafted += verdict.n_offered
        self.accepted += verdict.n_accepted
        for counts, n in ((self.offered_by_position, depth), (self.accepted_by_position, verdict.n_accepted)):
            counts.extend([0] * (depth - len(counts)))
            for position in range(n):
                counts[position] += 1

    def stats(self) -> DrafterStats:
        """What was counted."""
        counted = attrs.asdict(self, recurse=False)
        lists = ("offered_by_position", "accepted_by_position")
        return DrafterStats(**counted | {name: tuple(counted[name]) for name in lists})


class Recorder:
    """Mutable counters of one request; only rounds that are over are counted, so there is nothing to roll back."""

    def __init__(self, request: str, drafters: Sequence[str], effective: dict[str, Any]) -> None:
        self._request = request
        self.n_prompt = 0
        self.n_reused = 0
        self.n_emitted = 0
        self.n_rounds = 0
        self._counts = {name: _Counts() for name in drafters}
        self._draft_lengths: list[int] = []
        self._effective = effective
        self._n_processed = 0
        self._prompt_s = self._first_token_at = self._last_token_at = 0.0

    def begun(self, drafter: str, seconds: float) -> None:
        """A drafter was at the request's prompt for so long until now, which is prompt time."""
        self._first_token_at = self._last_token_at = perf_counter()
        self._prompt_s += seconds
        self._counts[drafter].begin_s += seconds

    def failed(self, drafter: str, told: str) -> None:
        """A drafter failed, as `told` says, and is left out of the rest of the request."""
        self._counts[drafter].failed = told

    def start(self, n_prompt: int, n_reused: int) -> None:
        """The request has a slot, which holds `n_reused` of its `n_prompt` tokens."""
        self.n_prompt, self.n_reused = n_prompt, n_reused

    def chunk(self, n_tokens: int, seconds: float) -> None:
        """So many tokens of the prompt were in a pass, of which they took `seconds`."""
        self._n_processed += n_tokens
        self._prompt_s += seconds

    def first_token(self) -> None:
        """The prompt is processed and its token emitted: the prompt's last pass is a round."""
        self.n_rounds += 1
        self.n_emitted += 1
        self._first_token_at = self._last_token_at = perf_counter()

    def drafted(self, drafter: str, n_proposed: int, seconds: float) -> None:
        """A drafter was asked, proposed so many tokens, and took this request's share of `seconds`."""
        counts = self._counts[drafter]
        counts.calls += 1
        counts.drafts += n_proposed > 0
        counts.draft_s += seconds

    def teacher_forced(self, drafter: str, seconds: float) -> None:
        """A drafter said for so long what it would have drafted."""
        self._counts[drafter].draft_s += seconds

    def round(self, n_offered: int, n_emitted: int) -> None:
        """A round is over, in which `n_offered` drafted tokens were verified."""
        self.n_rounds += 1
        self.n_emitted += n_emitted
        self._draft_lengths.append(n_offered)
        self._last_token_at = perf_counter()

    def verified(self, drafter: str, verdict: Verdict, depth: int) -> None:
        """A drafter's proposal, `depth` tokens deep, was verified."""
        self._counts[drafter].verified(verdict, depth)

    def told(self, drafter: str, seconds: float) -> None:
        """A drafter was told what became of the round, and took so long."""
        self._counts[drafter].accept_s += seconds

    def summary(self) -> Summary:
        """All of it."""
        drafters = {name: counts.stats() for name, counts in self._counts.items()}
        longest = max((len(each.accepted_by_position) for each in drafters.values()), default=0)
        by_position = [0] * longest
        for each in drafters.values():
            for position, n in enumerate(each.accepted_by_position):
                by_position[position] += n
        return Summary(
            id=self._request,
            n_prompt=self.n_prompt,
            n_reused=self.n_reused,
            n_emitted=self.n_emitted,
            n_rounds=self.n_rounds,
            n_drafted=sum(each.drafted for each in drafters.values()),
            n_accepted=sum(each.accepted for each in drafters.values()),
            accepted_by_position=tuple(by_position),
            draft_lengths=tuple(self._draft_lengths),
            drafters=drafters,
            timings=Timings(
                prompt_s=self._prompt_s,
                predict_s=self._last_token_at - self._first_token_at,
                n_prompt=self._n_processed,
                n_predicted=max(self.n_emitted - 1, 0),
            ),
            effective=deepcopy(self._effective),  # an observer may have written into the one it was given
        )
