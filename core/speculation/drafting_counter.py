"""Figures of the drafters of a request: `DraftingCounter` comes to a `DrafterStats` for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import attrs

from augury.types import DrafterStats

_BY_POSITION = ("offered_by_position", "accepted_by_position")


class DraftingCounter:
    """Counts the work of one request's drafters."""

    def __init__(self, drafters: Iterable[str]) -> None:
        self._counts: dict[str, dict[str, Any]] = {  # by drafter, as `DrafterStats` has them
            drafter: attrs.asdict(DrafterStats()) | {name: [] for name in _BY_POSITION} for drafter in drafters
        }

    def begun(self, drafter: str, seconds: float) -> None:
        """A drafter has worked on the text for so long."""
        self._counts[drafter]["begin_s"] += seconds

    def failed(self, drafter: str, error: str) -> None:
        """A drafter failed, as `error` says, and is left out of the rest of the request."""
        self._counts[drafter]["failed"] = error

    def has_failed(self, drafter: str) -> bool:
        """Whether a drafter did."""
        return self._counts[drafter]["failed"] is not None

    def drafted(self, drafter: str, n_proposed: int, seconds: float) -> None:
        """A drafter was asked, proposed so many tokens, and took this request's share of `seconds`."""
        counts = self._counts[drafter]
        counts["calls"] += 1
        counts["drafts"] += n_proposed > 0
        counts["draft_s"] += seconds

    def drafted_ahead(self, drafter: str, n_tokens: int, late_s: float, hidden_s: float) -> None:
        """A drafter drafted so many tokens while a pass was computed, which hid it except for `late_s`."""
        counts = self._counts[drafter]
        counts["ahead"] += n_tokens
        counts["draft_s"] += late_s
        counts["hidden_s"] += hidden_s

    def verified(self, drafter: str, n_offered: int, n_accepted: int, depth: int, *, is_ahead: bool = False) -> None:
        """So many tokens of a drafter's proposal, `depth` deep and perhaps made ahead, were verified and accepted."""
        counts = self._counts[drafter]
        counts["used"] += 1
        counts["drafted"] += n_offered
        counts["accepted"] += n_accepted
        if is_ahead:
            counts["ahead_used"] += n_offered
        for name, n in zip(_BY_POSITION, (depth, n_accepted), strict=True):
            places = counts[name]
            places += [0] * (depth - len(places))
            for position in range(n):
                places[position] += 1

    def took(self, drafter: str, seconds: float, of: Literal["draft_s", "accept_s"]) -> None:
        """A drafter was asked for no draft, but took so long for teacher forcing, or to read the text."""
        self._counts[drafter][of] += seconds

    def drafters(self) -> dict[str, DrafterStats]:
        """The figures so far, by drafter."""
        return {
            drafter: DrafterStats(**counts | {name: tuple(counts[name]) for name in _BY_POSITION})
            for drafter, counts in self._counts.items()
        }
