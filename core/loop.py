"""One round for all running sequences: draft, prepare, one forward pass, verify, commit, emit, accept.

Every round emits at least one token per decoding sequence; prompts are processed in chunks beside them. Over a request
`emitted = rounds + accepted` holds exactly, where the prompt's last pass counts as a round.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.log import get_logger
from augury.types import Ask, Batch, Draft, Round, Verdict
from augury.verify import match

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from collections.abc import Sequence as Items
    from typing import Any

    from augury.interfaces import Drafter, Logits, MemoryManager, Model
    from augury.sequence import Sequence
    from augury.types import Step

__all__ = ["Loop"]

CHUNK = 512  # prompt tokens in a pass: enough to compute at full speed, few enough that a cancelled prompt ends soon
CHUNK_BESIDE = 128  # the same while others decode, who wait for the pass


@frozen(eq=False)
class Part:
    """One sequence's share of a pass: `replay` and `tokens` go in at `step.mark`; the last `n_rows` have logits."""

    sequence: Sequence
    step: Step
    tokens: np.ndarray  # (m,) int32, without what is replayed
    n_rows: int
    draft: Draft | None = None  # None while the prompt is processed


class Loop:
    """Runs sequences on one model. Not thread-safe: the engine's thread alone calls it."""

    def __init__(
        self,
        model: Model,
        memory: MemoryManager,
        drafters: Items[Drafter],
        on_round: Callable[..., Any] | None = None,
        on_request: Callable[..., Any] | None = None,
    ) -> None:
        """Take over a model.

        Args:
            model: With as many slots as the memory manager has.
            memory: Its memory manager.
            drafters: One per slot; empty to never draft.
            on_round: Called with a `Round` after every pass.
            on_request: Called with a `Summary` after every request.
        """
        self._model = model
        self._memory = memory
        self._drafters = drafters
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
        parts, draft_s = self._parts()
        start = perf_counter()
        logits = self._model.forward(_batch(parts))
        forward_s = perf_counter() - start
        verdicts = self._settle(parts, logits)
        ended += self._retire()
        if self._on_round is not None:
            seen = Round(
                n_sequences=len(parts),
                n_tokens=sum(len(part.tokens) for part in parts),
                n_drafted=sum(verdict.n_offered for verdict in verdicts),
                n_accepted=sum(verdict.n_accepted for verdict in verdicts),
                n_emitted=sum(verdict.n_emitted for verdict in verdicts),
                draft_s=draft_s,
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

    def _parts(self) -> tuple[list[Part], float]:
        """Everyone's share of the pass: a decoding sequence's last token and draft, or a chunk of a prompt."""
        decoding = [sequence for sequence in self._running if sequence.n_emitted]
        drafts, draft_s = self._draft(decoding)
        parts = []
        for sequence, draft in zip(decoding, drafts, strict=True):
            tokens = np.concatenate([sequence.history[-1:], draft.tokens])
            step = self._memory.prepare(sequence.slot, len(tokens))
            parts.append(Part(sequence, step, tokens, n_rows=len(tokens), draft=draft))
        n_chunk = CHUNK_BESIDE if decoding else CHUNK
        for sequence in self._running:
            if not sequence.n_emitted and n_chunk:
                tokens = sequence.request.prompt[sequence.n_kept : sequence.n_kept + n_chunk]
                n_chunk -= len(tokens)
                is_last = sequence.n_kept + len(tokens) == len(sequence.request.prompt)
                step = self._memory.prepare(sequence.slot, len(tokens))
                parts.append(Part(sequence, step, tokens, n_rows=int(is_last)))
        return parts, draft_s

    def _draft(self, decoding: Items[Sequence]) -> tuple[list[Draft], float]:
        """A draft for every decoding sequence, cut to what may be verified; the drafters of all slots are asked together."""
        drafts = [Draft() for _ in decoding]
        asked: dict[type[Drafter], list[tuple[int, Ask]]] = {}
        for i, sequence in enumerate(decoding):
            # a pass over k drafted tokens stores k + 1 and may emit as many
            limit = min(sequence.request.speculation.n_max, self._memory.room(sequence.slot) - 1, sequence.n_left - 1)
            if self._drafters and limit > 0:
                drafter = self._drafters[sequence.slot]
                asked.setdefault(type(drafter), []).append((i, Ask(drafter, sequence.history, limit)))
        start = perf_counter()
        for kind, asks in asked.items():
            before = perf_counter()
            proposals = kind.draft_together([ask for _, ask in asks])
            seconds = (perf_counter() - before) / len(asks)
            for (i, ask), proposal in zip(asks, proposals, strict=True):
                decoding[i].recorder.draft_called(seconds)
                tokens = _valid(proposal.tokens[: ask.limit], self._model.info.n_vocab)
                if len(tokens) >= max(decoding[i].request.speculation.n_min, 1):
                    drafts[i] = Draft(tokens)
        return drafts, perf_counter() - start

    def _settle(self, parts: Items[Part], logits: Logits) -> list[Verdict]:
        """Verify, keep what was accepted, emit it and tell the drafters."""
        argmax = (
            logits.argmax().tolist() if any(part.n_rows and part.sequence.sampler.is_plain_argmax for part in parts) else []
        )
        verdicts = []
        row = 0
        for part in parts:
            sequence = part.sequence
            if not part.n_rows:
                self._keep(part, len(part.tokens))
                continue
            draft = part.draft.tokens if part.draft is not None else part.tokens[:0]
            if sequence.sampler.is_plain_argmax:
                chosen = match(draft.tolist(), argmax[row : row + part.n_rows].__getitem__)
            else:
                chosen = match(draft.tolist(), sequence.chooser(logits, row, draft))
            name = sequence.request.speculation.drafter if len(draft) else None
            n_emitted = sequence.emit(chosen, logits, row, name)
            row += part.n_rows
            if part.draft is None:
                self._keep(part, len(part.tokens))
                self._begin(sequence)
                verdicts.append(Verdict(n_offered=0, n_accepted=0, n_emitted=1, is_used=False))
                continue
            self._keep(part, n_emitted)
            verdicts.append(Verdict(len(draft), n_emitted - 1, n_emitted, is_used=len(draft) > 0))
            sequence.recorder.round(verdicts[-1])
            if sequence.has_begun:
                with sequence.recorder.timing("accept"):
                    self._drafters[sequence.slot].accept(sequence.history, verdicts[-1])
        return verdicts

    def _keep(self, part: Part, n: int) -> None:
        self._memory.commit(part.sequence.slot, part.step, np.concatenate([part.step.replay, part.tokens[:n]]).astype(np.int32))
        part.sequence.n_kept += n

    def _begin(self, sequence: Sequence) -> None:
        """The prompt is processed: from here on the drafter takes part, unless the request wants none or is over already."""
        speculation = sequence.request.speculation
        if self._drafters and speculation.n_max > 0 and sequence.finish_reason is None:
            drafter = self._drafters[sequence.slot]
            drafter.options = speculation.options
            sequence.has_begun = True
            with sequence.recorder.timing("begin"):
                drafter.begin(sequence.history, sequence.recorder.n_reused)
        sequence.recorder.first_token()

    def _retire(self) -> list[Sequence]:
        ended = [sequence for sequence in self._running if sequence.finish_reason is not None]
        for sequence in ended:
            self._running.remove(sequence)
            self._release(sequence)
        return ended

    def _release(self, sequence: Sequence) -> None:
        self._memory.end(sequence.slot)
        if sequence.has_begun:
            _guarded(self._drafters[sequence.slot].end)
        if self._on_request is not None:
            _guarded(self._on_request, summary=sequence.recorder.summary())


def _guarded(call: Callable[..., Any], **arguments: Any) -> None:
    """Call a plugin where its failure must not reach the requests."""
    try:
        call(**arguments)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's code does
        get_logger("augury.loop").warning("plugin failed", plugin=getattr(call, "__qualname__", str(call)), error=repr(error))


def _valid(tokens: np.ndarray, n_vocab: int) -> np.ndarray:
    """`tokens` up to the first that the target does not have."""
    is_wrong = (tokens < 0) | (tokens >= n_vocab)
    return tokens[: int(is_wrong.argmax())] if is_wrong.any() else tokens


def _batch(parts: Items[Part]) -> Batch:
    tokens, positions, slots, rows = [], [], [], []
    n = 0
    for part in parts:
        both = np.concatenate([part.step.replay, part.tokens])
        tokens.append(both)
        positions.append(np.arange(part.step.mark, part.step.mark + len(both)))
        slots.append(np.full(len(both), part.sequence.slot))
        n += len(both)
        rows.append(np.arange(n - part.n_rows, n))
    return Batch(*(np.concatenate(each).astype(np.int32) for each in (tokens, slots, positions, rows)))
