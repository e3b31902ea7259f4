"""The one pass of a round: begun, waited for while drafters draft ahead, and timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Items
from time import perf_counter

import numpy as np
from attrs import frozen

from augury.batch import SlotInput
from augury.engine.context import EngineContext
from augury.engine.sequence import Sequence
from augury.passes import Pass
from augury.speculation.ahead import settle_ahead
from augury.speculation.drafting import Drafting
from augury.speculation.drafts import Choice

__all__ = ["RoundPass", "ScheduledInput"]


@frozen(eq=False)
class ScheduledInput:
    """A sequence's share of a pass, and what is verified in it; None while its prompt is processed."""

    sequence: Sequence
    feed: SlotInput
    choice: Choice | None = None


@frozen(eq=False)
class RoundPass:
    """A pass that is over."""

    passed: Pass
    argmax: list[int]  # the best token of each row; empty where everyone asks for more
    features: Mapping[str, np.ndarray]  # that drafters are fed
    seconds: float
    late_s: float  # how much longer than that drafting ahead took

    @classmethod
    def compute(cls, context: EngineContext, drafting: Drafting, shares: Items[ScheduledInput], n_vocab: int) -> RoundPass:
        """Compute everyone's share; tokens from `n_vocab` on cannot be chosen."""
        wanted = drafting.features([share.sequence for share in shares])
        start = perf_counter()
        passed = context.forward([share.feed for share in shares], wanted)
        forward_s, ahead_s, late_s = perf_counter() - start, 0.0, 0.0
        choices = [share.choice for share in shares if share.choice is not None] if context.is_asynchronous else []
        if choices:
            n_others = sum(len(share.feed.tokens) for share in shares if share.choice is None)
            context.is_busy = True
            try:
                ahead_s = drafting.draft_ahead(choices, n_others, forward_s)
            finally:
                context.is_busy = False
        device_s = passed.wait()
        seconds = forward_s if device_s is None else device_s  # None: it was over when forward returned
        if ahead_s:
            late_s = min(max(forward_s + ahead_s - seconds, 0.0), ahead_s)
            settle_ahead(choices, late_s / ahead_s)
        if n_vocab < context.info.n_vocab:
            passed = passed.first(n_vocab)
        has_greedy = any(share.feed.n_rows and share.sequence.is_plain_argmax for share in shares)
        argmax = passed.argmax().tolist() if has_greedy else []
        return cls(passed, argmax, {name: passed.features(name).copy() for name in wanted}, seconds, late_s)
