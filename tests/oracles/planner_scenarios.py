"""Scenarios of invented costs and drafters for the planner: time is a sum, what a drafter gets right is drawn beforehand."""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace

import numpy as np
from attrs import frozen
from support.toys import planner_of

from augury.speculation.constants import CONSTANTS
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafts import Outcome, SlotProposals, VerifiedNodes
from augury.speculation.profiles import RequestDrafter, RequestDrafters
from augury.types import Draft

DEPTH = 100


def request_of(planner):
    """A new request that all drafters of a planner serve."""
    guard = SimpleNamespace(is_left_out=False, is_asked_alone=False, drafts_ahead=True)
    return RequestDrafters([RequestDrafter(profile, guard) for profile in planner.profiles], budget=planner.new_budget())


def slot_of(request, proposals=(), limit=16, n_min=1, n_context=DEPTH, agreement=None):
    """A slot's proposals, by drafter: drafts, or how many tokens, which are other ones for every drafter."""
    slot = SlotProposals(None, request, limit, n_context, n_min, agreement=agreement)
    for index, draft in dict(proposals).items():
        made = draft if isinstance(draft, Draft) else Draft([1000 * (index + 1) + i for i in range(draft)])
        slot.add(request.every[index], made)
    return slot


def chosen(planner, *slots, n_others=0):
    """How many tokens a planner chooses of each slot."""
    return [len(nodes) for nodes in planner.choose(slots, n_others)]


def choice_of(slot, nodes, **how):
    """The choice of some nodes of a slot's tree."""
    return VerifiedNodes(slot, slot.tree.part(nodes), nodes, **how)


def outcome_of(n_accepted, **how):
    """The outcome of a chain."""
    return Outcome(range(n_accepted), n_accepted + 1, **how)


@frozen
class Source:
    """A drafter: by position of the text whether it is right there, and what drafting takes."""

    right: np.ndarray  # (n,) bool
    per_token_s: float = 0.0
    per_missed_s: float = 0.0
    is_costly: bool = False
    per_ask_s: float = 0.0  # of one that is not
    can_be_teacher_forced: bool = True  # of one that is
    slow_s: tuple[float, ...] = ()  # that its first asks take beside drafting
    wrong: int = 1_000_000  # its wrong tokens

    @cached_property
    def _tokens(self):
        return np.where(self.right, np.arange(len(self.right)), self.wrong).tolist()

    def proposal(self, position, limit):
        """Its tokens: those of the text are their positions; nothing after a wrong one matters."""
        return self._tokens[position : position + limit]


def stretches(rng, n, mean_right, mean_wrong):
    """Text that is copied in stretches, as code is edited: right for a while, then wrong for a while."""
    right = []
    while len(right) < n:
        right += [True] * int(rng.geometric(1 / mean_right)) + [False] * int(rng.geometric(1 / mean_wrong))
    return np.array(right[:n])


@frozen
class Played:
    """A round that was played."""

    position: int
    k: int  # tokens verified
    drafters: frozenset[int]  # who proposed them
    is_teacher_forced: bool


class Scenario:
    """Plays one request at a time on one slot."""

    def __init__(self, costs, sources, n_max=16):
        self.costs = costs  # [n]: seconds of a pass of n tokens
        self.sources = sources
        self.n_max = n_max
        self.n_text = len(sources[0].right)
        self.rounds = []  # of the last play

    def planner(self):
        sizes = [n for n in (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17) if n < len(self.costs)]
        costs = PassCosts([PassTime(n, 0, self.costs[n]) for n in sizes], self.n_max + 1)
        return planner_of(costs, *(source.is_costly for source in self.sources))

    def plain(self):
        """Seconds without any drafter."""
        return self.n_text * self.costs[1]

    def fixed(self, index, k):
        """Seconds with one drafter that always drafts k tokens."""
        source = self.sources[index]
        position = seconds = 0
        while position < self.n_text:
            proposal = source.proposal(position, min(k, self.n_text - position - 1))
            n_emitted = 1 + _n_right(proposal, position)
            seconds += self.costs[1 + len(proposal)] + source.per_token_s * len(proposal) + source.per_missed_s * n_emitted
            position += n_emitted
        return seconds

    def best_fixed(self):
        """The least of them, plain decoding included."""
        every = [self.fixed(index, k) for index in range(len(self.sources)) for k in range(1, self.n_max + 1)]
        return min([self.plain(), *every])

    def play(self, planner=None, *, overlaps=False):
        """Seconds with the planner, on the CPU or on a device that leaves the CPU free to draft ahead."""
        planner = planner or self.planner()
        planner.drafts_ahead = overlaps
        request = request_of(planner)
        sources = dict(zip(request.every, self.sources, strict=True))
        slow_s = {drafter: iter(source.slow_s) for drafter, source in sources.items()}
        for drafter, source in sources.items():
            drafter.profile.cost.observe_prompt(DEPTH, DEPTH * source.per_missed_s)
        self.rounds = []
        position = seconds = 0
        ahead = (None, None, 0)  # where a guess is right, who made it, and what it drafted after it
        while position < self.n_text:
            limit = min(self.n_max, self.n_text - position - 1)
            slot = slot_of(request, limit=limit)
            if ahead[0] == position:
                planner.observe_proposal(ahead[1])
                slot.add(ahead[1], Draft(sources[ahead[1]].proposal(position, min(ahead[2], limit))))
            for drafter in planner.asked(request.every) if limit else ():
                source = sources[drafter]
                draft = Draft(source.proposal(position, limit))
                planner.observe_draft(drafter, len(draft), source.per_ask_s)
                seconds += source.per_ask_s
                slot.add(drafter, draft)
            asks = planner.asks([slot]) if limit else []
            for ask in asks:
                source = sources[ask.drafter]
                if not ask.k:
                    seconds += self._teacher_force(planner, ask.drafter, source, position)
                    continue
                draft = Draft(source.proposal(position, ask.k))
                ask_s = source.per_token_s * ask.k + source.per_missed_s * ask.drafter.n_missed
                ask_s += next(slow_s[ask.drafter], 0.0)
                seconds += ask_s
                planner.observe_draft(ask.drafter, len(draft), ask_s)
                slot.add(ask.drafter, draft)
            (nodes,) = planner.choose([slot])
            probed = next((ask.drafter for ask in asks if ask.is_probe), None)
            choice = choice_of(slot, nodes, probed=probed)
            path = _path(choice.draft, position)
            outcome = Outcome(path, len(path) + 1)
            for drafter in request.every:
                slot.score(drafter, range(position, position + outcome.n_emitted))
            pass_s = self.costs[1 + len(nodes)]
            ahead, late_s = (None, None, 0), 0.0
            if overlaps and nodes:
                ahead, late_s = self._draft_ahead(planner, choice, sources, position, pass_s)
            seconds += pass_s + late_s
            planner.observe_round([(choice, outcome)], DEPTH, 0, pass_s)
            proposers = slot.tree.proposers if nodes else []
            used = {request.every.index(each) for node in nodes for each in proposers[node]}
            self.rounds.append(Played(position, len(nodes), frozenset(used), any(not ask.k for ask in asks)))
            position += outcome.n_emitted
        return seconds

    def _draft_ahead(self, planner, choice, sources, position, pass_s):
        drafter = next((each for each in choice.proposals.by_drafter if each.profile.is_costly), None)
        if drafter is None:
            return (None, None, 0), 0.0
        (n,) = planner.n_ahead([choice], [(choice, drafter, choice.path())], 0, 0.0)
        if not n:
            return (None, None, 0), 0.0
        source, after = sources[drafter], position + len(choice.draft)
        ahead_s = source.per_token_s * (1 + n)
        late_s = max(ahead_s - pass_s, 0.0)
        drafter.profile.cost.observe(1 + n, 0, ahead_s)
        drafter.spent_s += late_s
        is_right = len(_path(choice.draft, position)) == len(choice.draft) and after < self.n_text and source.right[after]
        return (after + 1 if is_right else None, drafter, n), late_s

    def _teacher_force(self, planner, drafter, source, position):
        is_right, took_s = None, 0.0
        if source.can_be_teacher_forced:
            is_right = source.right[position - CONSTANTS.n_teacher_forced : position].tolist()
            took_s = source.per_token_s + CONSTANTS.n_teacher_forced * source.per_missed_s
        planner.observe_teacher_forced(drafter, is_right, took_s)
        return took_s


def _n_right(proposal, position):
    return next((i for i, token in enumerate(proposal) if token != position + i), len(proposal))


def _path(draft, position):
    """The places of the tokens that are right."""
    path, node = [], -1
    for i, (token, parent) in enumerate(zip(draft.tokens.tolist(), draft.above.tolist(), strict=True)):
        if parent == node and token == position + len(path):
            path.append(node := i)
    return path
