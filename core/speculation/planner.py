"""Decides who drafts how far: what makes the most tokens per second, by measured costs and learnt chances.

Pure arithmetic: it never looks at a clock and never calls a drafter. `Drafting` tells it what was seen and asks it what to do,
so that tests drive it with invented times.

Three kinds of knowledge: `PassCosts` says what a pass takes, `DraftCost` what a drafter takes, `Acceptance` how likely its next
tokens are right. Plain decoding is always among the choices. Where an estimate is wrong, a `LossBudget` bounds the harm: a
drafter that lost more than a small share of the time is left out, and only scored on what is emitted.

Source: the objective, accepted tokens per second under measured load, is that of SmartSpec (Liu et al. 2024, arXiv 2406.14066);
scoring every drafter on the one emitted text is that of "Not-a-Bandit" (arXiv 2510.20064).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from attrs import frozen

from augury.speculation.costs import DraftCost, PassCosts
from augury.speculation.drafts import LossBudget, RequestDrafters, SlotDraft
from augury.speculation.estimates import CERTAIN, LOOKUP, MODEL, Acceptance

__all__ = ["N_TEACHER_FORCED", "DraftPlanner"]

N_TEACHER_FORCED = 16
"""How many tokens of the text a costly drafter guesses by teacher forcing."""

# How often a drafter is asked, by what an ask takes
_CHEAP = 0.1  # of a plain pass: a drafter that takes more is costly, whether it says so or not
_FREE = 0.004  # of a plain pass: a drafter that takes more is asked less while it is not right
_PATIENCE = 16  # rounds without a right token after which it is asked less
_RARELY = 8  # rounds between asks, at most
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

# Drafting ahead
_LIKELY = 0.1  # that a token is accepted in the next round: the pass hides the time, but it is the CPU's work all the same

# What may be lost
_LOOKUPS_LOSE = 0.1  # plain passes, at a request's beginning, by all drafters that cost nothing together
_LOOKUPS_SHARE = 0.005  # of the request's time, by the same
_COSTLY_LOSES = 1.0  # plain passes, at the engine's beginning, by each costly drafter: a try or two
_COSTLY_SHARE = 0.02  # of all time, by the same: its later tries are paid from it
_MOST_SAVED = 8.0  # plain passes, by any: what was gained long ago is not gambled away


@frozen(eq=False)
class _RestOfPass:
    """A pass as one slot finds it: with n tokens of the slot it takes `known[n]` seconds, or as little as `hoped[n]`."""

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


class DraftPlanner:
    """Plans the rounds of one engine for all of its slots together.

    Attributes:
        plain_s: Seconds of a pass of one token, at the depth of the round that was planned last. Any thread may read it.
    """

    def __init__(
        self,
        costs: PassCosts,
        is_costly: Sequence[bool],
        is_certain: Sequence[bool] = (),
        *,
        replays_accepted: bool = False,
    ) -> None:
        """Start to plan.

        Args:
            costs: Of passes.
            is_costly: By drafter: whether its length is settled before it is asked, because drafting takes time.
            is_certain: By drafter: whether its tokens are right; none are without it.
            replays_accepted: Whether what was accepted of a draft has to be computed again where the rest of it was not.
        """
        self.costs = costs
        self.replays_accepted = replays_accepted
        self.is_costly = list(is_costly)
        self._draft_costs = [DraftCost() for _ in is_costly]
        self._is_certain = list(is_certain) or [False for _ in is_costly]
        self._estimates = [
            Acceptance(CERTAIN if certain else MODEL if costly else LOOKUP)
            for costly, certain in zip(is_costly, self._is_certain, strict=True)
        ]
        self._can_be_teacher_forced = list(is_costly)  # as far as is known
        self._n_waited = [0 for _ in is_costly]  # rounds since a costly drafter was asked
        self._intervals = [_PROBE_FIRST for _ in is_costly]
        self.plain_s = plain_s = costs.seconds(1, 0)  # of a pass of one token
        self._costly_budgets = [LossBudget(_COSTLY_LOSES * plain_s, _COSTLY_SHARE, _MOST_SAVED * plain_s) for _ in is_costly]

    def new_request(self, members: Sequence[int] | None = None) -> RequestDrafters:
        """What is known of the drafters when a request begins that these of them serve; None for all."""
        n, plain_s = len(self.is_costly), self.plain_s
        serving = range(n) if members is None else members
        n_lookups = max(sum(not (self.is_costly[m] or self._is_certain[m]) for m in serving), 1)
        budgets = [
            shared
            if is_costly
            else LossBudget(inf, 0.0, inf)
            if is_certain
            else LossBudget(_LOOKUPS_LOSE * plain_s / n_lookups, _LOOKUPS_SHARE / n_lookups, _MOST_SAVED * plain_s)
            for shared, is_costly, is_certain in zip(self._costly_budgets, self.is_costly, self._is_certain, strict=True)
        ]
        estimates = [each.child() for each in self._estimates]
        return RequestDrafters(estimates=estimates, budgets=budgets, n_missed=[0] * n, n_idle=[0] * n, n_right=[0] * n)

    # Before a round

    def is_asked(self, drafter: int, drafters: RequestDrafters) -> bool:
        """Whether to ask a drafter before the choice: lookups always, unless they take time and were long not right."""
        if self.is_costly[drafter] or self._is_certain[drafter]:
            return not self.is_costly[drafter]
        share = self._draft_costs[drafter].per_ask / (_FREE * self.plain_s)
        n_idle = drafters.n_idle[drafter]
        return share <= 1 or n_idle < _PATIENCE or n_idle % min(ceil(share), _RARELY) == 0

    def choose(self, slots: Sequence[SlotDraft], n_beside: int = 0) -> None:
        """Choose who drafts how far in a round: the slots' `drafter`, `k`, `is_probe` and `teacher_forced`.

        Args:
            slots: That decode, with what their drafters offer.
            n_beside: Other tokens in the same pass.
        """
        if not any(slot.offers for slot in slots):
            return
        expected = [1.0 for _ in slots]
        seconds = [0.0 for _ in slots]
        n_beside += sum(slot.drafters.n_replayed for slot in slots)
        n_most = n_beside + sum(1 + max(slot.offers.values(), default=0) for slot in slots)
        depth = sum(slot.n_context for slot in slots) / len(slots)
        known, hoped = self.costs.curve(n_most, depth), self.costs.hopeful_curve(n_most, depth)
        self.plain_s = known[1]
        for _ in range(1 if len(slots) == 1 else 2):  # what is best for a slot depends on the others
            for i, slot in enumerate(slots):
                slot.choose_none()
                n_others = n_beside + sum(1 + other.k for other in slots if other is not slot)
                rest = _RestOfPass(
                    known[n_others:],
                    hoped[n_others:],
                    expected=sum(expected) - expected[i],
                    draft_s=sum(seconds) - seconds[i],
                    is_teacher_forced=any(other.teacher_forced is not None for other in slots),
                )
                expected[i], seconds[i] = self._choose_for(slot, rest)

    def _choose_for(self, slot: SlotDraft, rest: _RestOfPass) -> tuple[float, float]:
        """Make a slot's best choice, given those of the others; the tokens expected of it, and its seconds of drafting."""
        best, best_rate = (1.0, 0.0), rest.rate(_GAIN, 1, 0.0)
        drafters = slot.drafters
        for m, limit in slot.offers.items():
            is_costly, budget = self.is_costly[m], drafters.budgets[m]
            if budget.seconds < 0 or self._is_far_behind(m, drafters):
                continue
            cost, n_missed = self._draft_costs[m], drafters.n_missed[m]
            n_paid = len(slot.proposals.get(m, ())) if is_costly else limit  # of a costly drafter what it drafted ahead
            expected = 1.0
            is_unknown = is_costly and not cost.n_asks  # what it takes
            n_most = min(limit, max(_PROBE_LENGTH, slot.n_min)) if is_unknown else limit
            for k, gain in enumerate(slot.gains(m, n_most), start=1):
                if not is_costly and not budget.covers(rest.extra_s(k), is_least=k <= slot.n_min):
                    break
                draft_s = cost.seconds(k, n_missed) if k > n_paid else 0.0
                if self.replays_accepted:  # tokens accepted where a later one is not; each takes as long as a drafted one
                    draft_s += rest.extra_s(k) / k * max(expected - 1 - (k - 1) * gain, 0.0)
                expected += gain
                rate = rest.rate(expected, 1 + k, draft_s)
                worth = rate / _MARGIN if k > n_paid else rate
                if worth > best_rate and k >= slot.n_min:
                    slot.choose(m, k)
                    best, best_rate = (expected, draft_s), worth
        self._probe(slot, rest, best_rate)
        return best

    def _probe(self, slot: SlotDraft, rest: _RestOfPass, rate: float) -> None:
        """Try a costly drafter that was not asked for long, where it could be better and the time for it was saved up."""
        for m, limit in slot.offers.items():
            if not self.is_costly[m] or m == slot.drafter or self._n_waited[m] < self._intervals[m]:
                continue
            cost, n_missed, budget = self._draft_costs[m], slot.drafters.n_missed[m], slot.drafters.budgets[m]
            perfect = (rest.rate(1.0 + j, 1 + j, cost.seconds(j, 1)) for j in range(1, limit + 1))
            if max(perfect, default=0.0) <= _HOPE * rate:
                continue
            if self._is_far_behind(m, slot.drafters):
                if not rest.is_teacher_forced and budget.covers(cost.seconds(1, N_TEACHER_FORCED)):
                    slot.teacher_forced = m
                    return
                continue
            k = max(min(_PROBE_LENGTH, limit), slot.n_min)
            if k <= limit and budget.covers(cost.seconds(k, n_missed) + rest.extra_s(k)):
                slot.choose(m, k, is_probe=True)
                return

    def _is_far_behind(self, drafter: int, drafters: RequestDrafters) -> bool:
        """Whether it has to be asked by teacher forcing before it drafts again."""
        return self._can_be_teacher_forced[drafter] and drafters.n_missed[drafter] > _FAR_BEHIND

    # During its pass

    def n_ahead(self, slots: Sequence[SlotDraft], able: Sequence[SlotDraft], n_beside: int, begun_s: float) -> list[int]:
        """How many tokens to draft ahead: those that are likely enough to be wanted, as far as the pass has time for them.

        Args:
            slots: That decode, with what is verified of them.
            able: Those of them whose drafter can draft ahead. They share the time.
            n_beside: Other tokens in the pass.
            begun_s: Seconds of the pass that are over.

        Returns:
            For each of `able` how many tokens after the one that the target will choose, which is guessed as well.
        """
        n = n_beside + sum(1 + len(slot.draft) + slot.drafters.n_replayed for slot in slots)
        depth = sum(slot.n_context for slot in slots) / len(slots)
        left_s = (self.costs.seconds(n, depth) - begun_s) / len(able)
        found = []
        for slot in able:
            assert slot.drafter is not None
            k, cost = len(slot.draft), self._draft_costs[slot.drafter]
            chances = slot.drafters.estimates[slot.drafter].survival(k + 1 + slot.limit)[k + 1 :]
            n_wanted = sum(chance >= _LIKELY for chance in chances)
            found.append(next((j for j in range(n_wanted, 0, -1) if cost.seconds(1 + j, 0) <= left_s), 0))
        return found

    def observe_ahead(self, drafter: int, k: int, seconds: float) -> None:
        """A drafter drafted k tokens ahead in so many seconds."""
        self._draft_costs[drafter].observe(k, 0, seconds)

    def observe_proposal(self, drafter: int, drafters: RequestDrafters) -> None:
        """A drafter has a proposal for the coming round, made ahead or not."""
        drafters.n_missed[drafter] = self._n_waited[drafter] = 0

    # After it

    def observe_prompt(self, drafter: int, n_tokens: int, seconds: float) -> None:
        """A drafter took so long for a prompt."""
        self._draft_costs[drafter].observe_prompt(n_tokens, seconds)

    def observe_teacher_forced(
        self, drafter: int, drafters: RequestDrafters, is_right: Sequence[bool] | None, seconds: float
    ) -> None:
        """A drafter said what it would have drafted for the last tokens.

        Args:
            drafter: Which.
            drafters: Of the request.
            is_right: Of the last tokens that nobody drafted, whether it would have been right; None where it never can say.
            seconds: What it took.
        """
        self._n_waited[drafter] = 0
        if is_right is None:
            self._can_be_teacher_forced[drafter] = False
            return
        drafters.estimates[drafter].see_each(is_right)
        drafters.budgets[drafter].book(-seconds)
        drafters.n_missed[drafter] = 0
        self._schedule(drafter, is_right=sum(is_right) >= max(_MOSTLY * len(is_right), 1))

    def observe_draft(self, drafter: int, drafters: RequestDrafters, k: int, seconds: float) -> None:
        """A drafter was asked, proposed k tokens, and took so long."""
        cost = self._draft_costs[drafter]
        cost.observe(k, drafters.n_missed[drafter], seconds)
        self.observe_proposal(drafter, drafters)
        if cost.n_asks > _WARM_UP and cost.per_ask > _CHEAP * self.plain_s:
            self.is_costly[drafter] = True

    def observe_round(self, slots: Sequence[SlotDraft], depth: float, n_beside: int, pass_s: float) -> None:
        """A round is over.

        Args:
            slots: That decoded, with what came of their drafts.
            depth: Mean length of the contexts in the pass.
            n_beside: Other tokens in the pass, but for those that are replayed.
            pass_s: Seconds of the pass.
        """
        n_plain = len(slots) + n_beside
        n_replayed, n_drafted = sum(slot.drafters.n_replayed for slot in slots), sum(slot.k for slot in slots)
        plain_s, extra_s = pass_s, 0.0
        if n_drafted:
            curve = self.costs.curve(n_plain + n_replayed + n_drafted, depth)
            plain_s, extra_s = curve[n_plain], curve[n_plain + n_replayed + n_drafted] - curve[n_plain + n_replayed]
        if not n_beside and not n_replayed:  # such tokens have no logits, and cost less
            self.costs.observe(n_plain + n_drafted, depth, pass_s)
        self._n_waited = [n + 1 for n in self._n_waited]
        for slot in slots:
            slot.drafters.n_replayed = slot.n_accepted if self.replays_accepted and slot.n_accepted < slot.k else 0
            own_s = slot.draft_s + (extra_s * (slot.k + slot.drafters.n_replayed) / n_drafted if slot.k else 0.0)
            for m, budget in enumerate(slot.drafters.budgets):
                budget.pass_time(plain_s / len(slots) + own_s)
                if m != slot.drafter and not self.is_costly[m]:
                    budget.credit(slot.drafters.n_right[m] * plain_s / len(slots))
            if slot.drafter is not None:
                slot.drafters.budgets[slot.drafter].book(slot.n_accepted * plain_s / len(slots) - own_s)
                is_right = slot.is_stopped or (slot.k > 0 and 2 * slot.n_accepted >= slot.k)
                if is_right or slot.is_probe:
                    self._schedule(slot.drafter, is_right=is_right)

    def _schedule(self, drafter: int, *, is_right: bool) -> None:
        """When to try a drafter again: at once if it was right, for catching up takes longest; else later than last time."""
        later = min(max(2 * self._intervals[drafter], _PROBE_FIRST), _PROBE_LAST)
        self._intervals[drafter] = 1 if is_right else later
