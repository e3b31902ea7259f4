"""Rounds of a sequence that is alone, run by one call of compiled code; see `augury.speculation.compiled_rounds`."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import NamedTuple

import numpy as np
from attrs import evolve

from augury.engine.context import EngineContext
from augury.engine.round_pass import LONGEST_S, RoundPass, RoundRecord, ScheduledInput
from augury.engine.sequence import RunningSequence
from augury.interruption import interrupted
from augury.log import DRAFT_LOGGER
from augury.passes import ArrayPass
from augury.speculation.compiled_rounds import ROOM, find_functions, run_rounds
from augury.speculation.drafting import Drafting
from augury.speculation.drafts import Outcome
from augury.speculation.verification import Accepted

_MOST = 8  # rounds, of which each learns nothing of those before it
_READ = ArrayPass(np.empty((0, 0), np.float32))  # of whose rows nothing is left to be told


class DoneRounds(NamedTuple):
    """What is told of the rounds together, as of one."""

    record: RoundRecord
    passed: RoundPass
    settle_s: float  # in which drafters learnt


def run_compiled(
    context: EngineContext, drafting: Drafting, sequence: RunningSequence, n_vocab: int, pass_s: float
) -> DoneRounds | None:
    """Run a sequence's next rounds; None where something that takes part has no compiled functions, or is slow and asked.

    There are as many as a caller does not notice, by passes of `pass_s`: their tokens come together, as those of chains do.
    """
    start, n_before = perf_counter(), len(sequence.history)
    if not sequence.may_be_compiled or sequence.waits_for_drafters or sequence.channel.cancels:
        return None
    if DRAFT_LOGGER.isEnabledFor(logging.DEBUG):  # which is told of each round's rows
        return None
    room = min(sequence.speculation.n_max, ROOM // len(sequence.speculation.members))
    limit = min(room, context.memory.draft_room(sequence.slot), sequence.n_left - 1)
    features = drafting.features([sequence]) if drafting.wants_features else ()
    passes = context.model.compiled_pass(sequence.slot, 1 + room, drafting.n_top, n_vocab, features)
    if passes is None:
        return None
    n_most = max(int(LONGEST_S / max(pass_s, LONGEST_S / _MOST)), 1)
    if (plan := drafting.plan_compiled(sequence, limit, n_most)) is None:
        return None
    n_tokens = min(plan.n_most * (1 + limit), sequence.n_left)
    fed = passes.keep_features(n_tokens)
    if (ask := find_functions(plan, n_tokens, fed)) is None:
        return None
    slot_input = context.prepare(sequence.slot, sequence.history[-1:], n_more=n_tokens - 1)
    passes.move_first(slot_input.reservation.accepted)  # of the draft before
    begin_s, before = perf_counter() - start - ask.begin_s, interrupted.seconds
    how = sequence.text, sequence.n_left, sequence.ends, context.info.n_vocab
    rounds = run_rounds(passes, ask, *how, most_s=LONGEST_S * (1 - 1 / _MOST))
    passes_s = sum([each.pass_s for each in rounds])
    own = 1 - min((interrupted.seconds - before) / max(passes_s, 1e-9), 0.5)  # of their time, without other programs
    scheduled = ScheduledInput(sequence, evolve(slot_input, n_more=len(rounds) - 1), 1)
    outcomes, settle_s = list[tuple[ScheduledInput, Outcome]](), 0.0
    for each in rounds:
        choice, outcome, names = each.choice, each.outcome, each.choice.names
        n = sequence.emit(Accepted(each.tokens, outcome.path), _READ, 0, names)
        if not n and sequence.error is not None:  # the slot keeps its contents of before
            raise sequence.error
        outcome = outcome._replace(n_emitted=n)  # without one that is none
        sequence.counter.round(names, choice.draft.depth, len(outcome.path), n)
        settling = perf_counter()
        if fed:
            first = len(sequence.history) - 1 - n
            at = first - (n_before - 1)
            drafting.feed(sequence, first, sequence.history[first:-1], {name: rows[at : at + n] for name, rows in fed.items()})
        if ask.drafters:
            drafting.settle_compiled(each._replace(outcome=outcome), own * each.pass_s, begin_s / len(rounds))
        settle_s += perf_counter() - settling
        outcomes.append((scheduled._replace(choice=choice), outcome))
    for drafter, functions in ask.drafters:
        drafter.guard.end_compiled(functions)
    if not ask.drafters:
        drafting.rest([sequence], len(rounds))
    context.commit(evolve(slot_input, tokens=sequence.history[n_before - 1 : -1]))
    sequence.n_kept += len(sequence.history) - n_before
    n_tokens = sum([1 + len(each.choice.nodes) for each in rounds])
    record = RoundRecord(start, [scheduled], 0, n_tokens, sum([each.draft_s for each in rounds]), outcomes)
    return DoneRounds(record, RoundPass(_READ, [], [], None, {}, passes_s, own * passes_s, 0.0), settle_s)
