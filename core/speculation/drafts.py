"""The records of drafting: drafters' profiles, and one slot's round: proposals, the nodes of them that pay, and the outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from attrs import Factory, define, field, frozen

from augury.errors import PluginError
from augury.interfaces import Drafter, DrafterTraits, Pace
from augury.speculation.chances import Agreement, Bucket, Chances
from augury.speculation.constants import CONSTANTS, TYPICAL, kernels
from augury.speculation.costs import DraftCost, LossBudget
from augury.speculation.drafter_guard import DraftedSequence, DrafterGuard
from augury.speculation.joint_tree import JointTree
from augury.types import NO_DRAFT, Draft, Verdict


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

    @property
    def is_lookup(self) -> bool:
        """Whether it is asked for next to nothing, and what it proposes has to prove itself."""
        return not (self.is_costly or self.is_certain)

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

    @property
    def can_extend(self) -> bool:
        """Whether it may be asked for tokens after others', as far as is known without asking it."""
        return self.profile.is_lookup and not self.guard.is_asked_alone

    def score(self, slot: SlotProposals, emitted: Sequence[int]) -> None:
        """Learn from the tokens that a round emitted by its proposal, used or not. A forbidden token is no trial."""
        self.n_missed += len(emitted)
        self.n_right = 0
        proposal = slot.by_drafter.get(self)
        if proposal is None or not len(proposal.nodes):
            self.run = 0  # its next find is another stretch
            if proposal is not None and self.profile.is_costly:
                self.chances.see(TYPICAL, is_right=False)  # it was paid for
            return
        self.run, self.n_right = slot.tree.score(proposal.nodes, proposal.buckets, self.chances, self.run, emitted)


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


# One slot's round: named tuples where each round makes some, because these are made in a third of the time


class CostlyAsk(NamedTuple):
    """The drafts that a costly drafter is asked for."""

    slot: SlotProposals
    drafter: RequestDrafter
    k: int = 0  # tokens one after another; 0: its drafts for the last tokens of the text, by teacher forcing
    pace: Pace | None = None  # of one that ends drafts itself where they stop paying
    is_probe: bool = False  # not because it promises more, but to see whether it does


_NONE = np.empty(0, np.int64)


class Proposal(NamedTuple):
    """The proposal of one drafter."""

    draft: Draft  # after the history
    nodes: np.ndarray  # (k,) int64, of the slot's tree, also of tokens after others'; -1 of those left out
    buckets: np.ndarray = _NONE  # (k,) int64, see `Chances`; none where nobody plans
    is_ahead: bool = False  # it was made during the pass before

    def bucket(self, node: int) -> int:
        """The bucket of a node that it has."""
        return int(self.buckets[self.nodes == node][-1])

    def places(self, nodes: Sequence[int]) -> list[int]:
        """Which of its tokens some nodes of the tree are, as far as it has them."""
        own = self.nodes.tolist()
        return [own.index(node) for node in nodes if node in own]


@define(eq=False)
class SlotProposals:
    """The proposals of a slot's drafters for a round."""

    sequence: DraftedSequence
    drafters: RequestDrafters
    limit: int  # at most so many tokens can be verified
    n_context: int  # tokens of the text
    n_min: int = 1  # fewer tokens are not wanted
    may_branch: bool = True  # otherwise one path alone can be verified
    agreement: Agreement | None = None  # None: nothing is learnt
    by_drafter: dict[RequestDrafter, Proposal] = Factory(dict)  # of the drafters that were asked
    tree: JointTree[RequestDrafter] = Factory(JointTree)
    counts: list[list[int]] = Factory(list)  # see `VerifiedNodes.counts`; known once the round is settled
    # the nodes of the tree that are verified with any chance: drawn tokens, each after its parent. They are in the order of
    # their drafters, so which of them there is room for does not depend on what later ones drew. Known once `reach` was asked
    drawn: list[int] = Factory(list)
    _reach: np.ndarray | None = None

    def take(self, drafter: RequestDrafter, draft: Draft) -> None:
        """Take a draft as it is, alone."""
        self.tree = JointTree.alone(drafter, draft)
        self.by_drafter[drafter] = Proposal(draft, np.arange(len(draft)))

    def add(self, drafter: RequestDrafter, draft: Draft, *, is_ahead: bool = False) -> None:
        """Merge a draft into the tree."""
        if not len(draft.tokens):
            self.by_drafter[drafter] = Proposal(draft, _NONE)
            return
        buckets = drafter.chances.buckets(draft, drafter.run)
        nodes = self.tree.add(drafter, draft, drafter.chances.of(buckets))
        self.by_drafter[drafter] = Proposal(draft, nodes, buckets, is_ahead)
        self._reach = None

    def extend(self, drafter: RequestDrafter, draft: Draft, node: int) -> None:
        """Merge a further draft, after a node of the tree, of a drafter that has a proposal."""
        before, buckets = self.by_drafter[drafter], drafter.chances.buckets(draft, 0)
        nodes = self.tree.add(drafter, draft, drafter.chances.of(buckets), node)
        both = np.concatenate([before.nodes, nodes]), np.concatenate([before.buckets, buckets])
        self.by_drafter[drafter] = before._replace(nodes=both[0], buckets=both[1])
        self._reach = None

    def forbid(self, nodes: Sequence[int]) -> None:
        """Nothing but these nodes of the tree, which are rising, can be right."""
        self.tree.forbid(nodes)
        self._reach = None

    def reach(self) -> np.ndarray:
        """By node of the tree: the chance that it is accepted; 0 of one that cannot be verified."""
        if self._reach is None:
            self._reach = reach = self.tree.reach(self.agreement)
            self.drawn = []
            if self.tree.drawn:
                self.drawn = list(dict.fromkeys(each for node in self.tree.drawn for each in self.tree.ancestry([node])))
            if not self.may_branch:
                path = self.tree.best_path()
                reach[np.delete(np.arange(len(reach)), path)] = 0.0
                self.drawn = [node for node in self.drawn if node in path]
        return self._reach

    @property
    def n_top(self) -> int:
        """How many of the most probable tokens its drafters want to have."""
        drafters = self.drafters.members if self.agreement is None else self.by_drafter
        return max([drafter.profile.n_top for drafter in drafters], default=0)


class VerifiedNodes(NamedTuple):
    """The part of a slot's proposals that is verified."""

    proposals: SlotProposals
    draft: Draft = NO_DRAFT  # k tokens
    nodes: Sequence[int] = ()  # (k,) of the slot's tree
    probed: RequestDrafter | None = None  # asked not because it promises more, but to see whether it does

    @property
    def names(self) -> list[str]:
        """(k,) the first drafter of each token."""
        tree = self.proposals.tree
        return [tree.drafters[bit.bit_length() - 1].profile.name for bit in tree.proposed(self.nodes, is_first=True)]

    def counts(self, accepted: Sequence[int]) -> list[list[int]]:
        """See `JointTree.count`: by the places of accepted nodes, at last of all lookups as one."""
        lookups = [each for each in self.proposals.by_drafter if each.profile.is_lookup]
        return self.proposals.tree.count(self.nodes, accepted, lookups)

    def path(self) -> list[int]:
        """The nodes of the likeliest path, as far as it is verified."""
        self.proposals.reach()
        return list(takewhile(set(self.nodes).__contains__, self.proposals.tree.best_path()))


class Outcome(NamedTuple):
    """The target's answer to a choice."""

    path: Sequence[int]  # the tokens of the draft that were accepted, rising
    n_emitted: int
    is_stopped: bool = False  # the request ended within the right part of the draft
    top: tuple[np.ndarray, ...] | None = None  # `Verdict.top_after`, `top_parents`, `top_ids` and `top_logits`


class PassCurve(NamedTuple):
    """Passes of a round: with n tokens drafted they take `known[n]` seconds, or as little as `hoped[n]`."""

    known: Sequence[float]
    hoped: Sequence[float]

    def extra_s(self, n: int, before: int = 0) -> float:
        """Seconds that n drafted tokens add to a pass with so many before them."""
        return self.known[before + n] - self.known[before]


class OthersPass(NamedTuple):
    """A pass as one slot finds it: the tokens of the others."""

    curve: PassCurve
    n: int  # drafted tokens
    expected: float  # tokens
    draft_s: float

    def rate(self, expected: float, n: int, draft_s: float) -> float:
        """Tokens per second of all slots, where this one expects so many, brings n into the pass and drafts for `draft_s`."""
        return (self.expected + expected) / (self.curve.hoped[self.n + n] + self.draft_s + draft_s)


class Best(NamedTuple):
    """The nodes chosen from the trees."""

    nodes: list[list[int]]  # by slot, rising
    expected: list[float]  # tokens, by slot


def best_nodes(slots: Sequence[SlotProposals], curve: PassCurve, *, replays_accepted: bool = False) -> Best:
    """Rank the nodes of all trees by their chance to be accepted, and take the first n, for the best n by a pass's curve.

    A child never ranks before its parent. Drawn tokens come first, in the order of their proposal, and are taken in any case as
    far as there is room: this must not depend on the tokens themselves. No tree branches where the pass `replays_accepted`.
    """
    sizes, rows, end = [len(slot.tree) for slot in slots], list[tuple[int, ...]](), 0
    if not any(sizes):  # nothing is proposed
        return Best([[] for _ in slots], [1.0] * len(slots))
    reach, ranks = np.concatenate([slot.reach() for slot in slots]), np.full(sum(sizes), -1)
    for slot, size in zip(slots, sizes, strict=True):
        paid = slot.tree.bits([each for each in slot.by_drafter if not each.profile.is_lookup])
        for rank, node in enumerate(slot.drawn):
            ranks[end + node] = rank
        start, end = end, end + size
        rows.append((start, end, slot.limit, slot.n_min, paid))
    is_chosen, expected = np.zeros(len(reach), np.bool_), np.ones(len(slots))
    kernels.choose(
        np.concatenate([slot.tree.nodes[:, :size] for slot, size in zip(slots, sizes, strict=True)], axis=1),
        reach,
        ranks,
        np.array(rows, np.int64),
        np.array([(slot.drafters.budget.seconds, slot.drafters.budget.first) for slot in slots], float),
        np.array(curve.known),
        np.array(curve.hoped),
        float(sum([drafter.spent_s for slot in slots for drafter in slot.by_drafter])),
        replays_accepted,
        is_chosen,
        expected,
    )
    return Best([is_chosen[start:end].nonzero()[0].tolist() for start, end, *_ in rows], expected.tolist())


@frozen
class Trial:
    """A token that was proposed, used or not, where all before it was right."""

    chance: float  # that it is right, as the planner had it
    is_right: bool
    buckets: Mapping[str, Bucket]  # by the names of the drafters that proposed it
    own_chance: float = 0.0  # the highest of theirs, before the effect of other proposals
    agreement: Bucket | None = None  # that effect's; None where nothing is learnt of it


@frozen(eq=False)
class Trials:
    """The trials of one slot's round. They are worked out when they are iterated over: no round waits for that."""

    proposals: SlotProposals
    emitted: Sequence[int]

    def __iter__(self) -> Iterator[Trial]:
        tree, reach = self.proposals.tree, self.proposals.reach().tolist()
        of = self.proposals.by_drafter
        kinds, chances, proposers = tree.kinds() if len(of) > 1 else (), tree.chances.tolist(), tree.proposers
        reached = 1.0
        for tried, right in tree.tried(self.emitted):
            for i in tried:
                if reach[i] > 0:
                    buckets = {each.profile.name: each.profile.chances.bucket(of[each].bucket(i)) for each in proposers[i]}
                    agreement = Agreement.bucket(kinds[i], chances[i]) if kinds and chances[i] < 1 else None
                    yield Trial(reach[i] / reached, i == right, buckets, chances[i], agreement)
            if right < 0 or not (reached := reach[right]):
                return
