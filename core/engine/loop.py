"""One round for all running sequences: draft, prepare, one forward pass, verify, commit, emit, accept.

Every round emits at least one token per decoding sequence; prompts are processed in chunks beside them, and drafters read
prompts in steps between them. Over a request `emitted = rounds + accepted` holds exactly, if the prompt's pass is a round.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import isfinite
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np
from attrs import Factory, define, field

from augury.engine.compiled_rounds import run_compiled
from augury.engine.context import EngineContext
from augury.engine.draft_log import log_draft
from augury.engine.round_pass import BegunPass, RoundPass, RoundRecord, ScheduledInput, emit_chain, n_chained
from augury.engine.sequence import RunningSequence
from augury.engine.slots import SavedSlot, Slots
from augury.engine.stats import EngineCounter, EngineStats, log_request
from augury.errors import AuguryError, LostDeviceError
from augury.guard import guarded, on_error, warn
from augury.interruption import interrupted
from augury.log import DRAFT_LOGGER, get_logger
from augury.speculation.ahead import settle_ahead
from augury.speculation.drafting import Drafting
from augury.speculation.drafts import Outcome, VerifiedNodes
from augury.types import Round, Summary, read_only, tokens_array

CHUNK = 512  # prompt tokens in a pass: enough to compute at full speed, few enough that a cancelled prompt ends soon
CHUNK_BESIDE = 128  # the same while others decode, because they wait for the pass
_REGAIN_S = 0.1  # in which a lost device may answer, before callers are looked after again
_FIRST = tokens_array([-1])  # the parents of one token


@define(eq=False, slots=False)
class Loop:
    """Runs sequences on one model. Not thread-safe: the engine's thread alone calls it."""

    _context: EngineContext
    _drafting: Drafting  # of all slots
    on_round: Callable[..., Any] | None = None  # called with a `Round` after every pass, also of texts that are only read
    _on_request: Callable[..., Any] | None = None  # called with a `Summary` after every request
    # tokens that may be chosen; the model's further logits are padding
    _n_vocab: int = field(default=Factory(lambda self: self._context.info.n_vocab, takes_self=True), kw_only=True)
    # called before every request; its exception is the request's error
    _check: Callable[[], None] | None = field(default=None, kw_only=True)
    _lost_timeout: float = field(default=60.0, kw_only=True)  # seconds that requests wait for a lost device
    _lost_at: float = field(default=0.0, init=False)  # by the clock, when a device was found to be lost; 0: none is
    _waiting: deque[RunningSequence] = field(factory=deque, init=False)
    n_held_back: int = field(default=0, init=False)  # of those: they wait for a slot of their own that is taken
    _running: list[RunningSequence] = field(factory=list, init=False)
    slots: Slots = field(default=Factory(lambda self: Slots(self._context, self._check), takes_self=True), init=False)
    _counter: EngineCounter = field(
        default=Factory(lambda self: EngineCounter(self._context.spec.n_slots), takes_self=True), init=False
    )
    _pass_s: float = field(default=0.0, init=False)  # seconds of the last pass; of a chain those of each

    @property
    def n_sequences(self) -> int:
        """How many run or wait. Any thread may ask."""
        return len(self._running) + len(self._waiting)

    def stats(self, n_arriving: int) -> EngineStats:
        """The requests that run, and the counts; `n_arriving` wait to be added. Any thread may ask."""
        return self._counter.stats(n_arriving + len(self._waiting), self.slots.evaluating, self._drafting.plain_s)

    def add(self, sequence: RunningSequence) -> None:
        """Queue a sequence for a slot."""
        self._waiting.append(sequence)

    def round(self) -> None:
        """Run one round. A failure in it ends the sequences that it concerns, with that error, and no others."""
        if (self._lost_at and not self._regained()) or (self._context.chain_rows and self._run_compiled()):
            return
        record = self._schedule()
        if not record.scheduled:  # nobody is there, or all wait for their drafters
            return
        try:
            done = self._forward(record)
        except BaseException as error:  # noqa: BLE001 - a backend may raise anything, and so may drafters and managers below
            self._end_all([each.sequence for each in record.scheduled], error)
        else:
            self._report(record, done, settle_s=self._deliver(record, done))

    def _run_compiled(self) -> bool:
        """Run rounds of a sequence that is alone by compiled code. Returns whether there were any."""
        if len(self._running) != 1 or self._waiting or self.slots.evaluating:
            return False
        with on_error(self._end, sequence := self._running[0]):
            if sequence.waits_for_drafters and not sequence.channel.cancels:
                self._drafting.prefill(sequence)
            if (done := run_compiled(self._context, self._drafting, sequence, self._n_vocab, self._pass_s)) is None:
                return False
            self._report(done.record, done.passed, settle_s=done.settle_s)
        return True

    def abandon(self, error: BaseException | None = None) -> None:
        """End everything that runs or waits: with an error, or as cancelled."""
        self._end_all((*self._running, *self._waiting), error)

    def _regained(self) -> bool:
        """Whether a lost device is back: slots hold nothing then, and texts begin again. Requests wait for it."""
        for sequence in [each for each in (*self._running, *self._waiting) if each.channel.cancels]:
            self._end(sequence)
        try:
            error, is_back = None, self._context.regain(_REGAIN_S, self.slots.evaluating)
        except AuguryError as found:
            is_back, error = False, found
            sleep(_REGAIN_S)
        if is_back:
            self._lost_at = 0.0
            self.slots.ended.clear()
            get_logger("augury.engine.loop").warning("a lost device is back; requests go on", n_running=len(self._running))
            for each in [*self._running]:
                with on_error(self._end, each):
                    self._reopen(each, each.begin_again)
        elif monotonic() - self._lost_at >= self._lost_timeout:
            lost = f"a device did not come back within {self._lost_timeout:g} s (lost_timeout)"
            self.abandon(AuguryError(f"{lost}: {error or 'start it again'}"))
            self._lost_at = 0.0  # later requests wait as long
        return is_back

    @property
    def n_chunk(self) -> int:
        """Tokens of a text that a pass may have."""
        return CHUNK_BESIDE if any(sequence.n_emitted for sequence in self._running) else CHUNK

    def save_slot(self, slot: int) -> SavedSlot:
        """The text of a slot, between two rounds of its request or after it."""
        return self.slots.save(slot, next((SavedSlot.of(each) for each in self._running if each.slot == slot), None))

    def _schedule(self) -> RoundRecord:
        """Who takes part, with which tokens: of those that decode the last one and a draft, and chunks of prompts."""
        for sequence in [each for each in (*self._running, *self._waiting) if each.channel.cancels]:
            self._end(sequence)
        for sequence in [each for each in self._running if each.waits_for_drafters and not each.is_prefilling]:
            with on_error(self._end, sequence):
                self._drafting.prefill(sequence)
        if self._waiting or self.n_held_back:
            self._admit()  # with what drafters now hold of a prompt, too: others may begin with the same
        start = perf_counter()
        prefilling = [each for each in self._running if each.is_prefilling]
        decoding = [each for each in self._running if not (each.is_prefilling or each.waits_for_drafters)]
        chunks = self._chunks(prefilling, CHUNK_BESIDE if decoding else CHUNK) if prefilling else []
        n_prompt = sum([each.n_prompt for each in chunks])  # sums are taken over lists, as generators take longer
        scheduled = self._decoding(decoding, n_prompt) + chunks
        n_tokens = sum([each.n_prompt or each.n_rows + each.slot_input.n_more for each in scheduled])
        return RoundRecord(start, scheduled, n_prompt, n_tokens, perf_counter() - start, [])

    def _forward(self, record: RoundRecord) -> RoundPass:
        """Begin the pass, let drafters draft ahead, wait for it, and read of its rows what sequences and drafters want."""
        scheduled, drafting, context = record.scheduled, self._drafting, self._context
        told = [name for each in scheduled for name in each.sequence.request.hidden_states]
        drafters = drafting.features([each.sequence for each in scheduled]) if drafting.wants_features else ()
        wanted = tuple(sorted({*drafters, *told})) if told else drafters
        feeds, start, before = [each.slot_input for each in scheduled], perf_counter(), interrupted.seconds
        forward = partial(context.forward, feeds, wanted)
        whole = forward() if context.thread is None else BegunPass(context.thread, forward)
        forward_s, ahead_s, late_s, lost_s = perf_counter() - start, 0.0, 0.0, interrupted.seconds - before
        choices = [each.choice for each in scheduled if each.choice is not None] if context.is_asynchronous else []
        context.is_busy = True
        try:
            if choices:
                n_others = sum([len(each.slot_input.tokens) for each in scheduled if each.choice is None])
                ahead_s = drafting.draft_ahead(choices, n_others, forward_s)
        finally:  # nothing may happen to the model before the pass is over
            before = interrupted.seconds
            context.is_busy, device_s = False, whole.wait()
        seconds = forward_s if device_s is None else device_s  # None: it was over when forward returned
        lost_s += interrupted.seconds - before
        own_s = seconds - lost_s if lost_s < seconds else seconds
        if ahead_s:
            late_s = min(max(forward_s + ahead_s - seconds, 0.0), ahead_s)
            settle_ahead(choices, late_s / ahead_s)
        passed = whole if self._n_vocab == context.info.n_vocab else whole.first(self._n_vocab)
        top, argmax, best = None, list[int](), list[int]()
        if n_top := max([each.n_top for each in scheduled]):
            ids, logits = passed.top_k(tokens_array(range(sum([each.n_rows for each in scheduled]))), n_top)
            top = read_only(ids), read_only(logits)
        wants_argmax = any([each.n_rows > 0 and each.sequence.is_plain_argmax for each in scheduled])  # noqa: C419 - a generator takes longer
        if wants_argmax or feeds[0].n_more:  # where drafters want more of each row, it is not read twice
            if top is None:
                best = whole.argmax().tolist()  # which is at hand, and rarely padding
                argmax = best if all([0 <= token < self._n_vocab for token in best]) else passed.argmax().tolist()  # noqa: C419
            else:
                firsts = zip(top[0][:, 0].tolist(), top[1][:, 0].tolist(), strict=True)
                argmax = [token if isfinite(logit) else -1 for token, logit in firsts]
        features = {name: passed.features(name).copy() for name in wanted} if wanted else {}
        return RoundPass(passed, argmax, best, top, features, seconds, own_s, late_s)

    def _deliver(self, record: RoundRecord, done: RoundPass) -> float:
        """Emit everyone's tokens; returns how long drafters then took to learn of them: they write over logits and states."""
        row = 0
        for each in record.scheduled:
            with on_error(self._end, each.sequence):
                record.outcomes.append((each, self._emit(each, record, done, row)))
            row += each.n_rows
        start = perf_counter()
        if done.features:
            self._feed(record, done.features)
        rounds = [(each.choice, outcome) for each, outcome in record.outcomes if each.choice is not None]
        for each, outcome in record.outcomes:
            if each.choice is not None:
                with on_error(self._end, each.sequence):
                    self._drafting.settle(each.choice, outcome)
        if rounds:
            n_others = record.n_tokens - sum([1 + len(choice.nodes) for choice, _ in rounds])
            with on_error(warn, "augury.engine.loop", "a round teaches the planner nothing"):
                self._drafting.observe_round(rounds, n_others, done.own_s)
        return perf_counter() - start

    def _report(self, record: RoundRecord, done: RoundPass, *, settle_s: float) -> None:
        """Count the round, end the sequences that are through, and tell observers."""
        seen = Round(
            n_sequences=len(record.scheduled),
            n_tokens=record.n_tokens,
            n_drafted=sum([len(each.choice.nodes) for each, _ in record.outcomes if each.choice is not None]),
            n_accepted=sum([len(outcome.path) for _, outcome in record.outcomes]),
            n_emitted=sum([outcome.n_emitted for _, outcome in record.outcomes]),
            draft_s=record.draft_s + done.late_s,
            forward_s=done.seconds,
            ids=tuple([each.sequence.id for each in record.scheduled]),
        )
        self._counter.passed(seen, record.n_prompt, self._running)
        self._pass_s = done.seconds / (1 + record.scheduled[0].slot_input.n_more)
        for sequence in [each for each in self._running if each.finish_reason is not None or each.is_full]:
            if sequence.finish_reason is not None:
                self._end(sequence)
            else:
                with on_error(self._end, sequence):
                    self._reopen(sequence, sequence.shift)
        if self.on_round is not None:
            guarded(self.on_round, round=seen)
        others_s = seen.draft_s + seen.forward_s + settle_s
        self._counter.overhead(seen, len(self._running), perf_counter() - record.start - others_s)

    def _admit(self) -> None:
        for sequence in tuple(self._waiting):
            if len(self.slots.in_use) == self._context.spec.n_slots:
                break
            if sequence.request.slot not in self.slots.in_use and not sequence.waits_for_prompt:
                with on_error(self._end, sequence):
                    self._start(sequence)
        self.n_held_back = sum(sequence.request.slot in self.slots.in_use for sequence in self._waiting)

    def _start(self, sequence: RunningSequence) -> None:
        request = sequence.request
        opened = self.slots.open(sequence.prompt, may_reuse=request.cache_prompt, slot=request.slot, scales=request.scales)
        if opened is not None:
            sequence.slot, sequence.prompt_owner = opened.slot, None
            n_reused = self._drafting.open(sequence, opened.n_reused)
            if n_reused < opened.n_reused:
                n_reused = self._context.truncate(opened.slot, n_reused)
            sequence.n_kept = sequence.n_reused = n_reused
            n_recomputed = max(opened.n_shared - n_reused, 0)
            sequence.counter.opened(opened.slot, n_reused, n_recomputed)
            self._running.append(sequence)
            self._waiting.remove(sequence)
            self._counter.started(n_reused, n_recomputed)
            self._counter.publish(self._running)

    def _decoding(self, sequences: Sequence[RunningSequence], n_prompt: int) -> list[ScheduledInput]:
        """The last token of each sequence, and its draft if it has drafters, beside `n_prompt` tokens of prompts."""
        drafted = [each for each in sequences if each.is_drafted]
        has_drafters = [] if drafted and self._drafting.rest(drafted) else drafted
        limits: list[tuple[RunningSequence, int]] = []  # in every step so: list[RunningSequence]() takes forty times as long
        for each in has_drafters:
            with on_error(self._end, each):  # a pass over k drafted tokens stores k + 1 and may emit as many
                room = self._context.memory.draft_room(each.slot)
                limits.append((each, min(each.speculation.n_max, room, each.n_left - 1)))
        choices: dict[RunningSequence, VerifiedNodes] = {}
        if limits:
            asked, n_others = [each for each, _ in limits], n_prompt + len(sequences) - len(has_drafters)
            with on_error(self._end_all, asked):
                choices = dict(zip(asked, self._drafting.propose(limits, n_others), strict=True))
        may_chain = self._context.chain_rows and not (n_prompt or self._waiting or self.slots.evaluating)
        n_more = n_chained(self._context, self._drafting, self._running, self._pass_s) - 1 if may_chain else 0
        scheduled: list[ScheduledInput] = []
        for each in sequences:
            if (choice := choices.get(each)) is None and each in has_drafters:  # it has ended
                continue
            n_rows, n_top, draft = (
                (1, 0, None) if choice is None else (1 + len(choice.nodes), choice.proposals.n_top, choice.draft)
            )
            with on_error(self._end, each):
                slot_input = self._context.prepare(each.slot, each.history[-1:], n_rows, draft, n_more)
                scheduled.append(ScheduledInput(each, slot_input, n_rows, choice, n_top))
        return scheduled

    def _chunks(self, sequences: Sequence[RunningSequence], n_chunk: int) -> list[ScheduledInput]:
        scheduled: list[ScheduledInput] = []
        for each in sequences:
            left = each.prompt[each.n_kept :]
            if n_chunk:
                with on_error(self._end, each):
                    n = self._context.chunk(each.slot, min(n_chunk, len(left)), len(left))
                    n_rows = int(n == len(left))
                    slot_input = self._context.prepare(each.slot, left[:n], n_rows)
                    scheduled.append(ScheduledInput(each, slot_input, n_rows, n_prompt=n))
                    n_chunk -= n
        return scheduled

    def _emit(self, scheduled: ScheduledInput, record: RoundRecord, done: RoundPass, row: int) -> Outcome:
        """Verify a sequence's draft, emit the accepted tokens, and keep their states."""
        sequence, choice, slot_input, passed = scheduled.sequence, scheduled.choice, scheduled.slot_input, done.passed
        if slot_input.n_more:
            return emit_chain(self._context, scheduled, len(record.scheduled), done, row)
        draft, names = slot_input.draft, choice.names if choice is not None and choice.nodes else ()
        path: tuple[int, ...] = ()
        n_emitted, n_accepted, is_stopped, top = 0, 0, False, None
        if scheduled.n_prompt and not sequence.pieces:
            sequence.counter.chunk(scheduled.n_prompt, done.seconds * scheduled.n_prompt / record.n_tokens)
        if scheduled.n_rows:  # a chunk has none, unless it is a prompt's last
            accepted = sequence.verify(draft, passed, row, done.argmax)
            n_emitted = sequence.emit(accepted, passed, row, names)
            if not n_emitted and sequence.error is not None:  # the slot keeps its contents of before the pass
                raise sequence.error
            path, n_accepted = tuple(accepted.path[: n_emitted - 1]), n_emitted - 1
            is_stopped = n_accepted < len(accepted.path)
            if names and DRAFT_LOGGER.isEnabledFor(logging.DEBUG):
                guarded(log_draft, sequence, choice, accepted, n_emitted, passed, row)
        self._context.commit(slot_input, path)
        sequence.n_kept += len(slot_input.tokens) + n_accepted
        if not scheduled.n_prompt:
            sequence.counter.round(names, draft.depth if names else 0, n_accepted, n_emitted)
            if done.top is not None and scheduled.n_top:
                after, parents = tokens_array(slot_input.tokens), _FIRST
                if names:
                    after = tokens_array([*slot_input.tokens.tolist(), *draft.tokens.tolist()])
                    parents = tokens_array([-1, *[parent + 1 for parent in draft.above.tolist()]])
                top = after, parents, *[each[row : row + scheduled.n_rows] for each in done.top]
        elif n_emitted:
            if sequence.finish_reason is None:
                self._drafting.begin(sequence)
            sequence.counter.prefilled()
        return Outcome(path, n_emitted, is_stopped, top)

    def _feed(self, record: RoundRecord, features: Mapping[str, np.ndarray]) -> None:
        """Give drafters and callers the features of the kept tokens."""
        n_tokens = [each.slot_input.n_tokens for each in record.scheduled]
        firsts = dict(zip([each.sequence for each in record.scheduled], accumulate(n_tokens, initial=0), strict=False))
        for each, outcome in record.outcomes:
            sequence = each.sequence
            with on_error(self._end, sequence):
                kept = each.kept(outcome, features, firsts[sequence])
                self._drafting.feed(sequence, *kept)
                sequence.tell_hidden_states(*kept)

    def _reopen(self, sequence: RunningSequence, change: Callable[[], int]) -> None:
        """Change a sequence's text or slot. The text is processed like a prompt, except for its beginning, which stays."""
        self._drafting.end(sequence)
        n_same = self._drafting.open(sequence, change())
        sequence.n_kept = sequence.n_reused = self._context.truncate(sequence.slot, n_same)

    def _end_all(self, sequences: Iterable[RunningSequence], error: BaseException | None) -> None:
        for sequence in sequences:
            self._end(sequence, error)

    def _end(self, sequence: RunningSequence, error: BaseException | None = None) -> None:
        """Take a sequence out and free its slot; its caller hears of the end even if a step fails.

        Where a device of the model was lost it stays, for `_regained`.
        """
        if isinstance(error, LostDeviceError) and self._context.is_lost:
            self._lost_at = self._lost_at or monotonic()
            return
        if sequence.slot >= 0:
            self.slots.free(sequence.slot)
            guarded(self._remember, sequence)
            guarded(self._drafting.end, sequence)
        summary = guarded(self._summary, sequence)
        for queue in (self._running, self._waiting):
            if sequence in queue:
                queue.remove(sequence)
        is_failed = summary is None or sequence.error is not None or error is not None
        guarded(self._counter.ended, sequence.counter, sequence.finish_reason, is_failed=is_failed)
        guarded(self._counter.publish, self._running)  # before its caller hears of the end, and asks
        sequence.finish(error)

    def _remember(self, sequence: RunningSequence) -> None:
        sequence.counter.n_restores, sequence.counter.n_replayed = self._context.restored(sequence.slot)
        if sequence.request.cache_prompt:
            self.slots.ended[sequence.slot] = SavedSlot.of(sequence)

    def _summary(self, sequence: RunningSequence) -> Summary:
        """A sequence's figures, of which observers and the log are told."""
        self._counter.tell_plain(sequence.counter, self._drafting.plain_s)
        summary = sequence.counter.summary()
        if self._on_request is not None:
            guarded(self._on_request, summary=summary)
        guarded(log_request, summary)
        return summary
