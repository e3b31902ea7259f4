"""Calls drafters, so that their failures affect nothing else.

Speculation never changes the output. So a drafter that fails is left out of the rest of its request, which goes on without
it, to the same tokens. It fails if it raises, breaks its contract by a result, or takes longer than the request's
`timeout_s` twice: the first time it may have been compiling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import attrs
import numpy as np
from attrs import Factory, define

from augury import guard
from augury.errors import LostDeviceError, PluginError
from augury.interfaces import Ask, CompiledDraft, Drafter, Pace, Session
from augury.interruption import interrupted
from augury.speculation.config import Speculation
from augury.speculation.constants import kernels
from augury.types import NO_DRAFT, Draft, DrafterStats, Token, Verdict, read_only

_BY_POSITION = ("offered_by_position", "accepted_by_position")


class DraftingCounter:
    """Counts the work of one request's drafters.

    Attributes:
        by_drafter: The figures of each, by their names in `DrafterStats`; whoever calls a drafter counts there.
    """

    def __init__(self, drafters: Iterable[str]) -> None:
        self.by_drafter: dict[str, dict[str, Any]] = {
            drafter: attrs.asdict(DrafterStats()) | {name: [] for name in _BY_POSITION} for drafter in drafters
        }

    def begun(self, drafter: str, seconds: float) -> None:
        """A drafter has worked on the text for so long."""
        self.by_drafter[drafter]["begin_s"] += seconds

    def drafted_ahead(self, drafter: str, n_tokens: int, late_s: float, hidden_s: float) -> None:
        """A drafter drafted so many tokens while a pass was computed, which hid it except for `late_s`."""
        counts = self.by_drafter[drafter]
        counts["ahead"] += n_tokens
        counts["draft_s"] += late_s
        counts["hidden_s"] += hidden_s

    def verified(self, drafter: str, n_offered: int, n_accepted: int, depth: int, *, is_ahead: bool = False) -> None:
        """So many tokens of a drafter's proposal, `depth` deep and perhaps made ahead, were verified and accepted."""
        counts = self.by_drafter[drafter]
        counts["used"] += 1
        counts["drafted"] += n_offered
        counts["accepted"] += n_accepted
        if is_ahead:
            counts["ahead_used"] += n_offered
        for name, n in zip(_BY_POSITION, (depth, n_accepted), strict=True):
            places = counts[name]
            places += [0] * (depth - len(places))
            for position in range(n):
                places[position] += 1

    def drafters(self) -> dict[str, DrafterStats]:
        """The figures so far, by drafter."""
        return {
            drafter: DrafterStats(**counts | {name: tuple(counts[name]) for name in _BY_POSITION})
            for drafter, counts in self.by_drafter.items()
        }


class DraftedSequence(ABC):
    """A running request that drafters draft for; no more of the engine's sequences is known here."""

    id: str
    slot: int
    speculation: Speculation  # which drafters may draft how far
    n_reused: int  # tokens of the text that the slot held when the text was processed
    history: np.ndarray  # (h,) int32, read-only: prompt and output so far
    pieces: Sequence[Token]  # that were emitted
    counter: DraftingCounter
    is_drafted: bool = False
    is_constrained: bool = False  # a constraint may forbid drafted tokens
    waits_for_drafters: bool = False  # some of them are still at its prompt

    @property
    @abstractmethod
    def n_left(self) -> int:
        """Tokens that may still be emitted before the end, or before the context is full."""

    @abstractmethod
    def possible(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int] | None:
        """The tokens of a draft that its constraint does not forbid, by their places, rising; None for all."""

    @abstractmethod
    def chance(self, place: int) -> float:
        """The number in [0, 1) by which `Synthetic` accepts a token; places count from the text's end, below 0 backwards."""

    @abstractmethod
    def describe(self, session: Session) -> None:
        """Set the request's part of a drafter's session."""


_SPARE_STEPS = 1000  # of `begin`, plus one for each token of the text: one that takes more is taken to have no end
_TOGETHER = "draft_together"
_SLOT_BY_SLOT = Drafter.draft_together.__func__  # type: ignore[attr-defined] # a class method has one
_INTS, _FLOATS = np.dtype(np.int32), np.dtype(np.float32)
_ROUNDING = 1e-5  # of float32 probabilities: so much above 1 they may be
_THROUGH = object()  # with the steps of `begin`
_NO_TOKENS = NO_DRAFT.tokens


def warn(drafter: str, method: str, error: BaseException, *ids: str) -> None:
    """Log that a drafter failed, in the requests of these ids."""
    then = "asked slot by slot" if method == _TOGETHER else "left out of the rest of the request"
    facts = {"id": ",".join(ids), "plugin": drafter, "method": method}
    guard.warn("augury.speculation.drafting", f"a drafter failed and is {then}", error, **facts)


@define(eq=False)
class DrafterGuard:
    """A drafter of one request. Its calls always return, and their results are copies that the drafter cannot change.

    A call that fails gives an empty result, such as an empty draft; `is_left_out` says the rest.
    """

    drafter: Drafter
    name: str
    sequence: DraftedSequence
    n_vocab: int  # V, of the target
    n_buckets: int  # `evidence_chances` that the drafter was loaded with
    on_failure: Callable[..., object]  # told of the drafter's name, the method that failed, the error, and the request's id
    seconds: float = 0.0  # that the last call took; of one for several slots an equal share
    own_s: float = 0.0  # of these, without interruptions
    is_left_out: bool = False  # it failed: from then on it is told that the request is over, and nothing else
    # by `draft`: it cannot draft for several slots at once, or was slow or failed when it did, and nobody knows over which
    is_asked_alone: bool = Factory(
        lambda self: getattr(type(self.drafter).draft_together, "__func__", None) is _SLOT_BY_SLOT, takes_self=True
    )
    has_functions: bool = True  # for compiled rounds, as far as is known
    history: np.ndarray = _NO_TOKENS
    """The request's text, (h,) int32, as far as the drafter was told of it; a copy of its own."""
    counts: dict[str, Any] = Factory(lambda self: self.sequence.counter.by_drafter[self.name], takes_self=True)
    """The request's figures of it, see `DraftingCounter`."""
    _has_begun: bool = False
    _is_told: bool = False  # of the request, by `feed` or `begin`
    _slow_calls: guard.SlowCalls = Factory(guard.SlowCalls)
    _text: np.ndarray = Factory(
        lambda self: np.empty(len(self.sequence.history) + self.sequence.n_left, np.int32), takes_self=True
    )
    _shown: np.ndarray = Factory(lambda self: read_only(self._text), takes_self=True)

    def _show_history(self) -> np.ndarray:
        """Copy new tokens of the text to `history`, and return it, (h,) int32: a drafter's changes affect nothing else."""
        history, n_shown = self.sequence.history, len(self.history)
        self._text[n_shown : len(history)] = history[n_shown:]
        self.history = self._shown[: len(history)]
        return self.history

    def n_held(self, n_reused: int) -> int:
        """How many of the first `n_reused` tokens of the text it needs to hear nothing of."""
        n: int = self._call("n_held", self._n_held, otherwise=n_reused)
        return n

    def _n_held(self) -> int:
        n: Any = self.drafter.n_held(self._show_history())
        if not isinstance(n, int | np.integer) or n < 0:
            raise PluginError(f"returned {n!r}, expected a number of tokens")
        return int(n)

    def begin(self, options: Any) -> Generator[None, None, float]:
        """Let it begin; yields where others shall go on in between, and returns the seconds that it took, uninterrupted."""
        self._has_begun = True
        steps: Iterator[object] = self._call("begin", self._begin, options) or iter(())
        seconds = self._begun()
        n = len(self.sequence.history)
        for _ in range(_SPARE_STEPS + n):
            if self.is_left_out:
                return seconds
            is_through = self._call("begin", next, steps, _THROUGH) is _THROUGH
            seconds += self._begun()
            if is_through:
                return seconds
            yield
        text = f"takes more than {_SPARE_STEPS + n} steps for a text of {n} tokens; where it waits for something, let it block"
        self.fail("begin", PluginError(text))
        return seconds

    def _begin(self, options: Any) -> Iterator[object] | None:
        self.drafter.options = options
        self._tell()
        steps: Any = self.drafter.begin(self._show_history(), self.sequence.n_reused)
        if not isinstance(steps, Iterator | None):
            raise PluginError(f"returned a {type(steps).__name__}, expected None or an iterator")
        return steps

    def _tell(self) -> None:
        self._is_told = True
        if self.drafter.session is not None:
            self.sequence.describe(self.drafter.session)

    def _begun(self) -> float:
        self.sequence.counter.begun(self.name, self.seconds)
        return self.own_s

    def draft(self, ask: Ask) -> Draft:
        """Its draft for one slot, at most `ask.limit` tokens; none after a guess, which only `draft_together` takes."""
        if len(ask.guess):
            return NO_DRAFT
        limit = ask.limit if ask.pace is None else min(ask.limit, ask.pace.depth)
        draft: Draft = self._call(
            "draft", lambda: self.checked(self.drafter.draft(ask.history, limit), limit), otherwise=NO_DRAFT
        )
        return draft

    def compiled_draft(
        self, limit: int, pace: Pace | None, n_more: int, features: Mapping[str, np.ndarray]
    ) -> CompiledDraft | None:
        """Its functions for some rounds; None where it has none."""
        ask = Ask(self.drafter, self._show_history(), limit, pace=pace)
        found: CompiledDraft | None = self._call("compiled_draft", self.drafter.compiled_draft, ask, n_more, features)
        self.has_functions = found is not None
        return found

    def end_compiled(self, functions: CompiledDraft) -> None:
        """Tell it that these rounds are over."""
        self._call("compiled_draft", functions.end, self._show_history())

    @property
    def drafts_ahead(self) -> bool:
        """Whether it can be asked for the tokens after a guess."""
        may_ask = not (self.is_left_out or self.is_asked_alone)
        return may_ask and bool(self._call("drafts_ahead", lambda: self.drafter.traits.drafts_ahead))

    def teacher_forced(self, n: int) -> np.ndarray | None:
        """The tokens that it would have drafted for the last n, (n,) integers; None if it never knows."""
        tokens: np.ndarray | None = self._call("teacher_forced", self._teacher_forced, n)
        self.counts["draft_s"] += self.seconds
        return tokens

    def _teacher_forced(self, n: int) -> np.ndarray | None:
        found: Any = self.drafter.teacher_forced(self.history, n)
        if not isinstance(found, np.ndarray | None):
            raise PluginError(f"returned a {type(found).__name__}, expected an array or None")
        tokens = None if found is None else np.array(found)
        if tokens is not None and (tokens.dtype.kind not in "iu" or tokens.shape != (n,)):
            raise PluginError(f"returned {tokens.dtype} of shape {tokens.shape}, expected int32 of shape ({n},)")
        return tokens

    def feed(self, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """Feed it the features of tokens that the text keeps; with a prompt it begins."""
        if not self._is_told:
            self._call("feed", self._tell)
        self._call("feed", self.drafter.feed, start, tokens, features)
        if self._has_begun:
            self.counts["accept_s"] += self.seconds
        else:  # its work on a prompt
            self._begun()

    def accept(self, verdict: Verdict) -> None:
        """Tell it a round's verdict."""
        self._call("accept", self.drafter.accept, self._show_history(), verdict)
        self.counts["accept_s"] += self.seconds

    def end(self) -> None:
        """Tell it that the request is over, if it was told of its beginning."""
        if self._is_told:
            self._call("end", self.drafter.end)

    def checked(self, draft: Any, limit: int) -> Draft:
        """The first `limit` tokens of a draft, as a copy that the drafter cannot change.

        Raises:
            PluginError: It is none.
        """
        if not isinstance(draft, Draft):
            raise PluginError(f"returned a {type(draft).__name__}, expected a Draft")
        if not (n := len(draft.tokens)):
            return NO_DRAFT
        draft = draft if n <= limit else draft.cut(limit)
        if draft.probabilities is not None or draft.confidence is not None:  # views of arrays that the drafter may write over
            of_drafter = draft.probabilities, draft.confidence
            probabilities, confidence = (None if each is None else each.copy() for each in of_drafter)
            draft = Draft(draft.tokens, draft.parents, probabilities, confidence, draft.evidence)
        if draft.probabilities is None and draft.confidence is None:
            evidence = _NO_TOKENS if draft.evidence is None else draft.evidence
            try:
                if kernels.fits(draft.tokens, draft.above, evidence, self.n_vocab, self.n_buckets):
                    return draft
            except TypeError:  # one of them is something else
                pass
        if (seen := misfit(draft, self.n_vocab, self.n_buckets)) is not None:
            raise PluginError(f"returned a Draft with {seen}")
        return draft

    def _call(self, method: str, call: Callable[..., Any], *arguments: Any, otherwise: Any = None) -> Any:
        """The result of a call; `otherwise` if it fails, or the drafter is left out because it took too long."""
        result, error, start, before = otherwise, None, perf_counter(), interrupted.seconds
        try:
            result = call(*arguments)
        except LostDeviceError:  # it drafts again when the device is back
            pass
        except BaseException as found:  # noqa: BLE001 - a stranger's code may raise anything
            error = found
        self.seconds = perf_counter() - start
        lost_s = interrupted.seconds - before
        self.own_s = self.seconds - lost_s if lost_s < self.seconds else self.seconds
        if self.seconds > self.sequence.speculation.timeout_s:
            self.took(method, self.seconds, self.own_s)
        if error is not None:
            self.fail(method, error)
        return otherwise if self.is_left_out else result

    def took(self, method: str, seconds: float, own_s: float, n_slots: int = 1) -> None:
        """A call for so many slots took so long, with interruptions and without."""
        self.seconds, self.own_s = seconds / n_slots, own_s / n_slots
        if seconds > (limit := self.sequence.speculation.timeout_s):
            self.is_asked_alone = True
            if (error := self._slow_calls.add(seconds, limit)) is not None:
                self.fail(method, error)

    def fail(self, method: str, error: BaseException) -> None:
        """A method failed: the drafter is left out."""
        if not self.is_left_out:
            self.is_left_out = True
            self.counts["failed"] = f"{method}: {guard.describe(error)}"
            self.on_failure(self.name, method, error, self.sequence.id)


def draft_for_all(asks: Sequence[tuple[DrafterGuard, Ask]]) -> dict[DrafterGuard, Draft]:
    """The drafts of drafters for several slots, a drafter's together where it can."""
    found, by_name = dict[DrafterGuard, Draft](), dict[str, list[tuple[DrafterGuard, Ask]]]()
    for each, ask in asks:
        if each.is_asked_alone:
            found[each] = each.draft(ask)
        else:
            by_name.setdefault(each.name, []).append((each, ask))
    for together in by_name.values():
        found |= _drafted_together(together)
    return found


def _drafted_together(asks: Sequence[tuple[DrafterGuard, Ask]]) -> dict[DrafterGuard, Draft]:
    """A drafter's drafts for several slots together; where that fails, slot by slot."""
    start, before, failure, drafts = perf_counter(), interrupted.seconds, None, dict[DrafterGuard, Draft]()
    try:
        answers = list(type(asks[0][0].drafter).draft_together([ask for _, ask in asks]))
        if len(answers) != len(asks):
            raise PluginError(f"returned {len(answers)} drafts, expected {len(asks)}")  # noqa: TRY301 - its failure, too
        for (each, ask), answer in zip(asks, answers, strict=True):
            drafts[each] = each.checked(answer, ask.limit)
    except LostDeviceError:
        drafts = {each: NO_DRAFT for each, _ in asks}
    except BaseException as error:  # noqa: BLE001 - a stranger's code may raise anything
        failure = error
    seconds = perf_counter() - start
    lost_s = interrupted.seconds - before
    own_s = seconds - lost_s if lost_s < seconds else seconds
    for each, _ in asks:
        each.took(_TOGETHER, seconds, own_s, len(asks))
        each.is_asked_alone |= failure is not None
    if failure is not None:
        drafts = {each: each.draft(ask) for each, ask in asks}
        if not any(each.is_left_out for each in drafts):
            first = asks[0][0]
            first.on_failure(first.name, _TOGETHER, failure, *(each.sequence.id for each in drafts))
    return drafts


def misfit(draft: Draft, n_vocab: int, n_buckets: int) -> str | None:
    """The fault of a draft for a target of V tokens by a drafter that began with so many `evidence_chances`, or None."""
    parents, confidence, evidence = draft.parents, draft.confidence, draft.evidence
    n = len(draft.tokens)
    for name, array, dtype, expected in (
        ("tokens", draft.tokens, _INTS, (n,)),
        ("parents", parents, _INTS, (n,)),
        ("probabilities", draft.probabilities, _FLOATS, (n, n_vocab)),
        ("confidence", confidence, _FLOATS, (n,)),
        ("evidence", evidence, _INTS, (n,)),
    ):
        if array is not None and (array.shape != expected or array.dtype != dtype):
            return f"{name} of shape {array.shape}, expected {expected} of {dtype}"
    tokens = draft.tokens.tolist()
    if tokens and not 0 <= min(tokens) <= max(tokens) < n_vocab:
        token = next(token for token in tokens if not 0 <= token < n_vocab)
        return f"token {token}, where the target has 0 to {n_vocab - 1}"
    if parents is not None and [i for i, parent in enumerate(parents.tolist()) if not -1 <= parent < i]:
        return f"parents {parents.tolist()}, where each is -1 or stands before its token"
    if confidence is not None and not ((confidence >= 0) & (confidence <= 1 + _ROUNDING)).all():
        return f"confidence {confidence.tolist()}, where each is a probability from 0 to 1"
    if evidence is not None and n and not (min(buckets := evidence.tolist()) >= 0 and max(buckets) < n_buckets):
        return f"evidence {evidence.tolist()}, where the drafter began with {n_buckets} `evidence_chances`"
    return None
