"""A round's drafts: asks the drafters of all slots, as the planner says or in turn, and gives them their verdicts.

A slot's round is three values, each made once: `SlotProposals` of its drafters, `VerifiedNodes`, the part that is verified, and
`Outcome`, the target's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from time import perf_counter

import numpy as np

from augury.errors import UnsupportedError
from augury.guard import guarded
from augury.interfaces import Ask, Drafter, Pace
from augury.speculation.ahead import draft_ahead
from augury.speculation.compiled_rounds import CompiledPlan, CompiledRound
from augury.speculation.constants import CONSTANTS
from augury.speculation.drafter_guard import DraftedSequence, DrafterGuard, draft_for_all, warn
from augury.speculation.drafts import CostlyAsk, Outcome, Proposal, SlotProposals, VerifiedNodes
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import AheadDraft, DrafterProfile, RequestDrafter, RequestDrafters
from augury.speculation.trials import Trials
from augury.speculation.verification import Synthetic
from augury.types import Draft, Verdict, read_only


class Drafting:
    """The drafters of all slots. Without a planner the first draft of a chain is taken as it is.

    A drafter that fails in a request is left out of the rest of it.

    Attributes:
        on_failure: Told of a drafter's name, the method that failed, the error, and the ids of the requests that it was called
            for, once in a request.
        wants_features: Whether any drafter wants some of the target's.
        n_top: The most probable tokens of each row that some drafter wants to have, at least 1.
        on_trials: Told of the `Trials` of every slot and round, of planned rounds where something was proposed; None: nobody.
    """

    def __init__(
        self,
        chains: Sequence[Sequence[Drafter]],
        planner: DraftPlanner | None,
        n_vocab: int,
        *,
        may_branch: bool = True,
        features: Collection[str] = (),
    ) -> None:
        """Take over each slot's drafters by priority, the same kinds in all slots.

        Without a planner they draft as far as is allowed. If drafts may not branch, one path is taken of a tree.

        Raises:
            UnsupportedError: A drafter wants other features than the target can give for each token.
        """
        self.on_failure: Callable[..., object] = warn
        self.on_trials: Callable[[Trials], object] | None = None
        self._chains = [[*chain] for chain in chains]
        self._retired: list[tuple[list[RequestDrafters], Callable[[], object]]] = []
        self._profiles = [DrafterProfile.of(drafter) for drafter in chains[0]] if planner is None else planner.profiles
        for profile in self._profiles:
            if missing := [each for each in profile.features if each not in features]:
                known = ", ".join(features) or "none"
                message = f"drafter {profile.name} wants {missing[0]!r} of every token; features of this target: {known}"
                raise UnsupportedError(message)
        self.wants_features = any(profile.features for profile in self._profiles)
        self.n_top = max([1, *[profile.n_top for profile in self._profiles]])
        if self._profiles:
            import_module("augury.speculation.round_kernel")  # now, and not in a request's round
        self._planner = planner
        self._n_vocab = n_vocab
        self._may_branch = may_branch
        self._own_s = 0.0  # of a round's proposals and verdicts, without the drafters' calls
        self._drafters: dict[int, RequestDrafters] = {}  # by slot, of its request; empty of one without drafts

    @property
    def plain_s(self) -> float | None:
        """Seconds of a pass of one token, as the planner knows them; None without one. Any thread may ask."""
        return None if self._planner is None else self._planner.plain_s

    def replace(self, place: int, drafters: Sequence[Drafter], retire: Callable[[], object]) -> None:
        """Let others of the same traits, one for each slot, be the drafters at a place of the chains, from the next request on.

        `retire` is called once no request has the ones before.
        """
        for chain, drafter in zip(self._chains, drafters, strict=True):
            chain[place] = drafter
        self._retired.append(([*self._drafters.values()], retire))
        self._retire()

    def _retire(self) -> None:
        running = [*self._drafters.values()]
        for each in [each for each in self._retired if not any(mine is one for mine in each[0] for one in running)]:
            self._retired.remove(each)
            guarded(each[1])

    # A request begins and ends

    def open(self, sequence: DraftedSequence, n_reused: int) -> int:
        """A request has a slot, which holds so many tokens of its prompt; how many of them its drafters can do without."""
        speculation = sequence.speculation
        drafters = self._drafters[sequence.slot] = RequestDrafters(n_min=max(speculation.n_min, 1))
        drafters.may_branch = self._may_branch and speculation.rule.may_branch
        if self._planner is not None:
            drafters.budget = self._planner.new_budget()
        by_name = {each.name: (each, own) for each, own in zip(self._profiles, self._chains[sequence.slot], strict=True)}
        for member in speculation.members if speculation.n_max else ():
            profile, drafter = by_name[member.name]
            n_buckets = profile.chances.n_evidence
            guard = DrafterGuard(drafter, member.name, sequence, self._n_vocab, n_buckets, self.on_failure)
            drafters.every.append(RequestDrafter(profile, guard))
            guard.is_left_out = guard.counts["failed"] is not None  # before the text was cut
            if not guard.is_left_out:
                n_reused = min(n_reused, guard.n_held(n_reused)) if n_reused else 0
        sequence.is_drafted = bool(drafters.every)
        return n_reused

    def begin(self, sequence: DraftedSequence) -> None:
        """A request's prompt is processed: its drafters may begin."""
        if (drafters := self._drafters[sequence.slot]).every:
            drafters.prefill, sequence.waits_for_drafters = self._prefill(sequence, drafters.every), True

    def prefill(self, sequence: DraftedSequence) -> None:
        """Let a request's drafters go a step on with its prompt, for which it waits until all of them are through with it."""
        sequence.waits_for_drafters = next(self._drafters[sequence.slot].prefill, True) is None

    def _prefill(self, sequence: DraftedSequence, drafters: Sequence[RequestDrafter]) -> Iterator[None]:
        """Let one drafter after another begin; yields where others shall go on in between."""
        for drafter, member in zip(drafters, sequence.speculation.members, strict=True):
            if drafter.guard.is_left_out:
                continue
            seconds = yield from drafter.guard.begin(member.options)
            if not drafter.guard.is_left_out:
                drafter.profile.cost.observe_prompt(len(sequence.history), seconds)

    def features(self, sequences: Sequence[DraftedSequence]) -> tuple[str, ...]:
        """The features that the drafters of some requests want."""
        members = (drafter for each in sequences for drafter in self._drafters[each.slot].members)
        return tuple(sorted({name for drafter in members for name in drafter.profile.features}))

    def feed(self, sequence: DraftedSequence, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """Tokens from `start` on are computed, and kept: feed the request's drafters."""
        for drafter in self._drafters[sequence.slot].members:
            if names := drafter.profile.features:
                drafter.guard.feed(start, read_only(tokens), {name: read_only(features[name]) for name in names})

    def end(self, sequence: DraftedSequence) -> None:
        """A request is over: tell those of its drafters that have begun."""
        if (drafters := self._drafters.pop(sequence.slot, None)) is not None:
            if drafters.n_rested:
                drafters.wake(self.plain_s or 0.0)
            for drafter in drafters.every:
                drafter.guard.end()
        if self._retired:
            self._retire()

    # Before a pass

    def rest(self, sequences: Sequence[DraftedSequence], n_most: int = 1) -> int:
        """Let the drafters of all these sequences rest for the next rounds, until some are to be asked; returns for how many.

        These rounds are plain decoding's: nothing is proposed or settled, and drafters hear of them when they wake.
        """
        of = [self._drafters[each.slot] for each in sequences]
        n = min([n_most, *[each.n_resting for each in of]])
        for each in of:
            each.n_resting, each.n_rested = each.n_resting - n, each.n_rested + n
        for profile in self._profiles:
            profile.n_waited += n
        return n

    def plan_compiled(self, sequence: DraftedSequence, limit: int, n_most: int) -> CompiledPlan | None:
        """Who is to be asked in the next rounds, `n_most` at most; None: they need Python."""
        planner, drafters = self._planner, self._drafters[sequence.slot]
        if planner is None or limit < 1 or not drafters.may_branch:
            return None
        slot = SlotProposals(sequence, drafters, limit, len(sequence.history), drafters.n_min, True, planner.agreement)
        if drafters.n_resting:
            return CompiledPlan(slot, planner.curve([slot]), [], min(n_most, drafters.n_resting))
        if drafters.n_rested:
            drafters.wake(planner.plain_s)
        members, costly = drafters.members, None
        asked, n = planner.asked(members), planner.n_without_costly(members, n_most)
        if [each for each in (members if n < 1 else asked) if each.profile.is_certain or not each.guard.has_functions]:
            return None
        if n < 1 and (asks := planner.asks([slot])):
            if not asks[0].k:
                self._teacher_force(planner, slot, asks[0].drafter)
                asks = [each for each in planner.asks([slot]) if each.k]
            (costly,) = asks or (None,)
        n = 1 if costly and costly.is_probe else n if n > 0 else n_most
        return CompiledPlan(slot, planner.curve([slot]), asked, n, costly, planner.least_rate(costly))

    def settle_compiled(self, done: CompiledRound, pass_s: float, begin_s: float) -> None:
        """Settle one of compiled rounds; its pass took `pass_s` without interruptions, and to begin took `begin_s` of each."""
        slot, self._own_s = done.choice.proposals, begin_s + done.draft_s
        for drafter, seconds in done.drafter_s().items():
            drafter.guard.seconds = drafter.guard.own_s = seconds
        asks = [(slot, each, Ask(each.guard.drafter, each.guard.history, slot.limit)) for each in slot.by_drafter]
        self._ask(asks, {drafter.guard: proposal.draft for drafter, proposal in slot.by_drafter.items()})
        self.settle(done.choice, done.outcome)
        self.observe_round([(done.choice, done.outcome)], 0, pass_s)

    def propose(self, limits: Sequence[tuple[DraftedSequence, int]], n_others: int) -> list[VerifiedNodes]:
        """The draft that each sequence takes into the round, of so many tokens at most, beside `n_others` other ones."""
        start, self._own_s = perf_counter(), 0.0
        agreement = None if self._planner is None else self._planner.agreement
        slots = []
        for sequence, limit in limits:
            drafters, n_context = self._drafters[sequence.slot], len(sequence.history)
            if drafters.n_rested:
                self._own_s -= drafters.wake(self.plain_s or 0.0)
            slot = SlotProposals(sequence, drafters, limit, n_context, drafters.n_min, drafters.may_branch, agreement)
            if self._planner is None:
                slot.n_top = max([drafter.profile.n_top for drafter in drafters.members], default=0)
            slots.append(slot)
        asking = [slot for slot in slots if slot.limit > 0]
        if self._planner is None:
            choices = self._first(asking)
        else:
            choices = self._planned(self._planner, asking, n_others + len(slots) - len(asking)) if asking else {}
        self._own_s += perf_counter() - start
        return [choices.get(slot) or VerifiedNodes(slot) for slot in slots]

    def _first(self, slots: Sequence[SlotProposals]) -> dict[SlotProposals, VerifiedNodes]:
        """The first draft of every chain that is not empty, whole."""
        choices: dict[SlotProposals, VerifiedNodes] = {}
        members = [slot.drafters.members for slot in slots]
        for place in range(max(map(len, members), default=0)):
            turn = [
                (slot, mine[place], Ask(mine[place].guard.drafter, mine[place].guard.history, slot.limit))
                for slot, mine in zip(slots, members, strict=True)
                if slot not in choices and place < len(mine)
            ]
            for slot, drafter, draft in self._ask(turn):
                if (choice := self._whole(slot, drafter, draft)) is not None:
                    choices[slot] = choice
        return choices

    def _whole(self, slot: SlotProposals, drafter: RequestDrafter, draft: Draft) -> VerifiedNodes | None:
        """A draft alone, without the part that cannot be verified; None if nothing is left, or too little."""
        part, kept = (draft, np.arange(len(draft))) if slot.may_branch else draft.trunk()
        if (possible := slot.sequence.possible(part.tokens.tolist(), part.above.tolist())) is not None:
            part, kept = part.only(np.array(possible, np.int64)), kept[possible]
        speculation = slot.sequence.speculation
        # the draws may end a draft early: throwing it away would favour other draws
        n_min = 1 if speculation.rule.depends_on_draft else slot.n_min
        if len(part) < n_min:
            slot.by_drafter[drafter] = Proposal(draft, np.full(len(draft), -1))
            return None
        slot.take(drafter, draft)
        return VerifiedNodes(slot, part, kept.tolist())

    def _planned(
        self, planner: DraftPlanner, slots: Sequence[SlotProposals], n_others: int
    ) -> dict[SlotProposals, VerifiedNodes]:
        """Ask the cheap drafters, then the costly ones that promise to pay, and take the best of all proposals."""
        cheap: list[tuple[SlotProposals, RequestDrafter, Ask]] = []
        for slot in slots:
            if slot.drafters.ahead is not None:
                self._take_ahead(planner, slot, slot.drafters.ahead)
            for drafter in planner.asked([each for each in slot.drafters.every if not each.guard.is_left_out]):
                pace = Pace(slot.limit) if drafter.profile.is_paced else None
                cheap.append((slot, drafter, Ask(drafter.guard.drafter, drafter.guard.history, slot.limit, pace=pace)))
        for slot, drafter, draft in self._ask(cheap):
            slot.add(drafter, draft)
        if restricted := [slot for slot in slots if slot.sequence.is_constrained]:
            self._forbid(restricted)
        probed: dict[SlotProposals, RequestDrafter] = {}
        if any([each.is_costly for each in planner.profiles]) and (asks := planner.asks(slots, n_others)):  # noqa: C419 - a generator takes longer
            probed = {ask.slot: ask.drafter for ask in asks if ask.is_probe}
            for ask in asks:
                if not ask.k:
                    self._teacher_force(planner, ask.slot, ask.drafter)
            waited_for = [(ask.slot, ask.drafter, self._costly_ask(ask)) for ask in asks if ask.k]
            for slot, drafter, draft in self._ask(waited_for):
                slot.add(drafter, draft)
            self._forbid(restricted)
        if not [slot for slot in slots if slot.tree.n]:
            return {slot: VerifiedNodes(slot, probed=probed[slot]) for slot in probed}
        nodes = planner.choose(slots, n_others)
        return {
            slot: VerifiedNodes(slot, slot.tree.part(mine), mine, probed.get(slot))
            for slot, mine in zip(slots, nodes, strict=True)
        }

    @staticmethod
    def _costly_ask(ask: CostlyAsk) -> Ask:
        """The planner's ask. Where chance accepts drafts, a drafter's own probabilities must not end them."""
        pace = ask.pace if ask.slot.sequence.speculation.rule.judges_by_text else None
        guard = ask.drafter.guard
        return Ask(guard.drafter, guard.history, ask.slot.limit if pace else ask.k, pace=pace)

    def _forbid(self, slots: Sequence[SlotProposals]) -> None:
        for slot in slots:
            if slot.tree.n and (possible := slot.sequence.possible(slot.tree.tokens, slot.tree.parents)) is not None:
                slot.forbid(possible)

    def _teacher_force(self, planner: DraftPlanner, slot: SlotProposals, drafter: RequestDrafter) -> None:
        """Have a drafter say which tokens it would have drafted last, and judge it by the ones that no drafter proposed."""
        sequence, guard = slot.sequence, drafter.guard
        is_right, seconds = None, 0.0
        if sequence.speculation.rule.judges_by_text:
            tokens, seconds = guard.teacher_forced(CONSTANTS.n_teacher_forced), guard.own_s
            self._own_s -= guard.seconds
            if guard.is_left_out:
                return
            if tokens is not None:
                pairs = zip(tokens.tolist(), sequence.pieces[-CONSTANTS.n_teacher_forced :], strict=True)
                is_right = [token == piece.token for token, piece in pairs if piece.drafter is None]
        planner.observe_teacher_forced(drafter, is_right, seconds)

    def _ask(
        self, asks: Sequence[tuple[SlotProposals, RequestDrafter, Ask]], drafts: Mapping[DrafterGuard, Draft] | None = None
    ) -> list[tuple[SlotProposals, RequestDrafter, Draft]]:
        """The drafts of drafters for slots, unless they are there; one drafter is asked for all of its slots together."""
        found: list[tuple[SlotProposals, RequestDrafter, Draft]] = []
        drafts = draft_for_all([(drafter.guard, ask) for _, drafter, ask in asks]) if drafts is None else drafts
        for slot, drafter, _ in asks:
            guard, counts, draft = drafter.guard, drafter.guard.counts, drafts[drafter.guard]
            n, seconds = len(draft.tokens), guard.seconds
            self._own_s -= seconds
            counts["calls"], counts["draft_s"] = counts["calls"] + 1, counts["draft_s"] + seconds
            counts["drafts"] += n > 0
            if not guard.is_left_out:
                if self._planner is not None:
                    self._planner.observe_draft(drafter, draft.depth if drafter.profile.is_costly else n, guard.own_s)
                found.append((slot, drafter, draft))
        return found

    def _take_ahead(self, planner: DraftPlanner, slot: SlotProposals, ahead: AheadDraft) -> None:
        """A draft that was made ahead is proposed, if its guess was right."""
        slot.drafters.ahead = None
        if ahead.drafter.guard.is_left_out or not ahead.follows(slot.sequence.history):
            return
        planner.observe_proposal(ahead.drafter)
        if len(draft := ahead.draft.cut(slot.limit)):
            counts = ahead.drafter.guard.counts
            counts["calls"], counts["drafts"] = counts["calls"] + 1, counts["drafts"] + 1
            slot.add(ahead.drafter, draft, is_ahead=True)

    # During it, where the target computes on a device of its own

    def draft_ahead(self, choices: Sequence[VerifiedNodes], n_others: int, begun_s: float) -> float:
        """See `augury.speculation.ahead`; 0 without a planner, which knows whether that pays."""
        return 0.0 if self._planner is None else draft_ahead(self._planner, choices, n_others, begun_s)

    # After it

    def settle(self, choice: VerifiedNodes, outcome: Outcome) -> None:
        """Tell a sequence's drafters the round's verdict."""
        start, proposals = perf_counter(), choice.proposals
        sequence, n_emitted = proposals.sequence, outcome.n_emitted
        rule, emitted = sequence.speculation.rule, sequence.history[-n_emitted:].astype(np.int64)
        if proposals.agreement is not None and proposals.by_drafter and rule.judges_by_text:
            if self.on_trials is not None:
                guarded(self.on_trials, Trials(proposals, emitted.tolist()))
            if len(proposals.by_drafter) > 1 and proposals.tree.n:
                proposals.tree.teach(proposals.agreement, emitted)
        proposals.counts = choice.counts(outcome.path) if choice.nodes else []
        counts = dict(zip(proposals.tree.drafters, proposals.counts, strict=False))
        for drafter in proposals.drafters.every:
            guard, proposal = drafter.guard, proposals.by_drafter.get(drafter)
            n_proposed = n_offered = n_accepted = 0
            path: Sequence[int] = ()
            if proposal is not None and (n_proposed := len(proposal.nodes)) and drafter in counts:
                n_offered, n_accepted, depth, *_ = counts[drafter]
                if n_accepted:
                    own = proposal.nodes.tolist()
                    path = [own.index(node) for node in [choice.nodes[i] for i in outcome.path] if node in own]
                if n_offered:
                    sequence.counter.verified(guard.name, n_offered, n_accepted, depth, is_ahead=proposal.is_ahead)
            if guard.is_left_out:
                continue
            if self._planner is not None:
                truth: Sequence[int] | np.ndarray = emitted
                if proposal is not None and isinstance(rule, Synthetic):
                    truth = rule.truth(proposal.draft, emitted.tolist(), sequence.chance)
                proposals.score(drafter, truth)
            n_offered = n_accepted if outcome.is_stopped else n_offered  # the tokens after its end were not rejected
            top: tuple[np.ndarray, ...] = ()
            if (n_top := drafter.profile.n_top) and outcome.top is not None:
                after, parents, ids, logits = outcome.top
                top = (after, parents, ids[:, :n_top], logits[:, :n_top])
            guard.accept(Verdict(n_offered, n_accepted, n_emitted, n_offered > 0, n_proposed, path, *top))
            self._own_s -= guard.seconds
        if self._planner is not None and not outcome.path:
            proposals.drafters.n_resting = self._planner.n_resting(proposals.drafters.members, is_plain=not choice.nodes)
        self._own_s += perf_counter() - start

    def observe_round(self, rounds: Sequence[tuple[VerifiedNodes, Outcome]], n_others: int, pass_s: float) -> None:
        """A pass over these slots and `n_others` other tokens took so long, without interruptions."""
        if self._planner is not None:
            n_context = sum([choice.proposals.n_context for choice, _ in rounds])
            n_asked = sum([bool(choice.proposals.by_drafter) for choice, _ in rounds])
            overhead_s = self._own_s / n_asked if n_asked else None
            self._planner.observe_round(rounds, n_context / len(rounds), n_others, pass_s, overhead_s)
