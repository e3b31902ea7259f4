"""A drafter under watch: what it is given is noted, and what it does with that is compared with its contracts."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from augury.interfaces import Drafter
from augury.speculation.drafter_guard import misfit
from augury.testing.contract import ContractError
from augury.testing.drafter import contract
from augury.types import Draft, read_only

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from augury.interfaces import Ask
    from augury.testing.contract import Contract
    from augury.types import Verdict

__all__ = ["Watched", "watched"]

_POISON = -7  # no model has such a token: it shows in whatever is read too late
_THROUGH = object()  # after the last step of `begin`
_TOLERANCE = 1e-3  # of the sum of float32 probabilities


class Watched(Drafter):
    """What `watched` puts around a drafter. It shows the drafter a copy of the history, which it can look into afterwards."""

    def __init__(self, options: Any, session: Any) -> None:
        super().__init__(options, session)
        self._journal: deque[str] = deque(maxlen=8)
        self._text = np.empty(0, np.int32)
        self._n_text = 0
        self._n_own_references = 0

    def begin(self, history: np.ndarray, n_reused: int) -> Iterator[None] | None:
        """See `Drafter.begin`."""
        self._text = np.full(self.session.options.n_ctx + 1, _POISON, np.int32)
        self._n_text, self._n_own_references = 0, sys.getrefcount(self._text)
        told = f"begin with {len(history)} tokens, {n_reused} of them reused"
        steps: Any = self._call(told, super().begin, self._shown(history), n_reused)
        if not isinstance(steps, Iterator | None):
            raise self._broken(contract.BEGIN, f"a {type(steps).__name__}")
        return None if steps is None else self._steps(steps, len(history))

    def _steps(self, steps: Iterator[None], n: int) -> Iterator[None]:
        for _ in range(n):
            if self._call("a step of it", next, steps, _THROUGH) is _THROUGH:
                return
            yield
        raise self._broken(contract.BEGIN, f"more than {n} steps for as many tokens")

    def n_held(self, history: np.ndarray) -> int:
        """See `Drafter.n_held`."""
        n: Any = self._call(f"n_held of {len(history)}", super().n_held, read_only(history.copy()))
        if not (isinstance(n, int | np.integer) and 0 <= n <= len(history)):
            raise self._broken(contract.HELD, f"{n!r} of {len(history)} tokens")
        return int(n)

    def feed(self, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """See `Drafter.feed`."""
        self._call(f"feed of {len(tokens)} tokens from {start} on", super().feed, start, tokens, features)

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """See `Drafter.draft`."""
        draft = super().draft  # type: ignore[safe-super]  # of the drafter, which comes after this class
        return self._checked(self._call(f"draft of at most {limit}", draft, self._shown(history), limit), limit)

    def teacher_forced(self, history: np.ndarray, n: int) -> np.ndarray | None:
        """See `Drafter.teacher_forced`."""
        tokens: Any = self._call(f"teacher_forced of {n}", super().teacher_forced, self._shown(history), n)
        if tokens is not None and not (isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.shape == (n,)):
            raise self._broken(contract.TEACHER_FORCED, f"{tokens!r} for {n} tokens")
        return tokens

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:
        """See `Drafter.accept`."""
        told = f"accept of {verdict.n_accepted} of {verdict.n_offered}{'' if verdict.is_used else ', no draft of its own'}"
        self._call(told, super().accept, self._shown(history), verdict)

    def end(self) -> None:
        """See `Drafter.end`; what a drafter reads from its history afterwards is poison."""
        self._call("end", super().end)
        self._text[:] = _POISON

    def close(self) -> None:
        """See `Drafter.close`."""
        self._call("close", super().close)

    def check_references(self) -> None:
        """See that nothing looks into the memory of a history that is over.

        Raises:
            ContractError: A view of it still lives.
        """
        gc.collect()
        if n_strange := sys.getrefcount(self._text) - self._n_own_references:
            raise self._broken(contract.REFERENCE, f"{n_strange} views of its memory after `end`; copy what is needed longer")

    def _shown(self, history: np.ndarray) -> np.ndarray:
        """The history as the drafter sees it: (h,) int32, read-only, a new view each time."""
        self._text[self._n_text : len(history)] = history[self._n_text :]
        self._n_text = len(history)
        view = self._text[: self._n_text]
        view.flags.writeable = False
        return view

    def _checked(self, draft: Any, limit: int) -> Draft:
        """The draft, if it is one."""
        n_vocab = self.session.model.n_vocab
        if not isinstance(draft, Draft):
            raise self._broken(contract.DRAFT, f"a {type(draft).__name__}")
        if len(draft) > limit:
            raise self._broken(contract.LIMIT, f"{len(draft)} tokens where the limit was {limit}")
        if len(outside := draft.tokens[(draft.tokens < 0) | (draft.tokens >= n_vocab)]):
            raise self._broken(contract.VOCABULARY, f"token {outside[0]}, where the target has 0 to {n_vocab - 1}")
        if (seen := misfit(draft, n_vocab) or _odd_probabilities(draft)) is not None:
            raise self._broken(contract.DRAFT, seen)
        return draft

    def _call(self, told: str, method: Callable[..., Any], *args: Any) -> Any:
        self._journal.append(told)
        before = self._text.copy()
        try:
            result = method(*args)
        except ContractError:
            raise
        except (Exception, SystemExit) as error:
            raise self._broken(contract.ERROR, f"{type(error).__name__}: {error}") from error
        if not np.array_equal(before, self._text):
            raise self._broken(contract.HISTORY, "another text after the call")
        return result

    def _broken(self, promise: Contract, seen: str) -> ContractError:
        """The error for a broken promise, with what went before."""
        return promise.broken(self.name, f"{seen}, after: {'; '.join(self._journal) or 'nothing'}")


def watched(drafter: type[Drafter], *, is_together: bool = True) -> type[Watched]:
    """The drafter under watch; asked for several slots together only if it can, and `is_together`."""

    class Watching(Watched, drafter):  # type: ignore[misc, valid-type]
        name = drafter.name

        @classmethod
        def draft_together(cls, asks: Sequence[Ask]) -> list[Draft]:
            shown = [attrs.evolve(ask, history=_watch(ask)._shown(ask.history)) for ask in asks]  # noqa: SLF001 - its own
            answers: Any = super().draft_together(shown)
            if not isinstance(answers, list) or len(answers) != len(asks):
                raise contract.TOGETHER.broken(drafter.name, f"{answers!r} for {len(asks)} asks")
            return [_watch(ask)._checked(draft, ask.limit) for ask, draft in zip(asks, answers, strict=True)]  # noqa: SLF001

    one_by_one: Any = Drafter.draft_together
    own: Any = drafter.draft_together
    if not is_together or own.__func__ is one_by_one.__func__:
        Watching.draft_together = classmethod(one_by_one.__func__)  # type: ignore[method-assign, assignment]
    return Watching


def _watch(ask: Ask) -> Watched:
    assert isinstance(ask.drafter, Watched)
    return ask.drafter


def _odd_probabilities(draft: Draft) -> str | None:
    """What is wrong with what tokens were drawn from, or None."""
    if (probabilities := draft.probabilities) is None:
        return None
    is_sum_1 = abs(probabilities.sum(axis=1) - 1) <= _TOLERANCE
    if not (np.isfinite(probabilities).all() and (probabilities >= 0).all() and is_sum_1.all()):
        return "probabilities that are negative or not finite, or do not sum to 1"
    if (probabilities[np.arange(len(draft)), draft.tokens] <= 0).any():
        return "a token whose probability is 0"
    return None
