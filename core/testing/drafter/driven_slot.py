"""Drives a drafter as the engine's loop does, by a script instead of a sampler, and watches that it keeps its contracts."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.interfaces import Ask
from augury.speculation.drafter_guard import misfit
from augury.testing.contract import ContractError
from augury.testing.drafter import contract
from augury.testing.drafter.script import Round, Way
from augury.types import Draft, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from augury.engine.context import EngineContext
    from augury.interfaces import Drafter
    from augury.testing.contract import Contract
    from augury.testing.drafter.script import Request

__all__ = ["DrivenSlot"]

_POISON = -7  # no model has such a token: it shows in whatever is read too late
_THROUGH = object()  # behind the last step of `begin`
_TOLERANCE = 1e-3  # of the sum of float32 probabilities


class DrivenSlot:
    """One drafter with its history."""

    def __init__(self, drafter: Drafter, context: EngineContext, slot: int, period: int) -> None:
        """Take over a drafter.

        Args:
            drafter: Just made.
            context: Of the target, which is fed what the slot's requests hold.
            slot: Of the target.
            period: The target's own tokens repeat what came so many tokens before.
        """
        self.drafter = drafter
        self.drafts: list[tuple[int, ...]] = []  # of the request
        self._context = context
        self._n_vocab = context.info.n_vocab
        self._n_ctx = context.spec.n_ctx
        self._slot = slot
        self._period = period
        self._journal: deque[str] = deque(maxlen=8)
        self._buffer = np.empty(0, np.int32)
        self._held: tuple[int, ...] = ()  # by the target, of the request before
        self._n_own_references = 0
        self._n = 0

    @property
    def history(self) -> np.ndarray:
        """As the drafter sees it: (h,) int32, read-only, a new view each time."""
        view = self._buffer[: self._n]
        view.flags.writeable = False
        return view

    def play(self, request: Request) -> Iterator[tuple[int, ...]]:
        """Run a request, round by round; yields what was drafted."""
        self.begin(request)
        yield from self.go_on(request)

    def go_on(self, request: Request) -> Iterator[tuple[int, ...]]:
        """Run the rounds of a request that has begun."""
        for each in request.rounds:
            draft = self.propose(each)
            self.settle(each, draft)
            yield tuple(draft.tokens.tolist())
        self.end()

    def begin(self, request: Request) -> None:
        """Process the prompt and emit its first token."""
        for _ in self.prefill(request):
            pass

    def prefill(self, request: Request) -> Iterator[None]:
        """The same; yields where the drafter lets others go on."""
        self._buffer = np.full(self._n_ctx + 1, _POISON, np.int32)
        self._n_own_references = sys.getrefcount(self._buffer)
        self._n = len(request.prompt)
        self._buffer[: self._n] = request.prompt
        self._feed(0, self._n)
        self._emit([self._own_token(Round(Way.SILENT, 0, 0, 0))])
        self.drafts = []
        n_both = min(len(self._held), self._n - 2)
        n_reused = next((i for i in range(n_both) if self._held[i] != request.prompt[i]), max(n_both, 0))
        told = f"begin with {self._n} tokens, {n_reused} of them reused"
        steps = self._call(told, self.drafter.begin, self.history, n_reused)
        if steps is None:
            return
        if not isinstance(steps, Iterator):
            raise self.broken(contract.BEGIN, f"a {type(steps).__name__}")
        for _ in range(self._n):
            if self._call("a step of it", next, steps, _THROUGH) is _THROUGH:
                return
            yield
        raise self.broken(contract.BEGIN, f"more than {self._n} steps for as many tokens")

    def _feed(self, start: int, end: int) -> None:
        """Let the target's slot hold the history from `start` to `end` behind what it holds before."""
        self._context.truncate(self._slot, start)
        feed = self._context.feed(self._slot, self._buffer[start:end].copy())
        self._context.forward([feed])
        self._context.commit(feed)

    def ask(self, each: Round) -> Ask | None:
        """What the drafter is asked in a round, or None where it is not."""
        limit = min(each.limit, self._n_ctx - self._n - 1)
        if each.way is Way.TEACHER_FORCED:
            self._teacher_force(min(each.limit, self._n - 1))
        is_asked = each.way in (Way.VERIFIED, Way.CUT, Way.SCORED) and limit > 0
        return Ask(self.drafter, self.history, limit) if is_asked else None

    def _teacher_force(self, n: int) -> None:
        """Ask what would have been drafted for the last n tokens."""
        tokens = self._call(f"teacher_forced of {n}", self.drafter.teacher_forced, self.history, n)
        if tokens is not None and not (isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.shape == (n,)):
            raise self.broken(contract.TEACHER_FORCED, f"{tokens!r} for {n} tokens")

    def propose(self, each: Round) -> Draft:
        """Ask for the draft of a round."""
        ask = self.ask(each)
        if ask is None:
            return Draft()
        draft = self._call(f"draft of at most {ask.limit}", self.drafter.draft, ask.history, ask.limit)
        return self.checked(draft, ask.limit)

    def checked(self, draft: Any, limit: int) -> Draft:
        """The draft, if it is one.

        Raises:
            ContractError: It is not, or is too long, or holds what the target does not have.
        """
        if not isinstance(draft, Draft):
            raise self.broken(contract.DRAFT, f"a {type(draft).__name__}")
        if len(draft) > limit:
            raise self.broken(contract.LIMIT, f"{len(draft)} tokens where the limit was {limit}")
        if len(outside := draft.tokens[(draft.tokens < 0) | (draft.tokens >= self._n_vocab)]):
            raise self.broken(contract.VOCABULARY, f"token {outside[0]}, where the target has 0 to {self._n_vocab - 1}")
        if (seen := _misfit(draft, self._n_vocab)) is not None:
            raise self.broken(contract.DRAFT, seen)
        self.drafts.append(tuple(draft.tokens.tolist()))
        return draft

    def settle(self, each: Round, draft: Draft) -> None:
        """Verify a draft as the script says, and tell the drafter."""
        is_used = each.way in (Way.VERIFIED, Way.CUT) and len(draft) > 0
        offered = _path(draft)[: (len(draft) + 1) // 2 if each.way is Way.CUT else len(draft)] if is_used else []
        accepted = offered[: each.n_right]
        tokens = [int(draft.tokens[place]) for place in accepted]
        if each.way is Way.OTHERS:
            tokens = [self._own_token(each) for _ in range(min(each.n_right, self._n_ctx - self._n - 1))]
        start = self._n - 1
        n_emitted = self._emit([*tokens, self._own_token(each)])
        self._feed(start, self._n - 1)
        verdict = Verdict(
            n_offered=len(offered),
            n_accepted=len(accepted),
            n_emitted=n_emitted,
            is_used=is_used,
            n_proposed=len(draft),
            path=tuple(accepted),
            **self._top([int(self._buffer[start]), *(int(draft.tokens[place]) for place in offered)]),
        )
        told = f"accept of {verdict.n_accepted} of {verdict.n_offered} ({each.way.value})"
        self._call(told, self.drafter.accept, self.history, verdict)

    def _top(self, after: list[int]) -> dict[str, np.ndarray]:
        """What the target is said to think of after some tokens: their successors in the vocabulary."""
        if not (n := min(self.drafter.n_top, self._n_vocab)):
            return {}
        ids = (np.array(after, np.int32)[:, None] + 1 + np.arange(n, dtype=np.int32)) % self._n_vocab
        logits = np.tile(-np.arange(n, dtype=np.float32), (len(after), 1))
        return {"top_after": np.array(after, np.int32), "top_ids": ids, "top_logits": logits}

    def end(self) -> None:
        """End the request; what a drafter reads from its history afterwards is poison."""
        self._call("end", self.drafter.end)
        self._held = tuple(self._buffer[: self._n - 1].tolist())
        self._buffer[:] = _POISON

    def close(self) -> None:
        """End the slot."""
        self._call("close", self.drafter.close)

    def check_references(self) -> None:
        """See that nothing looks into the memory of a history that is over.

        Raises:
            ContractError: A view of it still lives.
        """
        gc.collect()
        n_strange = sys.getrefcount(self._buffer) - self._n_own_references
        if n_strange:
            raise self.broken(contract.REFERENCE, f"{n_strange} views of its memory after `end`; copy what is needed longer")

    def broken(self, promise: Contract, seen: str) -> ContractError:
        """The error for a broken promise, with what went before."""
        return promise.broken(self.drafter.name, f"{seen}, after: {'; '.join(self._journal) or 'nothing'}")

    def _call(self, told: str, method: Callable[..., Any], *args: Any) -> Any:
        self._journal.append(told)
        before = self._buffer.copy()
        try:
            result = method(*args)
        except ContractError:
            raise
        except (Exception, SystemExit) as error:
            raise self.broken(contract.ERROR, f"{type(error).__name__}: {error}") from error
        if not np.array_equal(before, self._buffer):
            raise self.broken(contract.HISTORY, "another text after the call")
        return result

    def _emit(self, tokens: Sequence[int]) -> int:
        self._buffer[self._n : self._n + len(tokens)] = tokens
        self._n += len(tokens)
        return len(tokens)

    def _own_token(self, each: Round) -> int:
        if each.surprise or self._n < self._period:
            return (int(self._buffer[self._n - 1]) + 5 * each.surprise + 1) % self._n_vocab
        return int(self._buffer[self._n - self._period])


def _path(draft: Draft) -> list[int]:
    """Where the tokens of a path through a draft stand: of a chain all, of a tree the first branch down to a leaf."""
    if draft.parents is None:
        return list(range(len(draft)))
    path = [0] if len(draft) else []
    while path and len(children := np.flatnonzero(draft.parents == path[-1])):
        path.append(int(children[0]))
    return path


def _misfit(draft: Draft, n_vocab: int) -> str | None:
    """What does not fit in a draft, or None."""
    if (seen := misfit(draft, n_vocab)) is not None:
        return seen
    if (probabilities := draft.probabilities) is not None:
        is_sum_1 = abs(probabilities.sum(axis=1) - 1) <= _TOLERANCE
        if not (np.isfinite(probabilities).all() and (probabilities >= 0).all() and is_sum_1.all()):
            return "probabilities that are negative or not finite, or do not sum to 1"
        if (probabilities[np.arange(len(draft)), draft.tokens] <= 0).any():
            return "a token whose probability is 0"
    return None
