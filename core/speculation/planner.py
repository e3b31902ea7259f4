"""Decides how much is drafted and verified, for the most tokens per second, by measured costs and learnt chances.

Pure arithmetic: it never looks at a clock and never calls a drafter. `Drafting` tells it the observations and asks it for
decisions, so tests drive it with invented times.

A round verifies one tree per slot. All nodes of all slots are ranked by their chance to be accepted, and the first n are taken
that make the most tokens per second: `PassCosts` has the times of passes, `Chances` how likely a node is right. n may be 0. A
costly drafter, such as a model, is asked only where that promises to pay, by `DraftCost` and by how often it was right. Where
an estimate is wrong, a `LossBudget` bounds the harm.

Source: the objective, accepted tokens per second under measured load, is that of SmartSpec (Liu et al. 2024, arXiv 2406.14066);
scoring every drafter on the one emitted text is that of "Not-a-Bandit" (arXiv 2510.20064); the tree of the likeliest nodes is
that of EAGLE-2 (Li et al. 2024, arXiv 2406.16858), here of several drafters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, inf, log

import numpy as np

from augury.interfaces import Drafter, Model, Pace
from augury.speculation.chances import Agreement, survival
from augury.speculation.constants import CONSTANTS, TYPICAL
from augury.speculation.costs import LossBudget, OthersPass, PassCosts, PassCurve, measure_passes
from augury.speculation.drafts import CostlyAsk, Outcome, SlotProposals, VerifiedNodes, best_nodes
from augury.speculation.profiles import DrafterProfile, RequestDrafter


class DraftPlanner:
    """Plans the rounds of one engine for all of its slots together.

    Attributes:
        costs: The costs of passes.
        profiles: The profiles of the engine's drafters, by priority.
        agreement: The agreement of these drafters.
        plain_s: Seconds of a pass of one token, uninterrupted, at the depth of the round that was planned last. Any thread may
            read it.
        token_s: Seconds of a slot's token without drafts, by the same: its share of a pass, which many slots make small.
        overhead_s: Seconds of a slot's round around drafters' own work, if one of them is asked.
        drafts_ahead: Whether passes are computed elsewhere, so that models that can draft ahead do so meanwhile.
    """

    def __init__(
        self,
        costs: PassCosts,
        profiles: Iterable[DrafterProfile],
        *,
        replays_accepted: bool = False,
        drafts_ahead: bool = False,
    ) -> None:
        """Start to plan; `replays_accepted`: a draft's accepted tokens are computed again if the rest of it was rejected."""
        self.costs = costs
        self.profiles = list(profiles)
        self.replays_accepted = replays_accepted
        self.drafts_ahead = drafts_ahead
        self.agreement = Agreement()
        self.plain_s = self.token_s = plain_s = costs.seconds(1, 0)
        self.overhead_s = 0.0
        for profile in self.profiles:
            profile.budget = LossBudget(
                CONSTANTS.costly_loses * plain_s, CONSTANTS.costly_share, CONSTANTS.most_saved * plain_s
            )

    def new_budget(self) -> LossBudget:
        """The loss budget of the drafters that cost nothing, in a request that begins."""
        return LossBudget(CONSTANTS.lookups_lose * self.plain_s, CONSTANTS.lookups_share, CONSTANTS.most_saved * self.plain_s)

    # Before a round

    def asked(self, drafters: Sequence[RequestDrafter]) -> list[RequestDrafter]:
        """Those of a slot's drafters to ask in any case: lookups, less often where that takes more time than they gained last.

        Where one is asked, the time around it is spent, and the others are asked for their own time alone.
        """
        able = [each for each in drafters if not each.profile.is_costly]
        if not [each for each in able if self._wait(each, self.overhead_s) <= 0]:
            return []
        return [each for each in able if self._wait(each, 0.0) <= 0]

    def n_resting(self, drafters: Sequence[RequestDrafter], *, is_plain: bool) -> int:
        """For how many rounds of one token none of a slot's drafters will be asked; `is_plain`: nothing is verified now.

        A costly drafter that did not promise enough, with nothing beside it, will not do so before it is tried again.
        """
        if [each for each in drafters if each.profile.is_costly and (not is_plain or each.n_missed <= 1)]:
            return 0
        return max(min([self._wait(each, self.overhead_s) for each in drafters], default=0), 0)

    def n_without_costly(self, drafters: Sequence[RequestDrafter], n_most: int) -> int:
        """In how many of the next `n_most` rounds no costly one of a slot's drafters is to be considered; not above 0: in none.

        One that was wrong when it was tried, and was not asked in the last round, waits until it is tried again, and until the
        time for that is saved up.
        """
        n = n_most
        for each in drafters:
            profile = each.profile
            if profile.is_certain or (profile.is_costly and profile.n_waited <= 1):
                return 0
            if profile.is_costly:
                ask_s = profile.cost.hopeful_seconds(CONSTANTS.probe_length, min(each.n_missed, CONSTANTS.n_teacher_forced))
                if profile.budget.covers(ask_s) or ask_s <= CONSTANTS.hopeless_share * profile.n_waited * self.plain_s:
                    n = min(n, profile.interval - profile.n_waited - 1)
        return n

    def _wait(self, drafter: RequestDrafter, overhead_s: float) -> int:
        """For how many further tokens a drafter is not to be asked, where so many seconds come to its own; not above 0: ask."""
        profile, ask_s = drafter.profile, overhead_s + (0.0 if drafter.profile.is_costly else drafter.profile.cost.per_ask)
        share = ask_s / (CONSTANTS.free * self.token_s)
        if profile.is_certain or share <= 1:
            return 0
        longest = min(ceil(share), CONSTANTS.rarely)
        if profile.is_costly:
            due = profile.interval - profile.n_waited - 1  # the round is not counted yet
            return min(longest, due) if due > 0 else longest
        return 0 if drafter.gain * self.token_s >= ask_s else longest - drafter.n_missed

    def asks(self, slots: Sequence[SlotProposals], n_others: int = 0) -> list[CostlyAsk]:
        """Which costly drafters to ask for how much in a round; of a slot one at most, and one in all by teacher forcing."""
        costly = [[d for d in slot.drafters.members if d.profile.is_costly and d not in slot.by_drafter] for slot in slots]
        if not any(costly):
            return []
        curve = PassCurve(*[np.asarray(each).tolist() for each in self.curve(slots, n_others)])  # read one by one below
        best = best_nodes(slots, curve, replays_accepted=self.replays_accepted)
        n, expected, draft_s = [len(nodes) for nodes in best.nodes], best.expected.copy(), [0.0 for _ in slots]
        asked: dict[int, CostlyAsk] = {}
        for _ in range(1 if len(slots) == 1 else 2):  # the best choice for a slot depends on the others
            for i, slot in enumerate(slots):
                if not costly[i]:
                    continue
                asked.pop(i, None)
                n[i], expected[i], draft_s[i] = 0, 0.0, 0.0
                rest = OthersPass(curve, sum(n), sum(expected), sum(draft_s))
                n[i], expected[i] = len(best.nodes[i]), best.expected[i]
                least = rest.rate(max(expected[i], 1 + CONSTANTS.gain), n[i], 0.0)
                for drafter in costly[i]:
                    k, tokens, seconds, rate = self._best_length(slot, drafter, rest, len(best.nodes[i]), best.expected[i] - 1)
                    if rate / CONSTANTS.margin > least:
                        asked[i], least = CostlyAsk(slot, drafter, k), rate / CONSTANTS.margin
                        n[i], expected[i], draft_s[i] = k, tokens, seconds
                if i in asked:
                    asked[i] = self._paced(asked[i], rest, least * CONSTANTS.margin)
                is_waited_for = any(not ask.k for ask in asked.values())
                if (probe := self._probe(slot, costly[i], asked.get(i), rest, least, is_waited_for=is_waited_for)) is not None:
                    asked[i] = probe
        return list(asked.values())

    def least_rate(self, ask: CostlyAsk | None) -> float:
        """The tokens per second that lookups have to promise for a costly drafter not to be asked."""
        if ask is None or ask.is_probe:
            return 0.0 if ask is None else inf
        rest = OthersPass(self.curve([ask.slot]), 0, 0.0, 0.0)
        return self._best_length(ask.slot, ask.drafter, rest, 0, 0.0)[-1] / CONSTANTS.margin

    def _best_length(
        self, slot: SlotProposals, drafter: RequestDrafter, rest: OthersPass, n_nodes: int, n_expected: float
    ) -> tuple[int, float, float, float]:
        """The best promise of a costly drafter: its length, the tokens expected, seconds of drafting, and rate; 0 of none.

        The rate counts a share of the lookups' best nodes, and of the tokens expected of them, which stay beside the draft.
        """
        profile, cost, curve, chance = drafter.profile, drafter.profile.cost, rest.curve, drafter.chances.typical
        found = (0, 0.0, 0.0, 0.0)
        if profile.budget.seconds < 0 or self._is_far_behind(drafter):
            return found
        n_most = slot.limit if cost.is_known else min(slot.limit, max(CONSTANTS.probe_length, slot.n_min))
        share = 1 - chance**CONSTANTS.n_wrong_early
        n_beside, beside, expected, replay_s = round(share * n_nodes), rest.expected + share * n_expected, 1.0, 0.0
        # a round that nobody else is asked for would be plain decoding's, without the time around drafters
        first_s = cost.hopeful_seconds(1, drafter.n_missed) + (0.0 if slot.by_drafter else self.overhead_s)
        further_s = cost.per_further_token if cost.is_known else 0.0
        ahead = chance if self._is_ahead(drafter) else 0.0
        for k in range(1, n_most + 1):  # in every round, so without calls
            gain, draft_s = chance**k, first_s + further_s * (k - 1)
            if self.replays_accepted:  # tokens accepted where a later one is not; each takes as long as a drafted one
                replay_s = curve.extra_s(k, rest.n) / k * max(expected - 1 - (k - 1) * gain, 0.0)
            expected += gain
            n = rest.n + min(k + n_beside, slot.limit)
            if draft_s + further_s <= curve.hoped[n]:  # the next one is there by then, and used if all and a guess are right
                draft_s -= ahead * gain * draft_s
            rate = (expected + beside) / (curve.hoped[n] + rest.draft_s + draft_s + replay_s)
            if rate > found[3] and k >= slot.n_min:
                found = (k, expected, draft_s, rate)
        return found

    def _probe(
        self,
        slot: SlotProposals,
        costly: Sequence[RequestDrafter],
        asked: CostlyAsk | None,
        rest: OthersPass,
        rate: float,
        *,
        is_waited_for: bool,
    ) -> CostlyAsk | None:
        """Try a costly drafter that was not asked for long, where it could be better and the time for it was saved up."""
        for drafter in costly:
            profile = drafter.profile
            if (asked is not None and asked.drafter is drafter) or profile.n_waited < profile.interval:
                continue
            cost, is_far_behind = profile.cost, self._is_far_behind(drafter)
            k = max(min(CONSTANTS.probe_length, slot.limit), slot.n_min)
            if is_far_behind and not is_waited_for:
                ask, ask_s = CostlyAsk(slot, drafter), cost.hopeful_seconds(1, CONSTANTS.n_teacher_forced)
            elif not is_far_behind and k <= slot.limit:
                ask_s = cost.hopeful_seconds(k, drafter.n_missed) + rest.curve.extra_s(k, rest.n)
                ask = CostlyAsk(slot, drafter, k, is_probe=True)
            else:
                continue
            may_pay = self._perfect_rate(slot, drafter, rest) > CONSTANTS.hope * rate
            waited_s = profile.n_waited * self.plain_s
            if profile.budget.covers(ask_s) if may_pay else ask_s <= CONSTANTS.hopeless_share * waited_s:
                return ask
        return None

    def _perfect_rate(self, slot: SlotProposals, drafter: RequestDrafter, rest: OthersPass) -> float:
        """The best rate of a drafter that is always right: drafts that passes have time for, a guess included, are free."""
        found, is_ahead, cost = 0.0, self._is_ahead(drafter), drafter.profile.cost
        for k in range(1, slot.limit + 1):
            is_free = is_ahead and cost.hopeful_seconds(1 + k, 0) <= rest.curve.hoped[rest.n + k]
            found = max(found, rest.rate(1.0 + k, k, 0.0 if is_free else cost.hopeful_seconds(k, 1)))
        return found

    def _is_ahead(self, drafter: RequestDrafter) -> bool:
        """Whether it writes the next draft while a pass is computed."""
        return self.drafts_ahead and drafter.guard.drafts_ahead

    def _is_far_behind(self, drafter: RequestDrafter) -> bool:
        """Whether it has to be asked by teacher forcing before it drafts again."""
        return drafter.profile.can_be_teacher_forced and drafter.n_missed > CONSTANTS.far_behind

    def choose(self, slots: Sequence[SlotProposals], n_others: int = 0) -> list[list[int]]:
        """Choose the nodes (k,) of each slot's tree that are verified, rising, beside `n_others` other tokens in the pass."""
        return best_nodes(slots, self.curve(slots, n_others), replays_accepted=self.replays_accepted).nodes

    def curve(self, slots: Sequence[SlotProposals], n_others: int = 0) -> PassCurve:
        """The curve of a pass over these slots and `n_others` other tokens, by the tokens that it drafts."""
        n_plain = n_others + len(slots) + sum([slot.drafters.n_replayed for slot in slots])
        n_most = n_plain + sum([slot.limit for slot in slots])
        depth = sum([slot.n_context for slot in slots]) / len(slots)
        known, hoped = self.costs.curves(n_most, depth)
        self.plain_s, self.token_s = float(known[1]), float(known[n_plain]) / len(slots)
        return PassCurve(known[n_plain:], hoped[n_plain:])

    def _paced(self, ask: CostlyAsk, rest: OthersPass, rate: float) -> CostlyAsk:
        """The same of a drafter that ends its drafts itself.

        A further token pays while it promises more tokens for its time than the whole pass does. So the draft ends where it has
        become too unlikely. It may go as deep as pays where the drafter is as sure as it can be of every token.
        """
        drafter = ask.drafter
        if not drafter.profile.is_paced or not drafter.profile.cost.is_known:
            return ask
        token_s = drafter.profile.cost.per_further_token + rest.curve.extra_s(1, rest.n + ask.k - 1)
        worth = min(max(rate * token_s, CONSTANTS.least_worth), 1.0)  # tokens
        depth = int(log(worth) / log(min(drafter.chances.surest, CONSTANTS.sure)))
        return ask._replace(pace=Pace(min(max(depth, ask.k), ask.slot.limit), worth / drafter.chances.typical))

    # During its pass

    def n_ahead(
        self,
        choices: Sequence[VerifiedNodes],
        able: Sequence[tuple[VerifiedNodes, RequestDrafter, Sequence[int]]],
        n_others: int,
        begun_s: float,
    ) -> list[int]:
        """How many tokens to draft ahead: as many as are likely enough to be used, as far as the pass has time for them.

        `able` are choices for which a drafter can draft ahead, that drafter, and the nodes that are guessed to be accepted.
        They share the time that is left of the pass, of which `begun_s` are over.

        Returns:
            For each of `able` how many tokens after the one that the target will choose, which is guessed as well.
        """
        n = n_others + sum(1 + len(each.draft) + each.proposals.drafters.n_replayed for each in choices)
        depth = sum(each.proposals.n_context for each in choices) / len(choices)
        left_s = (self.costs.seconds(n, depth) - begun_s) / len(able)
        found = []
        for choice, drafter, path in able:
            k, cost = len(path), drafter.profile.cost
            chances = survival(drafter.chances.typical, k + 1 + choice.proposals.limit)[k + 1 :]
            n_wanted = sum(chance >= CONSTANTS.likely for chance in chances)
            found.append(next((j for j in range(n_wanted, 0, -1) if cost.seconds(1 + j, 0) <= left_s), 0))
        return found

    # After it

    def observe_teacher_forced(self, drafter: RequestDrafter, is_right: Sequence[bool] | None, seconds: float) -> None:
        """A drafter said by teacher forcing which tokens it would have drafted last, and took so long.

        Of the last tokens that nobody drafted `is_right` says whether it would have been right; None: it never can say.
        """
        profile = drafter.profile
        if is_right is None:
            profile.can_be_teacher_forced, profile.n_waited = False, 0
            return
        for each in is_right:
            drafter.chances.see(TYPICAL, is_right=each)
        profile.budget.book(-profile.counted_s(seconds, profile.cost.seconds(1, CONSTANTS.n_teacher_forced)))
        drafter.n_missed = 0
        is_mostly_right = sum(is_right) >= max(CONSTANTS.mostly * len(is_right), 1)
        profile.n_waited = profile.n_waited if is_mostly_right else 0  # one that was right goes on to wait for a try
        profile.schedule(is_right=is_mostly_right)

    def observe_draft(self, drafter: RequestDrafter, k: int, seconds: float) -> None:
        """A drafter was asked, proposed k tokens, and took so long."""
        profile, cost = drafter.profile, drafter.profile.cost
        expected_s = cost.seconds(k, drafter.n_missed) if profile.is_costly else 0.0
        cost.observe(k, drafter.n_missed, seconds)
        if profile.is_costly:  # then it was waited for
            drafter.spent_s += profile.counted_s(seconds, expected_s)
        drafter.n_missed = profile.n_waited = 0
        is_slow = cost.per_ask > CONSTANTS.cheap * self.plain_s / (2 if profile.is_costly else 1)
        if is_slow != profile.is_costly and cost.is_warm and not profile.is_declared_costly:
            profile.is_costly = is_slow

    def observe_proposal(self, drafter: RequestDrafter) -> None:
        """A drafter has a proposal for the coming round, made ahead or not."""
        drafter.n_missed = drafter.profile.n_waited = 0

    def observe_round(
        self,
        rounds: Sequence[tuple[VerifiedNodes, Outcome]],
        depth: float,
        n_others: int,
        pass_s: float,
        overhead_s: float | None = None,
    ) -> None:
        """A round is over, with `n_others` other tokens, none of them replayed, and contexts of `depth` tokens on average.

        It took `overhead_s` beside its pass and drafters' own work for each slot that some drafter was asked for; None of none.
        """
        if overhead_s is not None:
            self.overhead_s += CONSTANTS.learn_overhead * (overhead_s - self.overhead_s)
        n_plain = len(rounds) + n_others
        n_replayed = sum([choice.proposals.drafters.n_replayed for choice, _ in rounds])
        n_drafted = sum([len(choice.nodes) for choice, _ in rounds])
        plain_s, extra_s = pass_s, 0.0
        if n_drafted:
            n_before = n_plain + n_replayed
            known, _ = self.costs.curves(n_before + n_drafted, depth)
            plain_s, extra_s = float(known[n_plain]), float(known[n_before + n_drafted] - known[n_before])
        if not n_others and not n_replayed:  # such tokens have no logits, and cost less
            self.costs.observe(n_plain + n_drafted, depth, pass_s)
        for profile in self.profiles:
            profile.n_waited += 1
        for choice, outcome in rounds:
            self._settle(choice, outcome, plain_s / len(rounds), extra_s / n_drafted if n_drafted else 0.0)

    def _settle(self, choice: VerifiedNodes, outcome: Outcome, plain_s: float, drafted_s: float) -> None:
        """Book the gains and losses of a slot's drafts, if a pass takes `plain_s` for it and `drafted_s` a drafted token."""
        of, drafters, places = choice.proposals.by_drafter, choice.proposals.drafters, choice.proposals.tree.drafters
        k, n_accepted = len(choice.nodes), len(outcome.path)
        drafters.n_replayed = n_accepted if self.replays_accepted and n_accepted < k else 0
        each_s = drafted_s * (1 + drafters.n_replayed / k) if k else 0.0
        round_s = plain_s + each_s * k + sum([drafter.spent_s for drafter in drafters.every])
        lookups = choice.proposals.lookups
        counts = (choice.proposals.counts or choice.counts(outcome.path)) if k else []
        for drafter in lookups:  # a token that another one proposed, too, is the first one's
            *_, n, n_right = counts[places.index(drafter)] if k and drafter in places else (0, 0)
            gain = n_right - n * each_s / plain_s  # or, below 0, what took the time of as many tokens
            drafter.gain += CONSTANTS.learn_gain * (gain - drafter.gain)
            drafter.profile.gain += CONSTANTS.learn_all_gains * (gain - drafter.profile.gain)
        gained_s = 0.0
        if k:
            n, n_accepted, *_ = counts[-1]
            gained_s = n_accepted * plain_s - n * each_s
        drafters.budget.pass_time(round_s, gained_s)
        if (unused := max([drafter.n_right for drafter in lookups], default=0) - n_accepted) > 0:
            drafters.budget.credit(unused * plain_s)
        for drafter in drafters.every:
            profile, spent_s, drafter.spent_s = drafter.profile, drafter.spent_s, 0.0
            if not profile.is_costly:
                continue
            n, n_accepted, *_ = counts[places.index(drafter)] if k and drafter in places else (0, 0)
            profile.budget.pass_time(round_s, n_accepted * plain_s - n * each_s - spent_s if drafter in of else 0.0)
            if drafter not in of:
                continue
            is_right = outcome.is_stopped or (2 * n_accepted >= n > 0) or (not n and drafter.n_right > 0)
            if is_right or choice.probed is drafter:
                profile.schedule(is_right=is_right)


def planner_for(
    model: Model, chain: Sequence[Drafter], draft_max: int, *, replays_accepted: bool, drafts_ahead: bool = False
) -> DraftPlanner | None:
    """A planner for a chain of drafters in every slot, by the measured costs of this model's passes; None without drafters."""
    if not chain:
        return None
    costs = measure_passes(model, model.state_spec.n_slots * (draft_max + 1))
    profiles = map(DrafterProfile.of, chain)
    return DraftPlanner(costs, profiles, replays_accepted=replays_accepted, drafts_ahead=drafts_ahead)
