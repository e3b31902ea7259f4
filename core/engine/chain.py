"""Plain decoding in chains of passes: a model on a device chooses the tokens between them itself, and is waited for once.

They are for texts whose tokens are the best of each row, which need no host, while their drafters rest. A text's first token
comes with its prompt's pass, so a chain keeps none back. None begins while a prompt is read or somebody waits. Whoever comes
during one waits for three passes more than else, and a request that ends or is cancelled within one wastes as many at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import evolve

from augury.speculation.drafts import Outcome
from augury.types import NO_DRAFT

if TYPE_CHECKING:
    from augury.engine.context import EngineContext
    from augury.engine.round_pass import RoundPass, ScheduledInput
    from augury.engine.sequence import RunningSequence
    from augury.speculation.drafting import Drafting

_LONGEST = 4  # passes: a quarter of the wait for each


def n_chained(context: EngineContext, drafting: Drafting, sequences: Sequence[RunningSequence]) -> int:
    """How many passes over a token of each sequence are begun at once; 1 where others than the best may be chosen."""
    if not 0 < 2 * len(sequences) <= context.chain_rows:
        return 1
    if any([each.request.hidden_states or not each.sampler.is_best_allowed for each in sequences]):  # noqa: C419 - a generator takes longer
        return 1
    n = min([_LONGEST, context.chain_rows // len(sequences), *[each.n_left for each in sequences]])
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
