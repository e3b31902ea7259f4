"""What the planner keeps of a request: what its drafters get right, and what they may still lose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.speculation.estimates import Acceptance

__all__ = ["Allowance", "Track"]


@define
class Allowance:
    """Seconds that a drafter may lose. It grows with what the drafter gains and, by a small share, with time."""

    seconds: float
    share: float
    most: float
    first: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.first = self.seconds

    def covers(self, seconds: float, *, is_least: bool = False) -> bool:
        """Whether a draft may be made that loses so much at worst. The least is always tried once, whatever it takes."""
        return seconds <= self.seconds or (is_least and self.seconds >= self.first)

    def book(self, seconds: float) -> None:
        """The drafter gained or, below 0, lost so much."""
        self.seconds = min(self.seconds + seconds, self.most)

    def forgive(self, seconds: float) -> None:
        """It would have gained so much: what it lost is forgiven as far, and it may draft again as at first."""
        self.seconds = max(self.seconds, min(self.seconds + seconds, self.first))

    def pass_time(self, seconds: float) -> None:
        """So much time went by."""
        self.book(self.share * seconds)


@define(eq=False)
class Track:
    """What the planner keeps of one request, by drafter."""

    acceptances: list[Acceptance]
    allowances: list[Allowance]  # of a costly drafter one for all requests
    n_missed: list[int]  # tokens emitted since it was asked
    n_idle: list[int]  # rounds since it was right
    n_right: list[int]  # tokens that it had right in the last round, used or not

    def score(self, drafter: int, proposed: Sequence[int] | None, emitted: Sequence[int]) -> None:
        """Note what a drafter got right of what a round emitted, used or not; None where it was not asked."""
        self.n_missed[drafter] += len(emitted)
        self.n_idle[drafter] += 1
        self.n_right[drafter] = 0
        if not proposed:
            self.acceptances[drafter].decline()
        elif n_right := self.acceptances[drafter].see(proposed, emitted):
            self.n_idle[drafter], self.n_right[drafter] = 0, n_right
