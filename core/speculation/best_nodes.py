"""The part of all slots' trees that makes the most tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from augury.speculation.constants import kernels
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
    """Rank the nodes of all trees by their chance to be accepted, and take the first n, for the best n by a pass's curve.

    A child never ranks before its parent. Drawn tokens come first, in the order of their proposal, and are taken in any case as
    far as there is room: this must not depend on the tokens themselves. No tree branches where the pass `replays_accepted`.
    """
    sizes, ranks, rows = [len(slot.tree) for slot in slots], list[int](), list[tuple[int, ...]]()
    if not any(sizes):  # nothing is proposed
        return Best([[] for _ in slots], [1.0] * len(slots))
    reach = np.concatenate([slot.reach() for slot in slots])
    for slot, size in zip(slots, sizes, strict=True):
        paid = slot.tree.bits([each for each in slot.by_drafter if not each.profile.is_lookup])
        rows.append((len(ranks), len(ranks) + size, slot.limit, slot.n_min, paid))
        ranks += [slot.drawn.index(node) if node in slot.drawn else -1 for node in range(size)] if slot.drawn else [-1] * size
    is_chosen, expected = np.zeros(len(reach), np.bool_), np.ones(len(slots))
    kernels.choose(
        np.concatenate([slot.tree.nodes[:, :size] for slot, size in zip(slots, sizes, strict=True)], axis=1),
        reach,
        np.array(ranks, np.int64),
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
