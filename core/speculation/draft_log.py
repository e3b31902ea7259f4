"""What `-vv` prints: the drafts of every round, token by token, beside what the target said."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from augury.text.table import table

if TYPE_CHECKING:
    from augury.engine.sequence import Sequence
    from augury.engine.verification import Accepted
    from augury.interfaces import Logits
    from augury.types import Draft

__all__ = ["DRAFT_LOGGER", "draft_lines"]

DRAFT_LOGGER = logging.getLogger("augury.drafts")
"""At level DEBUG the loop gives it a text of several lines for every draft that was verified; drafters may then compute how
confident they are."""


def draft_lines(
    sequence: Sequence, draft: Draft, accepted: Accepted, n_emitted: int, logits: Logits, first_row: int, drafter: str | None
) -> list[str]:
    """A draft, and what became of it.

    Args:
        sequence: Whose it is.
        draft: k tokens; a tree's are told in its order, those beside the accepted path without the target's word.
        accepted: What `Sequence.verify` gave.
        n_emitted: How many of its tokens were emitted; behind a stop the rest is not told.
        logits: Of the pass.
        first_row: The row behind the history.
        drafter: Who proposed the draft.

    Returns:
        A line that sums up, and one for every token: how probable the drafter took it to be, where it says so, and what the
        target chose at its place, with which probability under the model's own distribution.
    """
    path = list(accepted.path)[: n_emitted - 1]
    reached = [-1, *path]  # the tokens behind which the target's word counts
    chosen = dict(zip(reached, accepted.tokens, strict=False))
    parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents.tolist()
    confidence = draft.confidence
    if draft.probabilities is not None:
        confidence = draft.probabilities[np.arange(len(draft)), draft.tokens]
    rows = [["drafted", "p", "target", "p", ""]]
    for i, (token, parent) in enumerate(zip(draft.tokens.tolist(), parents, strict=True)):
        p = "" if confidence is None else f"{confidence[i]:.3f}"
        rows.append([_text(sequence, token), p, *_told(sequence, chosen, parent, logits, first_row)])
        rows[-1].append("accepted" if i in path else "rejected" if parent in chosen else "not reached")
    rows.append(["", "", *_told(sequence, chosen, reached[-1], logits, first_row), "the target's own"])
    head = f"slot {sequence.slot}: {drafter} drafted {len(draft)} token{'s' * (len(draft) > 1)}, {len(path)} accepted"
    return [head, *(f"  {line}" for line in table(rows, is_right=(False, True, False, True, False)))]


def _told(sequence: Sequence, chosen: dict[int, int], parent: int, logits: Logits, first_row: int) -> list[str]:
    """What the target chose behind a token of the draft, and its probability."""
    if parent not in chosen:
        return ["", ""]
    token, row = chosen[parent], first_row + 1 + parent
    logit = float(logits.gather(row, np.array([token], np.int32))[0])
    return [_text(sequence, token), f"{math.exp(logit - logits.log_normalizer(row)):.3f}"]


def _text(sequence: Sequence, token: int) -> str:
    if sequence.tokenizer is None:
        return str(token)
    return f"{token} {sequence.tokenizer.piece(token).decode(errors='replace')!r}"
