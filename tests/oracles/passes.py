"""Batches, written briefly."""

from __future__ import annotations

import attrs
import numpy as np

from augury.batch import Batch


def run_of(tokens, *, slot=0, start=0, rows=None) -> Batch:
    """Consecutive tokens of one slot, with the logits of all of them or of `rows`."""
    n = len(tokens)
    return Batch(
        np.array(tokens, np.int32),
        np.full(n, slot, np.int32),
        np.arange(start, start + n, dtype=np.int32),
        np.arange(n, dtype=np.int32) if rows is None else np.array(rows, np.int32),
    )


def tree_of(tokens, parents, *, slot=0, start=0) -> Batch:
    """A tree of tokens after position `start - 1` of one slot, with the logits of all."""
    above, depths = list(parents), []
    for parent in above:
        depths.append(0 if parent == -1 else depths[parent] + 1)
    batch = run_of(tokens, slot=slot)
    return attrs.evolve(batch, positions=np.array(depths, np.int32) + np.int32(start), parents=np.array(above, np.int32))


def joined(*batches) -> Batch:
    """Several batches, of chains alone or of trees alone, as one pass."""
    starts = np.cumsum([0, *(len(batch.tokens) for batch in batches)])
    parents = None
    if batches[0].parents is not None:
        moved = [np.where(batch.parents < 0, -1, batch.parents + start) for batch, start in zip(batches, starts, strict=False)]
        parents = np.concatenate(moved).astype(np.int32)
    return Batch(
        np.concatenate([batch.tokens for batch in batches]),
        np.concatenate([batch.slots for batch in batches]),
        np.concatenate([batch.positions for batch in batches]),
        np.concatenate([batch.rows + start for batch, start in zip(batches, starts, strict=False)]).astype(np.int32),
        parents=parents,
    )
