"""A round's record, and its one pass: begun, waited for while drafters draft ahead, and timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite
from time import perf_counter
from typing import NamedTuple

import numpy as np
from attrs import Factory, define

from augury.batch import SlotInput
from augury.engine.begun_pass import BegunPass
from augury.engine.context import EngineContext
from augury.engine.sequence import RunningSequence
from augury.passes import Pass
from augury.speculation.ahead import settle_ahead
from augury.speculation.drafting import Drafting
from augury.speculation.drafts import Outcome, VerifiedNodes
from augury.types import read_only, tokens_array


class ScheduledInput(NamedTuple):
    """A sequence's share of a pass."""

    sequence: RunningSequence
    slot_input: SlotInput
    n_rows: int  # of logits
    choice: VerifiedNodes | None = None  # what is verified; None without drafters, and while its prompt is processed
    n_top: int = 0  # the most probable tokens of each row that its drafters want to have
    n_prompt: int = 0  # tokens of its prompt; 0 of a sequence that decodes

    def kept(
        self, outcome: Outcome, features: Mapping[str, np.ndarray], first: int
    ) -> tuple[int, np.ndarray, dict[str, np.ndarray]]:
        """The position of the first kept token, all of them, and their features; its input begins at `first` in the pass."""
        slot_input, path, start = self.slot_input, list(outcome.path), first + len(self.slot_input.reservation.replay)
        drafted, tokens = first + slot_input.n_tokens - len(slot_input.draft), slot_input.tokens
        places: slice | np.ndarray = slice(start, drafted)
        if path:
            tokens = np.concatenate([tokens, slot_input.draft.tokens[path]])
            places = np.concatenate([np.arange(start, drafted), drafted + np.array(path, np.int64)])
        return self.sequence.n_kept - len(tokens), tokens, {name: values[places] for name, values in features.items()}


@define(eq=False)
class RoundRecord:
    """A round: what was scheduled, and what came of it. Its sums are taken over lists, as generators take longer."""

    start: float  # of drafting, by the clock
    scheduled: Sequence[ScheduledInput]
    draft_s: float
    outcomes: list[tuple[ScheduledInput, Outcome]] = Factory(list)  # of those that did not fail
    settle_s: float = 0.0  # what drafters took after the pass

    @property
    def n_prompt(self) -> int:
        """Tokens of prompts in the pass."""
        return sum([each.n_prompt for each in self.scheduled])

    @property
    def n_tokens(self) -> int:
        """New tokens in the pass, or in a chain of passes; replayed ones are not counted."""
        return sum([each.n_prompt or each.n_rows + each.slot_input.n_more for each in self.scheduled])

    @property
    def decoded(self) -> list[tuple[VerifiedNodes, Outcome]]:
        """What was verified for the sequences that have drafters, and the outcome."""
        return [(each.choice, outcome) for each, outcome in self.outcomes if each.choice is not None]

    @property
    def n_drafted(self) -> int:
        """Drafted tokens that were verified."""
        return sum([len(each.choice.nodes) for each, _ in self.outcomes if each.choice is not None])

    @property
    def n_accepted(self) -> int:
        """Drafted tokens that were accepted."""
        return sum([len(outcome.path) for _, outcome in self.outcomes])

    @property
    def n_emitted(self) -> int:
        """Tokens that were emitted."""
        return sum([outcome.n_emitted for _, outcome in self.outcomes])


class RoundPass(NamedTuple):
    """A pass that is over, or a chain of passes, whose rows come one pass after another."""

    passed: Pass
    argmax: list[int]  # the best token of each row; empty where everyone asks for more
    fed: list[int]  # of a chain the token after each row that its next pass was given
    top: tuple[np.ndarray, np.ndarray] | None  # the best of each row, and their logits, as many as some drafter wants
    features: Mapping[str, np.ndarray]  # that drafters and callers are given
    seconds: float
    late_s: float  # how much longer than that drafting ahead took

    @classmethod
    def compute(cls, context: EngineContext, drafting: Drafting, record: RoundRecord, n_vocab: int) -> RoundPass:
        """Compute all that is scheduled; tokens from `n_vocab` on cannot be chosen."""
        scheduled = record.scheduled
        told = [name for each in scheduled for name in each.sequence.request.hidden_states]
        drafters = drafting.features([each.sequence for each in scheduled]) if drafting.wants_features else ()
        wanted = tuple(sorted({*drafters, *told})) if told else drafters
        start = perf_counter()
        feeds = [each.slot_input for each in scheduled]
        if (thread := context.thread) is None:
            passed = context.forward(feeds, wanted)
        else:
            passed = BegunPass.of(thread, partial(context.forward, feeds, wanted))
        forward_s, ahead_s, late_s = perf_counter() - start, 0.0, 0.0
        choices = [each.choice for each in scheduled if each.choice is not None] if context.is_asynchronous else []
        context.is_busy = True
        try:
            if choices:
                n_others = sum([len(each.slot_input.tokens) for each in scheduled if each.choice is None])
                ahead_s = drafting.draft_ahead(choices, n_others, forward_s)
        finally:  # nothing may happen to the model before the pass is over
            context.is_busy, device_s = False, passed.wait()
        seconds = forward_s if device_s is None else device_s  # None: it was over when forward returned
        if ahead_s:
            late_s = min(max(forward_s + ahead_s - seconds, 0.0), ahead_s)
            settle_ahead(choices, late_s / ahead_s)
        whole, top, argmax, best = passed, None, list[int](), list[int]()
        if n_vocab < context.info.n_vocab:
            passed = whole.first(n_vocab)
        if n_top := max([each.n_top for each in scheduled]):
            ids, logits = passed.top_k(tokens_array(range(sum([each.n_rows for each in scheduled]))), n_top)
            top = read_only(ids), read_only(logits)
        wants_argmax = any([each.n_rows > 0 and each.sequence.is_plain_argmax for each in scheduled])  # noqa: C419 - as in `RoundRecord`
        if wants_argmax or feeds[0].n_more:  # where drafters want more of each row, it is not read twice
            if top is None:
                best = whole.argmax().tolist()  # which is at hand, and rarely padding
                argmax = best if all([0 <= token < n_vocab for token in best]) else passed.argmax().tolist()  # noqa: C419
            else:
                firsts = zip(top[0][:, 0].tolist(), top[1][:, 0].tolist(), strict=True)
                argmax = [token if isfinite(logit) else -1 for token, logit in firsts]
        features = {name: passed.features(name).copy() for name in wanted} if wanted else {}
        return cls(passed, argmax, best, top, features, seconds, late_s)
