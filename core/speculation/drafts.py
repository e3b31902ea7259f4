"""The records of drafting: what a request's drafters have, and one slot's draft in one round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Items

import numpy as np
from attrs import Factory, define, field, frozen

from augury.engine.sequence import Sequence
from augury.speculation.drafter_guard import DrafterGuard
from augury.speculation.estimates import Acceptance
from augury.types import Draft

__all__ = ["AheadDraft", "LossBudget", "RequestDrafters", "SlotDraft"]

_TINY = 1e-9  # where a drafter takes all of its tokens to be impossible


@define
class LossBudget:
    """Seconds that a drafter may lose. It grows with what the drafter gains and, by a small share, with time."""

    seconds: float
    share: float
    most: float
    first: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.first = self.seconds

    def covers(self, seconds: float, *, is_least: bool = False) -> bool:
        """Whether a draft may be made that loses so much at worst. The shortest one may always be tried once."""
        return seconds <= self.seconds or (is_least and self.seconds >= self.first)

    def book(self, seconds: float) -> None:
        """The drafter gained or, below 0, lost so much."""
        self.seconds = min(self.seconds + seconds, self.most)

    def credit(self, seconds: float) -> None:
        """The drafter would have gained so much: that makes up for losses, up to what the budget was at first."""
        self.seconds = max(self.seconds, min(self.seconds + seconds, self.first))

    def pass_time(self, seconds: float) -> None:
        """So much time went by."""
        self.book(self.share * seconds)


@frozen(eq=False)
class AheadDraft:
    """A draft that was made while a pass was computed, after a guess of what the pass would add to a text of `n_context`."""

    drafter: int
    n_context: int
    guess: np.ndarray  # (g,) int32
    draft: Draft

    def follows(self, history: np.ndarray) -> bool:
        """Whether the guess was right."""
        return np.array_equal(history[self.n_context :], self.guess)


@define(eq=False)
class RequestDrafters:
    """What the drafters of one request have. Lists are by drafter, as in the engine's chain; empty without a planner."""

    guards: dict[int, DrafterGuard] = Factory(dict)  # of those that serve the request, in order of priority
    prefill: Iterator[None] = field(factory=lambda: iter(()))  # what they have left to do with its prompt
    estimates: list[Acceptance] = Factory(list)
    budgets: list[LossBudget] = Factory(list)  # of a costly drafter one for all requests
    n_missed: list[int] = Factory(list)  # tokens emitted since it was asked
    n_idle: list[int] = Factory(list)  # rounds since it was right
    n_right: list[int] = Factory(list)  # tokens that it had right in the last round, used or not
    n_replayed: int = 0  # accepted tokens that the next pass computes again
    ahead: AheadDraft | None = None  # for the next round, if its guess turns out right

    @property
    def members(self) -> list[int]:
        """The drafters that can still be asked, by priority."""
        return [index for index, guard in self.guards.items() if not guard.is_left_out]

    def score(self, drafter: int, proposed: Items[int] | None, emitted: Items[int]) -> None:
        """Note what a drafter got right of what a round emitted, used or not; None where it was not asked."""
        self.n_missed[drafter] += len(emitted)
        self.n_idle[drafter] += 1
        self.n_right[drafter] = 0
        if not proposed:
            self.estimates[drafter].decline()
        elif n_right := self.estimates[drafter].see(proposed, emitted):
            self.n_idle[drafter], self.n_right[drafter] = 0, n_right


@define(eq=False)
class SlotDraft:
    """One slot's draft in one round: what can be had, what is chosen, what is verified, and what the target made of it."""

    sequence: Sequence
    drafters: RequestDrafters
    limit: int  # at most so many tokens can be verified
    n_context: int  # tokens of the text
    n_min: int = 1  # shorter drafts are not wanted

    proposals: dict[int, Draft] = Factory(dict)  # by drafter, of those that were asked, used or not; what is forbidden left out
    origins: dict[int, tuple[int, np.ndarray | None]] = Factory(dict)  # how many they were, and which are left; None: all
    offers: dict[int, int] = Factory(dict)  # by drafter: how many tokens it could draft, or has proposed

    drafter: int | None = None  # that is used
    k: int = 0  # tokens of it: chosen, after the pass those verified
    is_probe: bool = False  # chosen not because it promises more, but to see whether it does
    teacher_forced: int | None = None  # a drafter, used or not, to be asked what it would have drafted for the last tokens

    draft: Draft = Factory(Draft)
    draft_s: float = 0.0  # of drafters that are asked only if they are used, as far as no pass hides it
    ahead_s: float = 0.0  # of drafting ahead
    ahead: int | None = None  # the drafter whose proposal was made ahead
    n_accepted: int = 0
    is_stopped: bool = False  # the request ended within what was right of the draft
    top: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # `Verdict.top_after`, `top_ids` and `top_logits`

    def offer(self, is_costly: Items[bool]) -> None:
        """Offer what was proposed, and of those costly drafters that were not asked in this round as much as fits."""
        self.n_min = max(self.sequence.request.speculation.n_min, 1)
        self.offers = {index: len(proposal) for index, proposal in self.proposals.items() if len(proposal)}
        unasked = (m for m in self.drafters.members if is_costly[m] and (m not in self.proposals or m == self.ahead))
        self.offers |= dict.fromkeys(unasked, self.limit)

    def gains(self, drafter: int, limit: int) -> list[float]:
        """[j]: how many tokens are expected of token j + 1 of a drafter's draft: the chance that all up to it are right.

        Of a tree one token of each depth can be accepted: its nodes share that chance by how probable the drafter takes them.
        """
        estimate, proposal = self.drafters.estimates[drafter], self.proposals.get(drafter)
        if proposal is None or proposal.parents is None:
            return estimate.survival(limit)
        depths, shares, totals = list[int](), list[float](), [0.0] * proposal.depth
        confidence = [1.0] * limit if proposal.confidence is None else proposal.confidence.tolist()
        for parent, chance in zip(proposal.parents.tolist(), confidence, strict=True):
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            shares.append(chance * shares[parent] if parent >= 0 else chance)
            totals[depths[-1]] += shares[-1]
        alive = estimate.survival(len(totals))
        return [alive[depth] * share / max(totals[depth], _TINY) for depth, share in zip(depths, shares, strict=True)]

    def choose(self, drafter: int, k: int, *, is_probe: bool = False) -> None:
        """Choose k tokens of a drafter."""
        self.drafter, self.k, self.is_probe = drafter, k, is_probe

    def choose_none(self) -> None:
        """Choose to decode plainly."""
        self.drafter, self.k, self.is_probe, self.teacher_forced = None, 0, False, None

    def verify(self, k: int) -> None:
        """Verify the first k tokens of what the chosen drafter proposed."""
        assert self.drafter is not None
        proposal = self.proposals[self.drafter]
        self.draft = proposal if k == len(proposal) else proposal.cut(k)
        self.k = k
