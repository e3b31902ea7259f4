"""One round for all running sequences: draft, prepare, one forward pass, verify, commit, emit, accept.

Every round emits at least one token per decoding sequence; prompts are processed in chunks beside them, and what drafters have
to do with a prompt goes on in steps between them. Over a request `emitted = rounds + accepted` holds exactly, where the
prompt's last pass counts as a round.
"""

from __future__ import annotations

import logging
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

import attrs
import numpy as np

from augury.draft_log import DRAFT_LOGGER, draft_lines
from augury.log import get_logger
from augury.part import Part, batch_of
from augury.types import Batch, Draft, Round, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from collections.abc import Sequence as Items
    from typing import Any

    from augury.drafted import Drafted
    from augury.drafting import Drafting
    from augury.interfaces import Logits, MemoryManager, Model
    from augury.sequence import Sequence
    from augury.types import Summary

__all__ = ["Loop"]

CHUNK = 512  # prompt tokens in a pass: enough to compute at full speed, few enough that a cancelled prompt ends soon
CHUNK_BESIDE = 128  # the same while others decode, who wait for the pass
_LOGGER = logging.getLogger("augury.loop")  # where structlog's events go; asked first, for they cost something to make


class Loop:
    """Runs sequences on one model. Not thread-safe: the engine's thread alone calls it."""

    def __init__(
        self,
        model: Model,
        memory: MemoryManager,
        drafting: Drafting,
        on_round: Callable[..., Any] | None = None,
        on_request: Callable[..., Any] | None = None,
    ) -> None:
        """Take over a model.

        Args:
            model: With as many slots as the memory manager has.
            memory: Its memory manager.
            drafting: The drafters of all slots.
            on_round: Called with a `Round` after every pass.
            on_request: Called with a `Summary` after every request.
        """
        self._model = model
        self._memory = memory
        self._drafting = drafting
        self._on_round = on_round
        self._on_request = on_request
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._running and not self._waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence for a slot."""
        self._waiting.append(sequence)

    def round(self) -> list[Sequence]:
        """Run one round; returns the sequences that ended in it."""
        ended = self._drop_cancelled()
        self._admit()
        if not self._running:
            return ended
        decoding = [sequence for sequence in self._running if sequence.n_emitted and self._drafting.prefill(sequence)]
        start = perf_counter()
        parts = self._parts(decoding)
        if not parts:  # all wait for their drafters
            return ended
        before = perf_counter()
        logits = self._model.forward(batch_of(parts))
        forward_s = perf_counter() - before
        settled = self._settle(parts, logits)
        verdicts = [verdict for _, verdict in settled]
        drafted = [each for each, _ in settled if each is not None]
        n_beside = sum(len(part.tokens) for part in parts if part.drafted not in drafted)
        self._drafting.observe_round(drafted, verdicts[: len(drafted)], n_beside, forward_s)
        ended += self._retire()
        if self._on_round is not None:
            seen = Round(
                n_sequences=len(parts),
                n_tokens=sum(len(part.tokens) for part in parts),
                n_drafted=sum(verdict.n_offered for verdict in verdicts),
                n_accepted=sum(verdict.n_accepted for verdict in verdicts),
                n_emitted=sum(verdict.n_emitted for verdict in verdicts),
                draft_s=before - start,
                forward_s=forward_s,
            )
            _guarded(self._on_round, round=seen)
        return ended

    def abandon(self) -> list[Sequence]:
        """Give up everything that runs or waits, after an error; the slots are free again."""
        ended = [*self._running, *self._waiting]
        for sequence in self._running:
            self._release(sequence)
        self._running.clear()
        self._waiting.clear()
        return ended

    def evaluate(self, tokens: np.ndarray, rows: np.ndarray) -> Generator[np.ndarray | None, None, None]:
        """Logits of a text without continuing it, a chunk with every step, so that rounds may go on in between.

        Args:
            tokens: (T,) int32.
            rows: (r,) int32, rising positions whose logits are wanted.

        Yields:
            None while all slots are taken and after every chunk, at last (r, V) float32. Closing the generator frees the slot.

        Raises:
            CapacityError: The tokens do not fit.
        """
        while (opened := self._memory.open(tokens, may_reuse=False)) is None:
            yield None
        try:
            logits = np.empty((len(rows), self._model.info.n_vocab), np.float32)
            for start in range(0, len(tokens), CHUNK):
                chunk = tokens[start : start + CHUNK]
                step = self._memory.prepare(opened.slot, len(chunk))
                first, last = np.searchsorted(rows, (start, start + len(chunk)))
                logits[first:last] = self._model.forward(
                    Batch(
                        tokens=chunk,
                        slots=np.full(len(chunk), opened.slot, np.int32),
                        positions=np.arange(start, start + len(chunk), dtype=np.int32),
                        rows=(rows[first:last] - start).astype(np.int32),
                    )
                ).rows()
                self._memory.commit(opened.slot, step, chunk)
                yield None
        finally:
            self._memory.end(opened.slot)
        yield logits

    # The steps of a round

    def _drop_cancelled(self) -> list[Sequence]:
        dropped = [sequence for sequence in (*self._running, *self._waiting) if sequence.running.is_cancelled]
        for sequence in dropped:
            if sequence in self._running:
                self._running.remove(sequence)
                self._release(sequence)
            else:
                self._waiting.remove(sequence)
        return dropped

    def _admit(self) -> None:
        while self._waiting:
            sequence = self._waiting[0]
            opened = self._memory.open(sequence.request.prompt, may_reuse=sequence.request.cache_prompt)
            if opened is None:
                return
            self._waiting.popleft()
            sequence.slot = opened.slot
            sequence.n_kept = opened.n_reused
            sequence.recorder.start(len(sequence.request.prompt), opened.n_reused)
            self._running.append(sequence)

    def _parts(self, decoding: Items[Sequence]) -> list[Part]:
        """Everyone's share of the pass: a decoding sequence's last token and draft, then chunks of prompts."""
        chunks = self._chunks(CHUNK_BESIDE if decoding else CHUNK)
        drafted = self._drafting.propose(
            [(sequence, self._limit(sequence)) for sequence in decoding], n_beside=sum(len(part.tokens) for part in chunks)
        )
        parts = []
        for each in drafted:
            tokens = np.concatenate([each.sequence.history[-1:], each.draft.tokens])
            step = self._memory.prepare(each.sequence.slot, len(tokens))
            parts.append(Part(each.sequence, step, tokens, n_rows=len(tokens), drafted=each))
        return parts + chunks

    def _chunks(self, n_chunk: int) -> list[Part]:
        """The next tokens of the prompts in progress, `n_chunk` at most."""
        parts = []
        for sequence in self._running:
            if not sequence.n_emitted and n_chunk:
                tokens = sequence.request.prompt[sequence.n_kept : sequence.n_kept + n_chunk]
                n_chunk -= len(tokens)
                is_last = sequence.n_kept + len(tokens) == len(sequence.request.prompt)
                step = self._memory.prepare(sequence.slot, len(tokens))
                parts.append(Part(sequence, step, tokens, n_rows=int(is_last)))
        return parts

    def _limit(self, sequence: Sequence) -> int:
        """How many tokens of a draft fit: a pass over k of them stores k + 1 and may emit as many."""
        return min(sequence.request.speculation.n_max, self._memory.room(sequence.slot) - 1, sequence.n_left - 1)

    def _settle(self, parts: Items[Part], logits: Logits) -> list[tuple[Drafted | None, Verdict]]:
        """Verify, keep what was accepted, emit it and tell the drafters; a verdict for each part that emitted something.

        Whatever fails here is one sequence's trouble, which ends alone; what its slot holds is as before the pass.
        """
        argmax: list[int] = (
            logits.argmax().tolist() if any(part.n_rows and part.sequence.sampler.is_plain_argmax for part in parts) else []
        )
        settled: list[tuple[Drafted | None, Verdict]] = []
        row = 0
        for part in parts:
            sequence = part.sequence
            if not part.n_rows:
                self._keep(part, part.tokens)
                continue
            draft = part.drafted.draft if part.drafted is not None else Draft()
            name = None if part.drafted is None else self._drafting.name(part.drafted)
            first_row, row = row, row + part.n_rows
            try:
                accepted = sequence.verify(draft, logits, first_row, argmax)
                n_emitted = sequence.emit(accepted, logits, first_row, name)
            except Exception as error:  # noqa: BLE001 - whatever its sampler, text or logits did, the others go on
                sequence.fail(error)
                continue
            if not n_emitted:
                continue
            if part.drafted is None:
                self._keep(part, part.tokens)
                if sequence.finish_reason is None:
                    self._drafting.begin(sequence)
                sequence.recorder.first_token()
                settled.append((None, Verdict(n_offered=0, n_accepted=0, n_emitted=1, is_used=False)))
                continue
            if len(draft) and DRAFT_LOGGER.isEnabledFor(logging.DEBUG):
                lines = draft_lines(sequence, draft, accepted, n_emitted, logits, first_row, name)
                DRAFT_LOGGER.debug("\n".join(lines))
            path = accepted.path[: n_emitted - 1]
            kept = [0, *(node + 1 for node in path)]
            self._keep(part, part.tokens[kept], None if draft.parents is None else np.array(kept, np.int32))
            settled.append((part.drafted, self._drafting.settle(part.drafted, path, n_emitted)))
        return settled

    def _keep(self, part: Part, tokens: np.ndarray, path: np.ndarray | None = None) -> None:
        """Keep some tokens of a part, those at `path` in it; None: at its beginning."""
        replay = np.array(part.step.replay, np.int32)
        if path is not None and len(replay):
            path = np.concatenate([np.arange(len(replay), dtype=np.int32), path + np.int32(len(replay))])
        self._memory.commit(part.sequence.slot, part.step, np.concatenate([replay, tokens]), path)
        part.sequence.n_kept += len(tokens)

    def _retire(self) -> list[Sequence]:
        ended = [sequence for sequence in self._running if sequence.finish_reason is not None]
        for sequence in ended:
            self._running.remove(sequence)
            self._release(sequence)
        return ended

    def _release(self, sequence: Sequence) -> None:
        self._memory.end(sequence.slot)
        for drafter in self._drafting.end(sequence):
            _guarded(drafter.end)
        summary = sequence.recorder.summary()
        if self._on_request is not None:
            _guarded(self._on_request, summary=summary)
        if _LOGGER.isEnabledFor(logging.INFO):
            _log_request(summary)


def _log_request(summary: Summary) -> None:
    logger = get_logger("augury.loop")
    logger.info(
        "request done",
        prompt=summary.n_prompt,
        reused=summary.n_reused,
        emitted=summary.n_emitted,
        rounds=summary.n_rounds,
        prompt_s=round(summary.timings.prompt_s, 4),
        predict_s=round(summary.timings.predict_s, 4),
    )
    for name, stats in summary.drafters.items():
        logger.info("drafter done", drafter=name, **attrs.asdict(stats))


def _guarded(call: Callable[..., Any], **arguments: Any) -> None:
    """Call a plugin where its failure must not reach the requests."""
    try:
        call(**arguments)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's code does
        get_logger("augury.loop").warning("plugin failed", plugin=getattr(call, "__qualname__", str(call)), error=repr(error))
