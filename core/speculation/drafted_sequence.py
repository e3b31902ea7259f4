"""The view that speculation has of a running request, and the figures of its drafters.

The engine's sequences are such, and no more of them is known here. A `DraftingCounter` comes to `DrafterStats`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import attrs
import numpy as np

from augury.interfaces import Session
from augury.speculation.config import Speculation
from augury.types import DrafterStats, Token

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


class DraftedSequence(ABC):
    """A running request that drafters draft for.

    Attributes:
        id: The request's.
        slot: That it has.
        speculation: Which drafters may draft how far.
        n_reused: Tokens of the text that the slot held when the text was processed.
        history: Prompt and output so far, (h,) int32, read-only.
        pieces: The emitted tokens.
        counter: Of its drafters' work.
        is_drafted: Whether it has drafters.
        is_constrained: Whether a constraint may forbid drafted tokens.
        waits_for_drafters: Whether some of them are still at its prompt.
    """

    id: str
    slot: int
    speculation: Speculation
    n_reused: int
    history: np.ndarray
    pieces: Sequence[Token]
    counter: DraftingCounter
    is_drafted: bool = False
    is_constrained: bool = False
    waits_for_drafters: bool = False

    @property
    @abstractmethod
    def n_left(self) -> int:
        """Tokens that may still be emitted before the end, or before the context is full."""

    @abstractmethod
    def possible(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int] | None:
        """The tokens of a draft that its constraint does not forbid, by their places, rising; None for all."""

    @abstractmethod
    def chance(self, place: int) -> float:
        """The number in [0, 1) by which `Synthetic` accepts a token; places count from the text's end, below 0 backwards."""

    @abstractmethod
    def describe(self, session: Session) -> None:
        """Set the request's part of a drafter's session."""
