"""What is kept of a request that drafts, and of each of its rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import Factory, define

from augury.speculation.choice import Choice
from augury.types import Draft

if TYPE_CHECKING:
    from collections.abc import Iterator

    from augury.engine.sequence import Sequence
    from augury.speculation.drafter_guard import DrafterGuard
    from augury.speculation.track import Track

__all__ = ["Course", "Drafted"]


@define(eq=False)
class Course:
    """What is kept of a running request."""

    guards: dict[int, DrafterGuard]  # of the drafters that serve it, by index in its slot's chain and in order of priority
    track: Track | None  # None without a planner
    prefill: Iterator[None]  # what its drafters have left to do with its prompt

    @property
    def members(self) -> list[int]:
        """The drafters that it can still ask, by priority."""
        return [index for index, guard in self.guards.items() if not guard.is_left_out]


@define(eq=False)
class Drafted:
    """What a sequence takes into a round: the draft to verify, and everything that was proposed, used or not."""

    sequence: Sequence
    limit: int  # at most so many tokens can be verified
    draft: Draft = Factory(Draft)
    choice: Choice = Factory(Choice)
    proposals: dict[int, Draft] = Factory(dict)  # by drafter, of those that were asked
    draft_s: float = 0.0  # of drafters that are asked only if they are used

    def use(self, drafter: int, k: int, *, is_probe: bool = False) -> None:
        """Verify the first k tokens of what a drafter proposed."""
        proposal = self.proposals[drafter]
        self.draft = proposal if k == len(proposal) else proposal.cut(k)
        self.choice = Choice(drafter, k, is_probe)
