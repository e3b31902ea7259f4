"""What the planner is asked in a round, what it weighs, and what it answers and is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.speculation.track import Track

__all__ = ["Choice", "Offer", "Others", "Outcome", "Wish"]


@frozen
class Offer:
    """A drafter that could draft for a slot, and at most how far."""

    drafter: int
    limit: int


@frozen(eq=False)
class Wish:
    """One slot's choices in a round."""

    track: Track
    depth: int  # length of its context
    offers: Sequence[Offer]
    n_min: int = 1  # shorter drafts are not wanted


@frozen
class Choice:
    """The drafter to use, or None, and how many tokens of it to verify."""

    drafter: int | None = None
    k: int = 0
    is_probe: bool = False  # not because it promises more, but to see whether it does
    teacher_forced: int | None = None  # a drafter, used or not, whose guesses at the last tokens are asked for


@frozen(eq=False)
class Outcome:
    """What came of a slot's choice."""

    track: Track
    choice: Choice
    n_accepted: int
    draft_s: float  # the slot's share of the drafters' time


@frozen(eq=False)
class Others:
    """What a slot finds in the pass: it takes [n] seconds with n tokens of the slot, `known`, or as little as `hoped`."""

    known: Sequence[float]
    hoped: Sequence[float]
    expected: float  # tokens of the other slots
    draft_s: float  # of their drafters
    is_teacher_forced: bool  # whether a drafter of theirs is asked by teacher forcing: one in a round is enough to wait for

    def rate(self, expected: float, n: int, draft_s: float) -> float:
        """Tokens per second of all slots, where this one expects so many, brings n into the pass and drafts for `draft_s`."""
        return (self.expected + expected) / (self.hoped[n] + self.draft_s + draft_s)

    def extra_s(self, k: int) -> float:
        """Seconds that k drafted tokens add to the pass."""
        return self.known[1 + k] - self.known[1]
