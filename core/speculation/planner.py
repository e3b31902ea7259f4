"""Decides who drafts how far: what makes the most tokens per second, by measured costs and learnt chances.

Pure arithmetic: it never looks at a clock and never calls a drafter. `Drafting` tells it what was seen and asks it what to do,
so that tests drive it with invented times.

Three kinds of knowledge: `PassCosts` says what a pass takes, `DraftCost` what a drafter takes, `Acceptance` how likely its next
tokens are right. Plain decoding is always among the choices. Where an estimate is wrong, an `Allowance` bounds the
harm: a drafter that lost more than a small share of the time is left out, and only scored on what is emitted.

Source: the objective, accepted tokens per second under measured load, is that of SmartSpec (Liu et al. 2024, arXiv 2406.14066);
scoring every drafter on the one emitted text is that of "Not-a-Bandit" (arXiv 2510.20064).
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import attrs

from augury.speculation.choice import Choice, Others
from augury.speculation.costs import DraftCost
from augury.speculation.estimates import LOOKUP, MODEL, Acceptance
from augury.speculation.track import Allowance, Track

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.speculation.choice import Outcome, Wish
    from augury.speculation.costs import PassCosts

__all__ = ["N_TEACHER_FORCED", "DraftPlanner"]

N_TEACHER_FORCED = 16
"""How many tokens of the text a costly drafter guesses by teacher forcing."""

# How often a drafter is asked, by what an ask takes
_CHEAP = 0.1  # of a plain pass: a drafter that takes more is costly, whether it says so or not
_FREE = 0.004  # of a plain pass: a drafter that takes more is asked less while it is not right
_PATIENCE = 16  # rounds without a right token after which it is asked less
_RARELY = 8  # rounds: so seldom, at most
_WARM_UP = 16  # asks: the first are slow

# What drafting must promise
_GAIN = 1.02  # tokens of the slot, in place of 1: costs are not known more exactly, and plain passes want to be seen, too
_MARGIN = 1.03  # times the whole pass's tokens per second, of a costly drafter: what it takes is certain, what it gives is not
_HOPE = 1.5  # times the whole pass's tokens per second, were the draft perfect, for a costly drafter to be tried

# When a costly drafter is tried
_PROBE_LENGTH = 1  # token: a wrong one says as much as two do
_PROBE_FIRST, _PROBE_LAST = 8, 160  # rounds between tries, doubled with every failure
_MOSTLY = 0.75  # of the tokens guessed by teacher forcing, for a try to follow at once
_FAR_BEHIND = 24  # tokens missed, beyond which it is asked by teacher forcing instead: catching up takes longer

# What may be lost
_LOOKUPS_LOSE = 0.2  # plain passes, at a request's beginning, by all drafters that cost nothing together
_LOOKUPS_SHARE = 0.005  # of the request's time, by the same
_COSTLY_LOSES = 1.0  # plain passes, at the engine's beginning, by each costly drafter: a try or two
_COSTLY_SHARE = 0.02  # of all time, by the same: its later tries are paid from it
_MOST_SAVED = 8.0  # plain passes, by any: what was gained long ago is not gambled away

_PLAIN = Choice()


class DraftPlanner:
    """Plans the rounds of one engine for all of its slots together."""

    def __init__(self, costs: PassCosts, is_costly: Sequence[bool]) -> None:
        """Start to plan.

        Args:
            costs: Of passes.
            is_costly: By drafter: whether its length is settled before it is asked, because drafting takes time.
        """
        self.costs = costs
        self.is_costly = list(is_costly)
        self._draft_costs = [DraftCost() for _ in is_costly]
        self._acceptances = [Acceptance(MODEL if each else LOOKUP) for each in is_costly]
        self._can_be_teacher_forced = list(is_costly)  # as far as is known
        self._n_waited = [0 for _ in is_costly]  # rounds since a costly drafter was asked
        self._intervals = [_PROBE_FIRST for _ in is_costly]
        self._plain_s = plain_s = costs.seconds(1, 0)  # of a pass of one token
        self._own_allowances = [Allowance(_COSTLY_LOSES * plain_s, _COSTLY_SHARE, _MOST_SAVED * plain_s) for _ in is_costly]

    def track(self) -> Track:
        """For a new request."""
        n, plain_s = len(self.is_costly), self._plain_s
        n_lookups = n - sum(self.is_costly)
        allowances = [
            own
            if is_costly
            else Allowance(_LOOKUPS_LOSE * plain_s / n_lookups, _LOOKUPS_SHARE / n_lookups, _MOST_SAVED * plain_s)
            for own, is_costly in zip(self._own_allowances, self.is_costly, strict=True)
        ]
        return Track([each.child() for each in self._acceptances], allowances, [0] * n, [0] * n, [0] * n)

    # Before a round

    def is_asked(self, drafter: int, track: Track) -> bool:
        """Whether to ask a drafter before the choice: lookups always, unless they take time and were long not right."""
        if self.is_costly[drafter]:
            return False
        share = self._draft_costs[drafter].per_ask / (_FREE * self._plain_s)
        return share <= 1 or track.n_idle[drafter] < _PATIENCE or track.n_idle[drafter] % min(ceil(share), _RARELY) == 0

    def choose(self, wishes: Sequence[Wish], n_beside: int = 0) -> list[Choice]:
        """Who drafts how far in a round.

        Args:
            wishes: Of the slots that decode.
            n_beside: Other tokens in the same pass.

        Returns:
            A choice for each wish.
        """
        choices = [_PLAIN for _ in wishes]
        if not any(wish.offers for wish in wishes):
            return choices
        expected = [1.0 for _ in wishes]
        seconds = [0.0 for _ in wishes]
        n_most = n_beside + sum(1 + max((offer.limit for offer in wish.offers), default=0) for wish in wishes)
        depth = sum(wish.depth for wish in wishes) / len(wishes)
        known, hoped = self.costs.curve(n_most, depth), self.costs.hopeful_curve(n_most, depth)
        self._plain_s = known[1]
        for _ in range(1 if len(wishes) == 1 else 2):  # what is best for a slot depends on the others
            for i, wish in enumerate(wishes):
                n_others = n_beside + sum(1 + choice.k for j, choice in enumerate(choices) if j != i)
                others = Others(
                    known[n_others:],
                    hoped[n_others:],
                    expected=sum(expected) - expected[i],
                    draft_s=sum(seconds) - seconds[i],
                    is_teacher_forced=any(choice.teacher_forced is not None for j, choice in enumerate(choices) if j != i),
                )
                choices[i], expected[i], seconds[i] = self._best(wish, others)
        return choices

    def _best(self, wish: Wish, others: Others) -> tuple[Choice, float, float]:
        """A slot's best choice, given those of the others: it, the tokens expected of it, and its seconds of drafting."""
        best, best_rate = (_PLAIN, 1.0, 0.0), others.rate(_GAIN, 1, 0.0)
        for offer in wish.offers:
            is_costly, allowance = self.is_costly[offer.drafter], wish.track.allowances[offer.drafter]
            if allowance.seconds < 0 or self._is_far_behind(offer.drafter, wish.track):
                continue
            cost = self._draft_costs[offer.drafter] if is_costly else _NOTHING
            n_missed = wish.track.n_missed[offer.drafter]
            expected, limit = 1.0, offer.limit
            if is_costly and not cost.n_asks:  # what it takes is not known yet
                limit = min(limit, max(_PROBE_LENGTH, wish.n_min))
            for k, alive in enumerate(wish.track.acceptances[offer.drafter].survival(limit), start=1):
                if not is_costly and not allowance.covers(others.extra_s(k), is_least=k <= wish.n_min):
                    break
                expected += alive
                draft_s = cost.seconds(k, n_missed)
                rate = others.rate(expected, 1 + k, draft_s)
                worth = rate / _MARGIN if is_costly else rate
                if worth > best_rate and k >= wish.n_min:
                    best, best_rate = (Choice(offer.drafter, k), expected, draft_s), worth
        return self._probe(wish, best[0], others, best_rate), *best[1:]

    def _probe(self, wish: Wish, choice: Choice, others: Others, rate: float) -> Choice:
        """Try a costly drafter that was not asked for long, where it could be better and the time for it was saved up."""
        for offer in wish.offers:
            m = offer.drafter
            if not self.is_costly[m] or m == choice.drafter or self._n_waited[m] < self._intervals[m]:
                continue
            cost, n_missed, allowance = self._draft_costs[m], wish.track.n_missed[m], wish.track.allowances[m]
            perfect = (others.rate(1.0 + j, 1 + j, cost.seconds(j, 1)) for j in range(1, offer.limit + 1))
            if max(perfect, default=0.0) <= _HOPE * rate:
                continue
            if self._is_far_behind(m, wish.track):
                if not others.is_teacher_forced and allowance.covers(cost.seconds(1, N_TEACHER_FORCED)):
                    return attrs.evolve(choice, teacher_forced=m)
                continue
            k = max(min(_PROBE_LENGTH, offer.limit), wish.n_min)
            if k <= offer.limit and allowance.covers(cost.seconds(k, n_missed) + others.extra_s(k)):
                return Choice(m, k, is_probe=True)
        return choice

    def _is_far_behind(self, drafter: int, track: Track) -> bool:
        """Whether it has to be asked by teacher forcing before it drafts again."""
        return self._can_be_teacher_forced[drafter] and track.n_missed[drafter] > _FAR_BEHIND

    # After it

    def observe_prompt(self, drafter: int, n_tokens: int, seconds: float) -> None:
        """A drafter took so long for a prompt."""
        self._draft_costs[drafter].observe_prompt(n_tokens, seconds)

    def observe_teacher_forced(self, drafter: int, track: Track, is_right: Sequence[bool] | None, seconds: float) -> None:
        """A drafter said what it would have drafted for the last tokens.

        Args:
            drafter: Which.
            track: Of the request.
            is_right: Of the last tokens that nobody drafted, whether it would have been right; None where it never can say.
            seconds: What it took.
        """
        self._n_waited[drafter] = 0
        if is_right is None:
            self._can_be_teacher_forced[drafter] = False
            return
        track.acceptances[drafter].see_each(is_right)
        track.allowances[drafter].book(-seconds)
        track.n_missed[drafter] = 0
        self._schedule(drafter, is_right=sum(is_right) >= max(_MOSTLY * len(is_right), 1))

    def observe_draft(self, drafter: int, track: Track, k: int, seconds: float) -> None:
        """A drafter was asked, proposed k tokens, and took so long."""
        cost = self._draft_costs[drafter]
        cost.observe(k, track.n_missed[drafter], seconds)
        track.n_missed[drafter] = 0
        self._n_waited[drafter] = 0
        if cost.n_asks > _WARM_UP and cost.per_ask > _CHEAP * self._plain_s:
            self.is_costly[drafter] = True

    def observe_round(self, outcomes: Sequence[Outcome], depth: float, n_beside: int, pass_s: float) -> None:
        """A round is over.

        Args:
            outcomes: Of the slots that decoded.
            depth: Mean length of their contexts.
            n_beside: Other tokens in the pass.
            pass_s: Seconds of the pass.
        """
        n_plain = len(outcomes) + n_beside
        n_drafted = sum(outcome.choice.k for outcome in outcomes)
        plain_s, extra_s = pass_s, 0.0
        if n_drafted:
            curve = self.costs.curve(n_plain + n_drafted, depth)
            plain_s, extra_s = curve[n_plain], curve[n_plain + n_drafted] - curve[n_plain]
        if not n_beside:  # a prompt's tokens have no logits, and cost less
            self.costs.observe(n_plain + n_drafted, depth, pass_s)
        self._n_waited = [n + 1 for n in self._n_waited]
        for outcome in outcomes:
            choice = outcome.choice
            own_s = outcome.draft_s + (extra_s * choice.k / n_drafted if choice.k else 0.0)
            for m, allowance in enumerate(outcome.track.allowances):
                allowance.pass_time(plain_s / len(outcomes) + own_s)
                if m != choice.drafter and not self.is_costly[m]:
                    allowance.forgive(outcome.track.n_right[m] * plain_s / len(outcomes))
            if choice.drafter is not None:
                self._judge(outcome, choice.drafter, outcome.n_accepted * plain_s / len(outcomes) - own_s)

    def _judge(self, outcome: Outcome, drafter: int, gain: float) -> None:
        """A draft was worth `gain` seconds: keep account of it, and try its drafter sooner or later again."""
        choice = outcome.choice
        is_right = choice.k > 0 and 2 * outcome.n_accepted >= choice.k
        outcome.track.allowances[drafter].book(gain)
        if is_right or choice.is_probe:
            self._schedule(drafter, is_right=is_right)

    def _schedule(self, drafter: int, *, is_right: bool) -> None:
        """When to try a drafter again: at once if it was right, for catching up takes longest; else later than last time."""
        later = min(max(2 * self._intervals[drafter], _PROBE_FIRST), _PROBE_LAST)
        self._intervals[drafter] = 1 if is_right else later


_NOTHING = DraftCost()  # what was asked already is paid for
