"""A round's records: what is scheduled, and its one pass or chain of passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from attrs import evolve

from augury.batch import SlotInput
from augury.engine.context import EngineContext
from augury.engine.sequence import RunningSequence
from augury.interruption import interrupted
from augury.passes import Pass, WrappedPass
from augury.speculation.drafting import Drafting
from augury.speculation.drafts import Outcome, VerifiedNodes
from augury.types import NO_DRAFT

if TYPE_CHECKING:
    from concurrent.futures import Executor


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


class RoundRecord(NamedTuple):
    """A round: what was scheduled, and what came of it."""

    start: float  # of drafting, by the clock
    scheduled: Sequence[ScheduledInput]
    n_prompt: int  # tokens of prompts in the pass
    n_tokens: int  # new ones in the pass, or in a chain of passes; replayed ones are not counted
    draft_s: float
    outcomes: list[tuple[ScheduledInput, Outcome]]  # of those that did not fail


class BegunPass(WrappedPass):
    """A pass that a thread computes, while the engine's own thread goes on; it has results once it was waited for."""

    def __init__(self, thread: Executor, compute: Callable[[], Pass]) -> None:
        """Begin it."""

        def timed() -> tuple[Pass, float, float]:
            start, before = perf_counter(), interrupted.seconds
            passed = compute()
            passed.wait()
            return passed, perf_counter() - start, interrupted.seconds - before

        self._begun = thread.submit(timed)

    def wait(self) -> float | None:
        """See `Pass.wait`; an error of the pass is raised here."""
        self._whole, seconds, lost_s = self._begun.result()
        interrupted.seconds += lost_s  # of this thread from here on
        return seconds

    def first(self, n: int) -> Pass:
        return self._whole.first(n)


class RoundPass(NamedTuple):
    """A pass that is over, or a chain of passes, whose rows come one pass after another."""

    passed: Pass
    argmax: list[int]  # the best token of each row; empty where everyone asks for more
    fed: list[int]  # of a chain the token after each row that its next pass was given
    top: tuple[np.ndarray, np.ndarray] | None  # the best of each row, and their logits, as many as some drafter wants
    features: Mapping[str, np.ndarray]  # that drafters and callers are given
    seconds: float
    own_s: float  # of these, without interruptions
    late_s: float  # how much longer than the pass drafting ahead took


LONGEST = 4  # passes: a quarter of the wait for each
LONGEST_S = 0.02  # in which no caller sees that tokens come together


def n_chained(context: EngineContext, drafting: Drafting, sequences: Sequence[RunningSequence], pass_s: float) -> int:
    """How many passes over a token of each sequence are begun at once; 1 where others than the best may be chosen.

    A model chooses the tokens between them itself, and is waited for once. A text's first token comes with its prompt's pass,
    so a chain keeps none back. Whoever comes during one waits for three passes more than else, and a request that ends or is
    cancelled within one wastes as many at most; so passes of `pass_s` each are chained only as far as nobody notices.
    """
    if not 0 < 2 * len(sequences) <= context.chain_rows:
        return 1
    if any([each.request.hidden_states or not each.sampler.is_best_allowed for each in sequences]):  # noqa: C419 - a generator takes longer
        return 1
    n_unseen = int(LONGEST_S / max(pass_s, LONGEST_S / LONGEST))  # at most LONGEST
    n = max(min([n_unseen, context.chain_rows // len(sequences), *[each.n_left for each in sequences]]), 1)
    if drafted := [each for each in sequences if each.is_drafted]:
        return 1 if drafting.wants_features else 1 + drafting.rest(drafted, n - 1)
    return n


def emit_chain(context: EngineContext, scheduled: ScheduledInput, n_sequences: int, done: RoundPass, row: int) -> Outcome:
    """Emit a sequence's token of each pass, a round of its own, and keep their states.

    The chain is over with the request, or with a token that the next pass was not given: the best is forbidden, or padding.
    The rows are those of the first pass of all sequences, then those of the next one.
    """
    sequence, n_emitted = scheduled.sequence, 0
    for place in range(row, len(done.fed), n_sequences):
        accepted = sequence.verify(NO_DRAFT, done.passed, place, done.argmax)
        n = sequence.emit(accepted, done.passed, place, ())
        n_emitted += n
        if not n or sequence.finish_reason is not None or accepted.tokens[0] != done.fed[place]:
            break
    if not n_emitted and sequence.error is not None:  # the slot keeps its contents of before the chain
        raise sequence.error
    context.commit(evolve(scheduled.slot_input, tokens=sequence.history[-1 - n_emitted : -1]))
    sequence.n_kept += n_emitted
    sequence.counter.chained(n_emitted)
    return Outcome((), n_emitted)
