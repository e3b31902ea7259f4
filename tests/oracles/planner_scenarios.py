"""Scenarios of invented costs and drafters for the planner: time is a sum, what a drafter gets right is drawn beforehand."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from attrs import frozen

from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafts import SlotDraft
from augury.speculation.planner import N_TEACHER_FORCED, DraftPlanner
from augury.types import Draft

DEPTH = 100


def slot_of(drafters, offers=(), n_min=1, **outcome):
    """A slot's draft in a round, with so many tokens offered by each drafter, or with what came of it."""
    return SlotDraft(None, drafters, 16, DEPTH, n_min, offers=dict(offers), **outcome)


def chosen(planner, *slots, n_beside=0):
    """What a planner chooses for slots: of each the drafter, how many tokens, and whether to see if it is right."""
    planner.choose(slots, n_beside)
    return [(slot.drafter, slot.k, slot.is_probe) for slot in slots]


@frozen
class Source:
    """A drafter: by position of the text whether it is right there, and what drafting takes."""

    right: np.ndarray  # (n,) bool
    per_token_s: float = 0.0
    per_missed_s: float = 0.0
    is_costly: bool = False
    per_ask_s: float = 0.0  # of one that is not
    can_be_teacher_forced: bool = True  # of one that is

    @cached_property
    def _tokens(self):
        return np.where(self.right, np.arange(len(self.right)), -1).tolist()

    def proposal(self, position, limit):
        """Its tokens: those of the text are their positions, wrong ones -1; nothing after a wrong one matters."""
        return self._tokens[position : position + limit]


def stretches(rng, n, mean_right, mean_wrong):
    """Text that is copied in stretches, as code is edited: right for a while, then wrong for a while."""
    right = []
    while len(right) < n:
        right += [True] * int(rng.geometric(1 / mean_right)) + [False] * int(rng.geometric(1 / mean_wrong))
    return np.array(right[:n])


class Scenario:
    """Plays one request at a time on one slot."""

    def __init__(self, costs, sources, n_max=16):
        self.costs = costs  # [n]: seconds of a pass of n tokens
        self.sources = sources
        self.n_max = n_max
        self.n_text = len(sources[0].right)
        self.choices = []  # (position, slot's draft) of every round of the last play

    def planner(self):
        sizes = [n for n in (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17) if n < len(self.costs)]
        return DraftPlanner(
            PassCosts([PassTime(n, 0, self.costs[n]) for n in sizes], self.n_max + 1),
            [source.is_costly for source in self.sources],
        )

    def plain(self):
        """Seconds without any drafter."""
        return self.n_text * self.costs[1]

    def fixed(self, index, k):
        """Seconds with one drafter that always drafts k tokens."""
        source = self.sources[index]
        position = seconds = 0
        while position < self.n_text:
            proposal = source.proposal(position, min(k, self.n_text - position - 1))
            n_emitted = 1 + _n_right(proposal)
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
        drafters = planner.new_request()
        for index, source in enumerate(self.sources):
            planner.observe_prompt(index, DEPTH, DEPTH * source.per_missed_s)
        self.choices = []
        position = seconds = 0
        ahead = (None, None, 0)  # where a guess is right, who made it, and what it drafted after it
        while position < self.n_text:
            limit = min(self.n_max, self.n_text - position - 1)
            ready = {}
            if ahead[0] == position:
                planner.observe_proposal(ahead[1], drafters)
                ready = {ahead[1]: Draft([0] * min(ahead[2], limit))}
            proposals = {}
            offers = {}
            for index, source in enumerate(self.sources):
                if planner.is_asked(index, drafters) and limit:
                    proposals[index] = source.proposal(position, limit)
                    planner.observe_draft(index, drafters, len(proposals[index]), source.per_ask_s)
                    seconds += source.per_ask_s
                if limit and (index in proposals or planner.is_costly[index]):
                    offers[index] = limit
            choice = slot_of(drafters, offers, proposals=ready)
            planner.choose([choice])
            if choice.teacher_forced is not None:
                seconds += self._teacher_force(planner, drafters, choice.teacher_forced, position)
            if choice.drafter is not None and choice.drafter not in proposals:
                source = self.sources[choice.drafter]
                proposals[choice.drafter] = source.proposal(position, choice.k)
                n_missed = drafters.n_missed[choice.drafter]
                if choice.k > len(ready.get(choice.drafter, ())):
                    choice.draft_s = source.per_token_s * choice.k + source.per_missed_s * n_missed
                    planner.observe_draft(choice.drafter, drafters, choice.k, choice.draft_s)
            if choice.drafter is not None:
                choice.n_accepted = _n_right(proposals[choice.drafter][: choice.k])
            emitted = list(range(position, position + choice.n_accepted + 1))
            for index in range(len(self.sources)):
                drafters.score(index, proposals.get(index), emitted)
            pass_s = self.costs[1 + choice.k]
            ahead = self._draft_ahead(planner, choice, position, pass_s) if overlaps and choice.k else (None, None, 0)
            planner.observe_round([choice], DEPTH, 0, pass_s)
            self.choices.append((position, choice))
            seconds += pass_s + choice.draft_s
            position += choice.n_accepted + 1
        return seconds

    def _draft_ahead(self, planner, choice, position, pass_s):
        source, after = self.sources[choice.drafter], position + choice.k
        choice.draft = Draft([0] * choice.k)
        (n,) = planner.n_ahead([choice], [choice], 0, 0.0) if source.is_costly else (0,)
        if not n:
            return None, None, 0
        ahead_s = source.per_token_s * (1 + n)
        planner.observe_ahead(choice.drafter, 1 + n, ahead_s)
        choice.ahead_s = ahead_s
        choice.draft_s += max(ahead_s - pass_s, 0.0)
        is_right = choice.n_accepted == choice.k and after < self.n_text and source.right[after]
        return after + 1 if is_right else None, choice.drafter, n

    def _teacher_force(self, planner, drafters, index, position):
        source, is_right, took_s = self.sources[index], None, 0.0
        if source.can_be_teacher_forced:
            is_right = source.right[position - N_TEACHER_FORCED : position].tolist()
            took_s = source.per_token_s + N_TEACHER_FORCED * source.per_missed_s
        planner.observe_teacher_forced(index, drafters, is_right, took_s)
        return took_s


def _n_right(proposal):
    return next((i for i, token in enumerate(proposal) if token < 0), len(proposal))
