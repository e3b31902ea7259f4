"""The part of all slots' trees that makes the most tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from augury.speculation.constants import CONSTANTS
from augury.speculation.drafts import SlotProposals


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
    """Rank the nodes of all trees by their chance to be accepted, and take the first n, for the best n.

    A child never ranks before its parent. Drawn tokens come first, in the order of their proposal, and are taken in any case as
    far as there is room: this must not depend on the tokens themselves.

    Args:
        slots: With their trees.
        curve: The curve of the pass.
        replays_accepted: See `DraftPlanner`; no tree branches then.
    """
    reach, drawn = [slot.reach() for slot in slots], [slot.drawn for slot in slots]
    ranked = sorted(
        [
            (True, -chance, i, node) if node not in drawn[i] else (False, drawn[i].index(node), i, node)
            for i, chances in enumerate(reach)
            for node, chance in enumerate(chances)
            if chance > CONSTANTS.unlikely or node in drawn[i]
        ]
    )
    most = len(slots) + sum([chance for chances in reach for chance in chances])  # tokens, if all nodes were verified
    draft_s = sum([drafter.spent_s for slot in slots for drafter in slot.by_drafter])
    counts, sums, lost = [0] * len(slots), [0.0] * len(slots), [0.0] * len(slots)
    taken: list[tuple[int, int, float]] = []
    left_out: set[tuple[int, int]] = set()
    n, n_best, n_short, expected = 0, 0, 0, float(len(slots))
    best_rate = (expected + CONSTANTS.gain) / (curve.hoped[0] + draft_s)
    for is_chosen, _, i, node in ranked:
        slot, count, chance = slots[i], counts[i], reach[i][node]
        if count == slot.limit:
            continue
        if is_chosen and most <= best_rate * (curve.hoped[n + 1] + draft_s):
            break  # no further node can pay
        is_paid = not is_chosen or any(each.profile.is_costly or each.profile.is_certain for each in slot.tree.proposers[node])
        loss_s = curve.known[n + 1] - curve.known[n - count]  # of one token more after the slot's own, at worst
        is_covered = is_paid or slot.drafters.budget.covers(loss_s, is_least=count < slot.n_min)
        if (i, slot.tree.parents[node]) in left_out or not is_covered:
            left_out.add((i, node))
            continue
        n_short += (count + 1 < slot.n_min) - (0 < count < slot.n_min)
        taken.append((i, node, chance))
        n += 1
        counts[i], sums[i], expected = count + 1, sums[i] + chance, expected + chance
        replay_s = 0.0
        if replays_accepted:  # tokens accepted where a later one is not; each takes as long as a drafted one
            lost[i] = max(sums[i] - counts[i] * chance, 0.0)
            replay_s = curve.extra_s(n) / n * sum(lost)
        rate = expected / (curve.hoped[n] + draft_s + replay_s)
        if not is_chosen or (rate > best_rate and not n_short):
            n_best, best_rate = n, rate
    nodes: list[list[int]] = [[] for _ in slots]
    tokens = [1.0] * len(slots)
    for i, node, chance in taken[:n_best]:
        nodes[i].append(node)
        tokens[i] += chance
    return Best([sorted(each) for each in nodes], tokens)
