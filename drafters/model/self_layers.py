"""Writes ahead with a model's own first layers, for several slots at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from augury.interfaces import Ask
from augury.passes import Pass, Target

if TYPE_CHECKING:
    from augury.drafters.model.draft_vocabulary import DraftVocabulary

__all__ = ["write_ahead"]


def write_ahead(target: Target, n_layers: int, asks: Sequence[Ask], vocabulary: DraftVocabulary) -> list[list[int]]:
    """Draft greedily, a token of each slot with every pass.

    Args:
        target: Whose layers.
        n_layers: How many of them.
        asks: Of drafters that have an option `p_min`: below this probability a draft ends.
        vocabulary: Which tokens are drafted.

    Returns:
        A draft for each of `asks`, in order.
    """
    drafts: list[list[int]] = [[] for _ in asks]
    slots = [ask.drafter.session.slot for ask in asks]
    writing = [i for i, ask in enumerate(asks) if ask.limit > 0]
    for slot, ask in zip(slots, asks, strict=True):
        vocabulary.follow(slot, ask.history)
    while writing:
        written = {slots[i]: np.array([asks[i].history[-1], *drafts[i]], np.int32) for i in writing}
        logits = target.forward(written, n_layers, vocabulary.tokens)
        going_on = []
        for row, (i, token) in enumerate(zip(writing, logits.argmax().tolist(), strict=True)):
            if token < 0:  # the layers computed no finite numbers
                continue
            p_min = asks[i].drafter.options.p_min
            if p_min > 0 and _probability(logits, row, token) < p_min:
                continue
            drafts[i].append(token)
            if len(drafts[i]) < asks[i].limit:
                going_on.append(i)
        writing = going_on
    return drafts


def _probability(logits: Pass, row: int, token: int) -> float:
    return math.exp(float(logits.gather(row, np.array([token], np.int32))[0]) - logits.log_normalizer(row))
