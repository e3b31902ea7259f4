"""Rounds without Python between drafting, the pass and what it accepts, where all of these have compiled functions.

A pass empties the caches, and Python then takes three times as long as with warm ones: a round's, beside a small model, a
quarter of its pass. So some rounds are run by one call (`round_kernel`). They are settled one after another like any others,
which goes on in caches that are warm from the second one on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
from attrs import evolve

from augury.compiled import ImportedLater
from augury.errors import PluginError
from augury.interfaces import CompiledDraft, CompiledPass, Pace
from augury.speculation.constants import DRAFTED_NS, N_FIGURES, NOT_ASKED, PARENT, TOKEN
from augury.speculation.costs import PassCurve
from augury.speculation.drafts import CostlyAsk, JointTree, Outcome, Proposal, SlotProposals, VerifiedNodes
from augury.speculation.profiles import RequestDrafter
from augury.types import Draft

ROOM = 64  # tokens of all drafts of a round, at most
_kernel = ImportedLater("augury.speculation.round_kernel")


class CompiledPlan(NamedTuple):
    """Who is asked in each of some rounds, and what is to be known of the first one."""

    slot: SlotProposals
    curve: PassCurve
    lookups: Sequence[RequestDrafter]  # none while all drafters rest
    n_most: int  # rounds
    costly: CostlyAsk | None = None  # of a costly drafter,
    least: float = 0.0  # where lookups promise fewer tokens per second


class CompiledAsk(NamedTuple):
    """These drafters, with their functions; a costly one comes last."""

    plan: CompiledPlan
    drafters: Sequence[tuple[RequestDrafter, CompiledDraft]]
    begin_s: float  # in which the costly one's functions were made


class CompiledRound(NamedTuple):
    """One of the rounds, as it would be without them."""

    choice: VerifiedNodes
    outcome: Outcome
    tokens: list[int]  # (n_emitted,); the last one is -1 where none could be chosen
    draft_s: float
    pass_s: float

    def drafter_s(self) -> dict[RequestDrafter, float]:
        """The seconds of each drafter that was asked: a costly one has what is known to be not the others'."""
        by_drafter, lookups = self.choice.proposals.by_drafter, self.choice.proposals.lookups
        if len(lookups) == len(by_drafter):
            return dict.fromkeys(lookups, self.draft_s / max(len(lookups), 1))
        seconds = {each: min(each.profile.cost.per_ask, self.draft_s / len(by_drafter)) for each in lookups}
        (costly,) = by_drafter.keys() - seconds.keys()
        return {**seconds, costly: self.draft_s - sum(seconds.values())}


def find_functions(plan: CompiledPlan, n_more: int, features: Mapping[str, np.ndarray]) -> CompiledAsk | None:
    """The functions of those who are asked, for rounds of up to `n_more` tokens with these features.

    None: one has none, or nobody is asked although drafters do not rest.
    """
    found, most = list[tuple[RequestDrafter, CompiledDraft]](), plan.slot.limit
    asks = [(each, most, Pace(most) if each.profile.is_paced else None) for each in plan.lookups]
    if (costly := plan.costly) is not None:
        asks.append((costly.drafter, most if costly.pace else costly.k, costly.pace))
    for drafter, limit, pace in asks:
        if (functions := drafter.guard.compiled_draft(limit, pace, n_more, features)) is None:
            for asked, begun in found:
                asked.guard.end_compiled(begun)
            return None
        found.append((drafter, functions))
    begin_s = 0.0 if costly is None else costly.drafter.guard.own_s
    return CompiledAsk(plan, found, begin_s) if found or plan.slot.drafters.n_resting else None


def run_rounds(
    passes: CompiledPass,
    ask: CompiledAsk,
    text: np.ndarray,
    n_left: int,
    ends: np.ndarray,
    n_vocab: int,
    *,
    most_s: float,
) -> list[CompiledRound]:
    """Run rounds, none of which begins more than `most_s` seconds after the first pass.

    Args:
        passes: Whose moves are those that come before the first pass.
        ask: See `CompiledAsk`.
        text: The text, (n,) int32, with room for what follows, which is written there.
        n_left: Tokens that may be emitted, at least 2.
        ends: (e,) int32, rising: the tokens after which there are no more.
        n_vocab: Tokens that may be drafted are less.
        most_s: Seconds.
    """
    (slot, curve, _, n_most, costly, least), drafters = ask.plan, [drafter for drafter, _ in ask.drafters]
    assert slot.agreement is not None
    d, budget = len(drafters), slot.drafters.budget
    costly_s = costly.drafter.profile.cost.seconds(costly.k, 0) if costly else 0.0
    values = np.zeros((d, max([len(each.chances.values) for each in drafters], default=0)))
    for row, each in zip(values, drafters, strict=True):
        row[: len(each.chances.values)] = each.chances.values
    functions = np.array([(each.draft, each.learn, each.state) for _, each in ask.drafters], np.int64).reshape(d, 3)
    trees, chances = np.empty((n_most, 5, ROOM), np.int64), np.empty((n_most, 2, ROOM))
    (places, buckets), lengths = np.empty((2, n_most, d, ROOM), np.int64), np.empty((n_most, d), np.int64)
    (chosen, paths), figures = np.empty((2, n_most, ROOM), np.int64), np.empty((n_most, N_FIGURES), np.int64)
    asked = _kernel.Ask(
        *(functions, np.empty((d, 4, ROOM), np.int32), values, n_vocab, slot.limit),
        *(int(costly is not None), least, costly_s, slot.agreement.table),
        *(np.array([[0, 0, 0, slot.n_min, 0]]), np.array([[budget.seconds, budget.first]]), *map(np.asarray, curve)),
    )
    told = _kernel.Told(trees, chances, places, buckets, lengths, chosen, paths, figures)
    start = perf_counter()
    begin = n_most, int(1e9 * most_s), text, slot.n_context, n_left, ends
    n = passes.run(_kernel.run_rounds, *begin, _kernel.Passes(*passes.arguments), asked, told)
    others_ns = int(figures[:n, DRAFTED_NS:].sum())
    figures[0, DRAFTED_NS] = max(int(1e9 * (perf_counter() - start)) - others_ns, 0)  # drafts before the first pass
    rounds, end = list[CompiledRound](), slot.n_context
    draft_s = 1e-9 * figures[:n, DRAFTED_NS]
    if costly is not None:
        is_asked = lengths[:n, -1] != NOT_ASKED
        draft_s[is_asked] += ask.begin_s / max(is_asked.sum(), 1)
    for r, (n_nodes, n_chosen, n_path, n_emitted, is_stopped, _, pass_ns) in enumerate(figures[:n].tolist()):
        now = evolve(slot, n_context=end, by_drafter={}, lookups=[], tree=JointTree.of(drafters, trees[r], chances[r], n_nodes))
        for drafter, k, nodes, evidence in zip(drafters, lengths[r].tolist(), places[r], buckets[r], strict=True):
            if k == NOT_ASKED:
                continue
            if k < 0:
                drafter.guard.fail("compiled_draft", PluginError(f"drafted what is no draft of {slot.limit} tokens at most"))
                k = 0  # noqa: PLW2901 - nothing of it was taken
            parents = None
            if costly is None or drafter is not costly.drafter:
                now.lookups.append(drafter)
            else:
                place = {node: i for i, node in enumerate(nodes[:k].tolist())}
                parents = [place.get(parent, -1) for parent in trees[r, PARENT, nodes[:k]].tolist()]
            now.by_drafter[drafter] = Proposal(Draft(trees[r, TOKEN, nodes[:k]], parents), nodes[:k], evidence[:k])
        verified = chosen[r, :n_chosen].tolist()
        outcome = Outcome(tuple(paths[r, :n_path].tolist()), n_emitted, bool(is_stopped))
        choice = VerifiedNodes(now, now.tree.part(verified), verified, costly.drafter if costly and costly.is_probe else None)
        emitted, pass_s = text[end : end + n_emitted].tolist(), 1e-9 * pass_ns
        rounds.append(CompiledRound(choice, outcome, emitted, float(draft_s[r]), pass_s))
        end += n_emitted
    return rounds
