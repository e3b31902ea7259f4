"""A drafter under watch: its inputs are noted, and its results are compared with its contracts."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from augury.interfaces import Ask, Drafter
from augury.speculation.drafter_guard import misfit
from augury.testing.contract import Contract, ContractError
from augury.testing.drafter import contract
from augury.types import Draft, Verdict, read_only

_POISON = -7  # no model has such a token: it shows in arrays that are read too late
_THROUGH = object()  # after the last step of `begin`
_TOLERANCE = 1e-3  # of the sum of float32 probabilities


class Watched(Drafter):
    """The wrapper of `watched` around a drafter. It shows the drafter a copy of the history, which it can inspect afterwards.

    Both share one instance, so names here are such as no drafter has.
    """

    def __init__(self, options: Any, session: Any) -> None:
        super().__init__(options, session)
        self.__journal: deque[str] = deque(maxlen=8)
        self.__text = np.empty(0, np.int32)
        self.__n_text = 0
        self.__n_own_references = 0
        self.is_watched_drafting = False  # whether `draft` is being called
        self.is_watched_ahead = False  # whether it is asked to draft ahead: the argument of its `draft` is then no history

    def begin(self, history: np.ndarray, n_reused: int) -> Iterator[None] | None:
        self.__text = np.full(self.session.options.n_ctx + 1, _POISON, np.int32)
        self.__n_text, self.__n_own_references = 0, sys.getrefcount(self.__text)
        event = f"begin with {len(history)} tokens, {n_reused} of them reused"
        steps: Any = self.__call(event, super().begin, self.watched_history(history), n_reused)
        if not isinstance(steps, Iterator | None):
            raise self.__broken(contract.BEGIN, f"a {type(steps).__name__}")
        return None if steps is None else self.__steps(steps)

    def __steps(self, steps: Iterator[None]) -> Iterator[None]:
        while self.__call("a step of it", next, steps, _THROUGH) is not _THROUGH:
            yield

    def n_held(self, history: np.ndarray) -> int:
        n: Any = self.__call(f"n_held of {len(history)}", super().n_held, read_only(history.copy()))
        if not (isinstance(n, int | np.integer) and 0 <= n <= len(history)):
            raise self.__broken(contract.HELD, f"{n!r} of {len(history)} tokens")
        return int(n)

    def feed(self, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        self.__call(f"feed of {len(tokens)} tokens from {start} on", super().feed, start, tokens, features)

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        draft = super().draft  # type: ignore[safe-super]  # of the drafter, which comes after this class
        if self.is_watched_ahead:
            return draft(history, limit)
        self.is_watched_drafting = True
        try:
            found = self.__call(f"draft of at most {limit}", draft, self.watched_history(history), limit)
        finally:
            self.is_watched_drafting = False
        return self.watched_draft(found, limit)

    def teacher_forced(self, history: np.ndarray, n: int) -> np.ndarray | None:
        tokens: Any = self.__call(f"teacher_forced of {n}", super().teacher_forced, self.watched_history(history), n)
        if tokens is not None and not (isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.shape == (n,)):
            raise self.__broken(contract.TEACHER_FORCED, f"{tokens!r} for {n} tokens")
        return tokens

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:
        event = f"accept of {verdict.n_accepted} of {verdict.n_offered}{'' if verdict.is_used else ', no draft of its own'}"
        self.__call(event, super().accept, self.watched_history(history), verdict)

    def end(self) -> None:
        """See `Drafter.end`; a history that a drafter reads afterwards is poison."""
        self.__call("end", super().end)
        self.__text[:] = _POISON

    def close(self) -> None:
        self.__call("close", super().close)

    def check_references(self) -> None:
        """See that nothing looks into the memory of a history that is over. Raises ContractError: a view of it still lives."""
        if sys.getrefcount(self.__text) != self.__n_own_references:
            gc.collect()  # which looks at all that there is: only where a circle may hold the view
        if n_strange := sys.getrefcount(self.__text) - self.__n_own_references:
            raise self.__broken(contract.REFERENCE, f"{n_strange} views of its memory after `end`; copy what is needed longer")

    def watched_history(self, history: np.ndarray) -> np.ndarray:
        """The history as the drafter sees it: (h,) int32, read-only, a new view each time."""
        self.__text[self.__n_text : len(history)] = history[self.__n_text :]
        self.__n_text = len(history)
        view = self.__text[: self.__n_text]
        view.flags.writeable = False
        return view

    def watched_draft(self, draft: Any, limit: int) -> Draft:
        """The draft, if it is one."""
        n_vocab = self.session.model.n_vocab
        if not isinstance(draft, Draft):
            raise self.__broken(contract.DRAFT, f"a {type(draft).__name__}")
        if len(draft) > limit:
            raise self.__broken(contract.LIMIT, f"{len(draft)} tokens where the limit was {limit}")
        if len(outside := draft.tokens[(draft.tokens < 0) | (draft.tokens >= n_vocab)]):
            raise self.__broken(contract.VOCABULARY, f"token {outside[0]}, where the target has 0 to {n_vocab - 1}")
        if (seen := misfit(draft, n_vocab, len(self.traits.evidence_chances)) or _odd_probabilities(draft)) is not None:
            raise self.__broken(contract.DRAFT, seen)
        return draft

    def __call(self, event: str, method: Callable[..., Any], *args: Any) -> Any:
        self.__journal.append(event)
        before = self.__text.copy()
        with contract.ERROR.kept(self.name, self.__before()):
            result = method(*args)
        if not np.array_equal(before, self.__text):
            raise self.__broken(contract.HISTORY, "another text after the call")
        return result

    def __broken(self, promise: Contract, seen: str) -> ContractError:
        """The error for a broken promise, with the calls before it."""
        return promise.broken(self.name, f"{seen}{self.__before()}")

    def __before(self) -> str:
        return f", after: {'; '.join(self.__journal) or 'nothing'}"


def watched(drafter: type[Drafter], *, is_together: bool = True) -> type[Watched]:
    """The drafter under watch; asked for several slots together only if it can, and `is_together`."""

    class Watching(Watched, drafter):  # type: ignore[misc, valid-type]
        name = drafter.name

        @classmethod
        def draft_together(cls, asks: Sequence[Ask]) -> list[Draft]:
            if not (is_together or _watch(asks[0]).is_watched_drafting):  # whose own `draft` may call this
                return [ask.drafter.draft(ask.history, ask.limit) for ask in asks]
            shown = [ask._replace(history=_watch(ask).watched_history(ask.history)) for ask in asks]
            for ask in asks:
                _watch(ask).is_watched_ahead = len(ask.guess) > 0
            answers: Any = super().draft_together(shown)
            for ask in asks:
                _watch(ask).is_watched_ahead = False
            if not isinstance(answers, list) or len(answers) != len(asks):
                raise contract.TOGETHER.broken(drafter.name, f"{answers!r} for {len(asks)} asks")
            return [_watch(ask).watched_draft(draft, ask.limit) for ask, draft in zip(asks, answers, strict=True)]

    one_by_one: Any = Drafter.draft_together
    own: Any = drafter.draft_together
    if own.__func__ is one_by_one.__func__:
        Watching.draft_together = classmethod(one_by_one.__func__)  # type: ignore[method-assign, assignment]
    return Watching


def _watch(ask: Ask) -> Watched:
    assert isinstance(ask.drafter, Watched)
    return ask.drafter


def _odd_probabilities(draft: Draft) -> str | None:
    if (probabilities := draft.probabilities) is None:
        return None
    is_drawn = probabilities.any(axis=1)
    is_sum_1 = abs(probabilities.sum(axis=1) - 1) <= _TOLERANCE
    if not (np.isfinite(probabilities).all() and (probabilities >= 0).all() and (is_sum_1 | ~is_drawn).all()):
        return "probabilities that are negative or not finite, or do not sum to 1"
    if (is_drawn & (probabilities[np.arange(len(draft)), draft.tokens] <= 0)).any():
        return "a token whose probability is 0"
    return None
