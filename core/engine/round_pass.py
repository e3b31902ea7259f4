"""The one pass of a round: begun, waited for while drafters draft ahead, and timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from time import perf_counter
from typing import NamedTuple

import numpy as np

from augury.batch import SlotInput
from augury.engine.context import EngineContext
from augury.engine.sequence import RunningSequence
from augury.passes import Pass
from augury.speculation.ahead import settle_ahead
from augury.speculation.drafting import Drafting
from augury.speculation.drafts import VerifiedNodes
from augury.types import read_only, tokens_array


class ScheduledInput(NamedTuple):
    """A sequence's share of a pass."""

    sequence: RunningSequence
    feed: SlotInput
    n_rows: int  # of logits
    choice: VerifiedNodes | None = (
        None  # the part that is verified in it; None without drafters, and while its prompt is processed
    )
    n_top: int = 0  # the most probable tokens of each row that its drafters want to have
    n_prompt: int = 0  # tokens of its prompt; 0 of a sequence that decodes


class RoundPass(NamedTuple):
    """A pass that is over."""

    passed: Pass
    argmax: list[int]  # the best token of each row; empty where everyone asks for more
    top: tuple[np.ndarray, np.ndarray] | None  # the best of each row, and their logits, as many as some drafter wants
    features: Mapping[str, np.ndarray]  # that drafters are fed
    n_tokens: int  # new ones; replayed ones are not counted
    n_prompt: int  # of those, tokens of prompts
    seconds: float
    late_s: float  # how much longer than that drafting ahead took

    @classmethod
    def compute(cls, context: EngineContext, drafting: Drafting, shares: Sequence[ScheduledInput], n_vocab: int) -> RoundPass:
        """Compute everyone's share; tokens from `n_vocab` on cannot be chosen."""
        wanted = drafting.features([share.sequence for share in shares]) if drafting.wants_features else ()
        start = perf_counter()
        passed = context.forward([share.feed for share in shares], wanted)
        forward_s, ahead_s, late_s = perf_counter() - start, 0.0, 0.0
        choices = [share.choice for share in shares if share.choice is not None] if context.is_asynchronous else []
        if choices:
            n_others = sum([len(share.feed.tokens) for share in shares if share.choice is None])
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
        top, argmax = None, []
        n_rows = n_top = n_tokens = n_prompt = 0
        wants_argmax = False
        for share in shares:
            n_rows += share.n_rows
            n_prompt += share.n_prompt
            n_tokens += share.n_prompt or share.n_rows
            n_top = max(n_top, share.n_top)
            wants_argmax = wants_argmax or (share.n_rows > 0 and share.sequence.is_plain_argmax)
        if n_top:
            ids, logits = passed.top_k(tokens_array(range(n_rows)), n_top)
            top = read_only(ids), read_only(logits)
        if wants_argmax:  # where drafters want more of each row, it is not read twice
            if top is None:
                argmax = passed.argmax().tolist()
            else:
                best = zip(top[0][:, 0].tolist(), top[1][:, 0].tolist(), strict=True)
                argmax = [token if isfinite(logit) else -1 for token, logit in best]
        features = {name: passed.features(name).copy() for name in wanted} if wanted else {}
        return cls(passed, argmax, top, features, n_tokens, n_prompt, seconds, late_s)
