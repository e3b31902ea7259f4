"""One sequence's share of a pass, and the batch of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from augury.engine.sequence import Sequence
    from augury.speculation.drafts import SlotDraft
    from augury.types import Step

__all__ = ["Part", "batch_of"]


@frozen(eq=False)
class Part:
    """One sequence's share of a pass: what `step` replays, then `tokens`, at its mark; the last `n_rows` have logits."""

    sequence: Sequence
    step: Step
    tokens: np.ndarray  # (m,) int32, without what is replayed
    n_rows: int
    drafted: SlotDraft | None = None  # None while the prompt is processed

    @property
    def tree(self) -> np.ndarray | None:
        """The parents of its draft, if that is a tree."""
        return None if self.drafted is None else self.drafted.draft.parents

    @property
    def n_tokens(self) -> int:
        """In the pass."""
        return len(self.step.replay) + len(self.tokens)


def batch_of(parts: Items[Part]) -> Batch:
    """One pass over everything."""
    tokens, positions, slots, rows, moves = [], [], [], [], []
    n = 0
    for part in parts:
        mark, m = part.step.mark, part.n_tokens
        if part.step.replay:
            tokens.append(np.array(part.step.replay, np.int32))
        tokens.append(part.tokens)
        positions.append(np.arange(mark, mark + m, dtype=np.int32))
        slots.append(np.full(m, part.sequence.slot, np.int32))
        n += m
        rows.append(np.arange(n - part.n_rows, n, dtype=np.int32))
        moves += [(part.sequence.slot, *move) for move in part.step.moves]
    joined = tuple(each[0] if len(each) == 1 else np.concatenate(each) for each in (tokens, slots, positions, rows))
    moved = np.array(moves, np.int32) if moves else None
    if all(part.tree is None for part in parts):
        return Batch(joined[0], joined[1], joined[2], joined[3], moves=moved)
    parents, depths = _trees(parts)
    starts = np.concatenate([np.full(part.n_tokens, part.step.mark, np.int32) for part in parts])
    return Batch(joined[0], joined[1], starts + depths, joined[3], parents, moved)


def _trees(parts: Items[Part]) -> tuple[np.ndarray, np.ndarray]:
    """Which token of the pass each follows, -1 at a part's beginning, and how deep it stands in its part, both (n,) int32."""
    parents: list[int] = []
    depths: list[int] = []
    for part in parts:
        first = len(parents)
        n_chain = part.n_tokens if part.tree is None else part.n_tokens - len(part.tree)
        follows = list(range(-1, n_chain - 1))
        if part.tree is not None:
            follows += (part.tree + n_chain).tolist()  # -1, the history, is the chain's last token
        for place in follows:
            parents.append(first + place if place >= 0 else -1)
            depths.append(depths[first + place] + 1 if place >= 0 else 0)
    return np.array(parents, np.int32), np.array(depths, np.int32)
