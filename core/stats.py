"""Counts what one request did, and says it in a `Summary`."""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from augury.types import DrafterStats, Summary, Timings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from augury.types import Verdict

__all__ = ["Recorder"]


class Recorder:
    """Mutable counters of one request; only rounds that are over are counted, so there is nothing to roll back."""

    def __init__(self, drafter: str, effective: dict[str, Any]) -> None:
        self.n_prompt = 0
        self.n_reused = 0
        self.n_emitted = 0
        self.n_rounds = 0
        self.accepted_by_position: list[int] = []
        self.seconds = {"begin": 0.0, "draft": 0.0, "accept": 0.0}
        self._drafter = drafter
        self._effective = effective
        self._calls = self._drafts = self._drafted = self._accepted = 0
        self._started_at = self._first_token_at = self._last_token_at = 0.0

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Add the time of a drafter's method to `what`: "begin" or "accept"."""
        start = perf_counter()
        yield
        self.seconds[what] += perf_counter() - start

    def start(self, n_prompt: int, n_reused: int) -> None:
        """The request has a slot, which holds `n_reused` of its `n_prompt` tokens."""
        self.n_prompt, self.n_reused = n_prompt, n_reused
        self._started_at = self._first_token_at = self._last_token_at = perf_counter()

    def first_token(self) -> None:
        """The prompt is processed and its token emitted: the prompt's last pass is a round."""
        self.n_rounds += 1
        self.n_emitted += 1
        self._first_token_at = self._last_token_at = perf_counter()

    def draft_called(self, seconds: float) -> None:
        """The drafter was asked, and took this request's share of `seconds`."""
        self._calls += 1
        self.seconds["draft"] += seconds

    def round(self, verdict: Verdict) -> None:
        """A round is over."""
        self.n_rounds += 1
        self.n_emitted += verdict.n_emitted
        self._last_token_at = perf_counter()
        if verdict.is_used:
            self._drafts += 1
            self._drafted += verdict.n_offered
            self._accepted += verdict.n_accepted
            missing = verdict.n_offered - len(self.accepted_by_position)
            self.accepted_by_position.extend([0] * missing)
            for position in range(verdict.n_accepted):
                self.accepted_by_position[position] += 1

    def summary(self) -> Summary:
        """All of it."""
        drafters = {}
        if self._drafter != "none":
            drafters[self._drafter] = DrafterStats(
                calls=self._calls,
                drafts=self._drafts,
                drafted=self._drafted,
                accepted=self._accepted,
                **{f"{what}_s": seconds for what, seconds in self.seconds.items()},
            )
        return Summary(
            n_prompt=self.n_prompt,
            n_reused=self.n_reused,
            n_emitted=self.n_emitted,
            n_rounds=self.n_rounds,
            n_drafted=self._drafted,
            n_accepted=self._accepted,
            accepted_by_position=tuple(self.accepted_by_position),
            drafters=drafters,
            timings=Timings(
                prompt_s=self._first_token_at - self._started_at,
                predict_s=self._last_token_at - self._first_token_at,
                n_prompt=self.n_prompt - self.n_reused,
                n_predicted=max(self.n_emitted - 1, 0),
            ),
            effective=self._effective,
        )
