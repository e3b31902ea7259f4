"""An engine's knowledge of its drafters, and the drafters of one request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import Factory, define, field, frozen

from augury.errors import PluginError
from augury.interfaces import Drafter, DrafterTraits
from augury.speculation.chances import Chances
from augury.speculation.constants import CONSTANTS
from augury.speculation.costs import DraftCost, LossBudget
from augury.speculation.drafter_guard import DrafterGuard
from augury.types import Draft, Verdict


@define(eq=False)
class DrafterProfile:
    """An engine's knowledge of one of its drafters, from all slots and requests."""

    name: str
    is_costly: bool = False  # its length is settled before it is asked, because drafting takes time, as declared or measured
    is_certain: bool = False
    is_paced: bool = False
    n_top: int = 0
    is_declared_costly: bool = field(default=Factory(lambda self: self.is_costly, takes_self=True), init=False)
    features: tuple[str, ...] = ()
    chances: Chances = Factory(lambda self: Chances(is_costly=self.is_costly, is_certain=self.is_certain), takes_self=True)
    cost: DraftCost = Factory(DraftCost)
    budget: LossBudget = Factory(lambda: LossBudget(0.0, 0.0, 0.0))  # of a costly one, in all requests together
    can_be_teacher_forced: bool = True  # as far as is known
    n_waited: int = 0  # rounds since it was asked, where it is costly
    interval: int = CONSTANTS.probe_first  # rounds between tries
    gain: float = 0.25  # tokens that it alone gave by ask, in all requests

    @classmethod
    def of(cls, drafter: Drafter) -> DrafterProfile:
        """The profile of an unused drafter.

        Raises:
            PluginError: It declares what cannot be.
        """
        if not isinstance(traits := drafter.traits, DrafterTraits):
            raise PluginError(f"drafter {drafter.name!r} has traits {traits!r}, expected DrafterTraits(...)")
        if traits.features and getattr(drafter.feed, "__func__", None) is Drafter.feed:
            wanted = f"drafter {drafter.name!r} has features {traits.features}, but no method feed that takes them"
            raise PluginError(f"{wanted}; write feed(self, start, tokens, features), or leave features out")
        is_costly, is_certain = traits.is_costly, traits.is_certain
        chances = Chances(traits.evidence_chances, is_costly=is_costly, is_certain=is_certain)
        cost = DraftCost(is_fixed=traits.drafts_at_once, per_trip=traits.trip_s)
        return cls(drafter.name, is_costly, is_certain, traits.is_paced, traits.n_top, traits.features, chances, cost)

    def schedule(self, *, is_right: bool) -> None:
        """When to try it again, where it is costly: at once if it was right (catching up takes longest), else later."""
        self.interval = 1 if is_right else min(max(2 * self.interval, CONSTANTS.probe_first), CONSTANTS.probe_last)

    def counted_s(self, seconds: float, expected_s: float) -> float:
        """The seconds of a call that are held against a costly drafter: its first calls also compile and fill caches."""
        if self.cost.is_warm:
            return seconds
        return min(seconds, 2 * expected_s if self.cost.is_known else max(self.budget.seconds, 0.0))


@define(eq=False)
class RequestDrafter:
    """A drafter of one request."""

    profile: DrafterProfile
    guard: DrafterGuard
    chances: Chances = Factory(lambda self: self.profile.chances.child(), takes_self=True)
    run: int = 0  # tokens that it has had right in a row
    n_missed: int = 0  # tokens emitted since it was asked
    gain: float = Factory(lambda self: self.profile.gain, takes_self=True)  # tokens, by ask; old ones count less
    n_right: int = 0  # tokens that it had right in the last round, used or not
    spent_s: float = 0.0  # of drafting that was waited for, since the last round


@define(eq=False)
class RequestDrafters:
    """The drafters of one request."""

    every: list[RequestDrafter] = Factory(list)  # by priority
    prefill: Iterator[None] = field(factory=lambda: iter(()))  # their remaining work on its prompt
    budget: LossBudget = Factory(lambda: LossBudget(0.0, 0.0, 0.0))  # the joint loss budget of cheap drafters
    n_replayed: int = 0  # accepted tokens that the next pass computes again
    n_resting: int = 0  # rounds to come in which nobody is asked
    n_rested: int = 0  # rounds, of a token each, that they were not told of yet
    ahead: AheadDraft | None = None  # for the next round, if its guess turns out right
    n_min: int = 1  # fewer tokens are not wanted
    may_branch: bool = True  # otherwise one path alone can be verified

    @property
    def members(self) -> list[RequestDrafter]:
        """The drafters that can still be asked, by priority."""
        return [drafter for drafter in self.every if not drafter.guard.is_left_out]

    def wake(self, plain_s: float) -> float:
        """Tell them together of the rounds in which they rested, of `plain_s` each; returns the seconds that they took."""
        n, self.n_rested, seconds = self.n_rested, 0, 0.0
        self.budget.pass_time(n * plain_s)
        for drafter in self.members:
            drafter.n_missed += n
            if drafter.profile.is_costly:
                drafter.profile.budget.pass_time(n * plain_s)
            drafter.n_right = drafter.run = 0  # the next find is another stretch
            drafter.guard.accept(Verdict(0, 0, n, is_used=False))
            seconds += drafter.guard.seconds
        return seconds


@frozen(eq=False)
class AheadDraft:
    """A draft that was made during a pass, after a guess of the tokens that the pass adds to a text of `n_context`."""

    drafter: RequestDrafter
    n_context: int
    guess: np.ndarray  # (g,) int32
    draft: Draft
    seconds: float

    def follows(self, history: np.ndarray) -> bool:
        """Whether the guess was right."""
        return np.array_equal(history[self.n_context :], self.guess)
