"""Batches, written briefly."""

from __future__ import annotations

import numpy as np

from augury.types import Batch


def run_of(tokens, *, slot=0, start=0, rows=None) -> Batch:
    """Consecutive tokens of one slot, with the logits of all of them or of `rows`."""
    n = len(tokens)
    return Batch(
        np.array(tokens, np.int32),
        np.full(n, slot, np.int32),
        np.arange(start, start + n, dtype=np.int32),
        np.arange(n, dtype=np.int32) if rows is None else np.array(rows, np.int32),
    )


def joined(*batches) -> Batch:
    """Several batches as one pass."""
    starts = np.cumsum([0, *(len(batch.tokens) for batch in batches)])
    return Batch(
        np.concatenate([batch.tokens for batch in batches]),
        np.concatenate([batch.slots for batch in batches]),
        np.concatenate([batch.positions for batch in batches]),
        np.concatenate([batch.rows + start for batch, start in zip(batches, starts, strict=False)]).astype(np.int32),
    )
