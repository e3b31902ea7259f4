"""Runs a draft model for all slots: keeps its cache in step with their texts, and writes ahead."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import Factory, define, evolve, frozen

from augury.batch import SlotInput
from augury.drafters.model.cached_text import CachedText
from augury.drafters.model.draft_vocabulary import DraftVocabulary
from augury.errors import LostDeviceError
from augury.log import DRAFT_LOGGER, get_logger
from augury.passes import Context, Pass
from augury.types import Draft

if TYPE_CHECKING:
    from augury.drafters.model.draft_sampler import DraftSampler

Shares = Sequence[tuple[CachedText, np.ndarray, Draft | None]]
"""Of texts, the tokens of a pass that are cached from then on, and drafted ones after them that are not."""
N_JUDGED = 10
"""The number of heads' best tokens, among which the probability of one counts, as in llama.cpp."""
_CHUNK = 256  # prompt tokens in a pass; the other slots wait for it
_LEAST_SHARE = 1e-9  # of all tokens but the best
_FIRST_CHAIN = 2  # passes that are begun before it is known whether a draft ends early


@frozen(eq=False)
class DraftRequest:
    """A slot's request for a draft."""

    slot: int
    history: np.ndarray  # (h,) int32
    limit: int
    p_min: float
    n_candidates: int = 1  # for each place
    sampler: DraftSampler | None = None  # None: the best token is taken
    guess: Sequence[int] = ()  # tokens that may follow the history; the draft follows them
    min_path_probability: float = 0.0  # see `Pace`


@define(eq=False)
class WrittenDraft:
    """The tokens that a draft model wrote.

    Attributes:
        tokens: In order.
        probabilities: The distribution of each draw, (V,) float32; empty unless a sampler was given.
        confidence: How probable the best token in the place of each is, drawn or not; empty unless that was computed.
        reach: How probable all of them are.
        candidates: For each place the best tokens and their probabilities, best first; empty unless more than one is wanted.
        lattice_reach: Paths as probable as this go on after an alternative; None: nothing follows one.
        lattice: The candidates for a place after a token, by both; None: those of the place, after any token.
    """

    tokens: list[int] = Factory(list)
    probabilities: list[np.ndarray] = Factory(list)
    confidence: list[float] = Factory(list)
    candidates: list[list[tuple[int, float]]] = Factory(list)
    reach: float = 1.0
    lattice_reach: float | None = None
    lattice: dict[tuple[int, int], list[tuple[int, float]]] | None = None

    def add(
        self,
        request: DraftRequest,
        logits: Pass,
        row: int,
        best: int,
        *,
        n_vocab: int,
        n_judged: int | None = None,
        confidence: float | None = None,
    ) -> bool:
        """Write one token more, unless the model is too unsure of its best one, has none, or the target none like it.

        Args:
            request: The request for a draft.
            logits: The logits of a pass.
            row: The row of the place.
            best: Its best token; below 0 where it has none.
            n_vocab: A token from this on is never proposed.
            n_judged: A token's probability is that among so many of the best; None: among all.
            confidence: The probability of the best one, if that is known; the others share the rest.

        Returns:
            Whether one more is wanted after it.
        """
        if best < 0:
            return False
        ids, likely = np.array([best], np.int32), None
        if request.n_candidates > 1 or n_judged is not None:
            (ids,), (likely,) = logits.top_k(np.array([row], np.int32), n_judged or request.n_candidates)
        is_judged = request.p_min > 0 or request.min_path_probability > 0 or request.n_candidates > 1
        probabilities: list[float] = []
        if is_judged or n_judged is not None or DRAFT_LOGGER.isEnabledFor(logging.DEBUG):
            probabilities = _probabilities(logits, row, ids, None if n_judged is None else likely).tolist()
            if confidence is not None and probabilities:
                rest = (1.0 - confidence) / max(1.0 - probabilities[0], _LEAST_SHARE)
                probabilities = [confidence, *(p * rest for p in probabilities[1:])]
            if probabilities and probabilities[0] < request.p_min:
                return False
        if request.sampler is not None:
            text = np.concatenate([request.history, np.array(self.tokens, np.int32)])
            if (drawn := request.sampler.draw(logits, row, text)) is None:
                return False
            self.tokens.append(drawn[0])
            self.probabilities.append(drawn[1])
        elif best >= n_vocab:
            return False
        else:
            self.tokens.append(best)
        self.confidence += probabilities[:1]
        if request.n_candidates > 1:
            likeliest = zip(ids.tolist()[: request.n_candidates], probabilities, strict=False)
            self.candidates.append([each for each in likeliest if each[0] < n_vocab])
        self.reach *= probabilities[0] if probabilities else 1.0
        return len(self.tokens) < request.limit and self.reach >= request.min_path_probability


def add_best(
    written: Sequence[WrittenDraft],
    requests: Sequence[DraftRequest],
    writing: Sequence[int],
    logits: Pass,
    *,
    n_vocab: int,
    n_judged: int | None = None,
) -> list[int]:
    """Write the best token of each row of passes, in turns to the drafts of the numbers `writing`; see `WrittenDraft.add`.

    Returns:
        The numbers of the drafts that want one more.
    """
    going_on = dict.fromkeys(writing)
    for row, best in enumerate(logits.argmax().tolist()):
        i = writing[row % len(writing)]
        if i in going_on and not written[i].add(requests[i], logits, row, best, n_vocab=n_vocab, n_judged=n_judged):
            del going_on[i]
    return list(going_on)


def n_chained(requests: Sequence[DraftRequest], n_written: int, n_most: int, *, is_elsewhere: bool = False) -> int:
    """How many passes more are begun together with the next one, whose tokens a model chooses itself; `n_most` in all.

    As many as the longest draft wants. Where drafts may end before, at `p_min` or `min_path_probability`, as many in all as
    were looked at so far, `n_written`: of the passes after an end there are fewer than tokens before it, or one. Where another
    machine computes them one trip is worth more.
    """
    if any(request.sampler is not None for request in requests):
        return 0
    if not is_elsewhere and any(request.p_min > 0 or request.min_path_probability > 0 for request in requests):
        n_most = min(n_most, max(n_written, _FIRST_CHAIN))
    return max(n_most - 1, 0)


class DraftRunner:
    """A draft model that the drafters of all slots share.

    A prompt is processed in chunks; tokens that were emitted while nothing was drafted are caught up in one pass. Cached tokens
    are not computed again, from round to round and from request to request. One exception: a token whose logits are wanted is
    fed, cached or not.

    The model's tokens are cached as if they were certain, and cut off where the text went on differently. A recurrent state
    cannot be cut: there it stays a draft, which every pass feeds as a whole.

    A model on a device of its own chooses the tokens of a draft by itself, pass after pass, and is waited for once: tokens that
    are not drawn, and a state that can be cut back to the wanted ones.
    """

    def __init__(self, context: Context, *, n_vocab: int, n_first: int | None = None) -> None:
        """Take over a loaded model with as many slots as the target has.

        Args:
            context: Of the model.
            n_vocab: A token from this on is never proposed.
            n_first: See `DraftVocabulary`.
        """
        self.n_model_vocab = context.info.n_vocab
        self.is_asynchronous = context.is_asynchronous
        self._context = context
        self._n_ctx = context.spec.n_ctx
        self._can_cut = not context.spec.n_bytes_per_sequence
        self._draft_max = context.spec.draft_max
        self._n_vocab = n_vocab
        self._vocabulary = DraftVocabulary(self.n_model_vocab, n_first)
        self._texts: dict[int, CachedText] = {}  # by slot of the target
        self._features: tuple[str, ...] = ()  # of passes with logits
        self._n_judged: int | None = None  # see `WrittenDraft.add`
        self._warned: set[str] = set()

    def begin(self, slot: int, history: np.ndarray) -> Iterator[None]:
        """Process a new request's prompt: `history` (h,) int32 except for its last token, which the first draft feeds.

        Returns:
            The passes over it, which others may go between. A prompt that is left within them is caught up when it is drafted.
        """
        self.end(slot)
        self._vocabulary.begin(slot, history)
        cached = self._cached(slot, history)
        return iter(()) if cached.is_parked else self._prefill(cached, history[:-1])

    def _prefill(self, cached: CachedText, prompt: np.ndarray) -> Iterator[None]:
        start = cached.n
        for first in range(start, len(prompt), _CHUNK):
            if first > start:
                yield
            self._forward([(cached, prompt[first : first + _CHUNK], None)], n_rows=0)

    def end(self, slot: int, *, is_private: bool = False) -> None:
        """A slot's request is over; its cache may serve another, unless it is private."""
        self._drop(slot, forgets=is_private)

    def _drop(self, slot: int, *, forgets: bool = False) -> None:
        """Let go of a slot's text."""
        cached = self._texts.pop(slot, None)
        if cached is not None and cached.slot >= 0:
            if forgets:
                self._context.truncate(cached.slot, 0)
            self._context.end(cached.slot)

    def draft(self, requests: Sequence[DraftRequest]) -> list[WrittenDraft]:
        """Write ahead for several slots at once, a token of each with every pass, or with each of a chain of passes.

        Returns:
            The draft for each request, in order; nothing if the draft model cannot follow the text.
        """
        for request in requests:
            self._vocabulary.follow(request.slot, request.history)
        texts = [self._cached(request.slot, request.history) for request in requests]
        written = [WrittenDraft() for _ in requests]
        requests, writing = [*requests], list[int]()
        feeds: list[tuple[CachedText, np.ndarray, Draft | None]] = []
        for i, (request, cached) in enumerate(zip(requests, texts, strict=True)):
            text, guess, limit = cached.text(request.history), request.guess, 0
            if request.limit > 0 and self._can_follow(cached, text):
                # the last token of a draft is never fed, so it may be beyond the context
                limit = min(request.limit, self._n_ctx - len(text) - len(guess) + 1)
                if self._draft_max is not None:
                    limit = min(limit, self._draft_max - len(guess) + 1)
            if limit > 0:
                requests[i] = evolve(request, history=text, limit=limit)
                if self._can_cut and guess:
                    text, guess = np.append(text, np.array(guess, np.int32)), ()
                self._cut(cached, min(cached.n_agreed(text), len(text) - (not guess)))
                writing.append(i)
                feeds.append((cached, text[cached.n :], Draft(guess) if guess else None))
        while feeds:
            n_written = len(written[writing[0]].tokens)
            n_wanted = max(requests[i].limit for i in writing) - n_written
            n_more = self._n_more(feeds, [requests[i] for i in writing], n_written, n_wanted)
            logits = self._forward(feeds, n_more=n_more, vocabulary=self._vocabulary.tokens)
            writing, feeds = add_best(written, requests, writing, logits, n_vocab=self._n_vocab, n_judged=self._n_judged), []
            for i in writing:
                tokens = written[i].tokens
                fed = np.array(tokens[-1:] if self._can_cut else [*requests[i].guess, *tokens], np.int32)
                feeds.append((texts[i], fed, None) if self._can_cut else (texts[i], fed[:0], Draft(fed)))
        return written

    def _n_more(self, feeds: Shares, requests: Sequence[DraftRequest], n_written: int, n_wanted: int) -> int:
        """How many passes more are begun together with the next one; see `n_chained`."""
        room = min(self._n_ctx - cached.n - len(tokens) for cached, tokens, _ in feeds)
        n_most, is_elsewhere = min(n_wanted, room + 1, self._context.chain_rows // len(feeds)), self._context.is_elsewhere
        return n_chained(requests, n_written, n_most, is_elsewhere=is_elsewhere)

    def teacher_forced(self, slot: int, history: np.ndarray, n: int) -> np.ndarray | None:
        """The best token in place of each of the last n of `history` (h,) int32, after the text before it.

        If more than that was missed, the rest is left out: catching up with it takes longer than it gains.
        After the first 80 tokens of answers of Qwen2.5-Coder-1.5B the 0.5B model predicts 89 % of the tokens; if only the
        last 16, 32 or 64 of those 80 are kept beside the prompt, 85, 86 and 88 %.

        Returns:
            (n,) int32; -1 where the draft model cannot follow the text.
        """
        cached = self._cached(slot, history)
        text = cached.text(history)
        if cached.n_agreed(text) < len(text) - 1 - n:
            cached.leave_out(history, n + 1)
            text = cached.text(history)
        start = min(cached.n_agreed(text), len(text) - 1 - n)
        if start < 0 or not self._can_follow(cached, text):
            return np.full(n, -1, np.int32)
        self._cut(cached, start)
        return self._forward([(cached, text[cached.n : -1], None)], n_rows=n).argmax()

    def _cached(self, slot: int, history: np.ndarray) -> CachedText:
        """The cached text of a slot of the target; where it has none, `history` is to be that."""
        if slot not in self._texts:
            cached = CachedText(-1, np.empty(self._n_ctx, np.int32))
            if self._can_follow(cached, history) and (opened := self._context.open(history)) is not None:
                cached.slot, cached.n = opened.slot, opened.n_reused
                cached.tokens[: cached.n] = history[: cached.n]
            self._texts[slot] = cached
        return self._texts[slot]

    def _can_follow(self, cached: CachedText, text: np.ndarray) -> bool:
        """Whether a text fits; where it does not, the rest of the request goes without drafts."""
        if not cached.is_parked and len(text) > self._n_ctx:
            cached.is_parked = True
            self._warn_once(
                f"the draft model's context of {self._n_ctx} tokens is full; the text goes on without drafts. "
                "Give it a larger one with -cd"
            )
        elif not cached.is_parked and (token := int(text[cached.n :].max(initial=-1))) >= self.n_model_vocab:
            cached.is_parked = True
            self._warn_once(
                f"token {token} is beyond the draft model's vocabulary of {self.n_model_vocab}; the text goes on without drafts"
            )
        return not cached.is_parked

    def _cut(self, cached: CachedText, n: int) -> None:
        if n < cached.n:
            cached.n = self._context.truncate(cached.slot, n)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            get_logger("augury.drafters.draft_model").warning(message)

    def _forward(self, shares: Shares, *, n_rows: int = 1, n_more: int = 0, vocabulary: np.ndarray | None = None) -> Pass:
        """One pass over tokens that are cached from then on, and drafts that are not; logits of each one's last `n_rows`.

        The tokens of `n_more` passes are cached, too. With a `vocabulary` there are only the logits of its tokens.
        """
        context = self._context
        try:
            feeds = self._feeds(shares, n_rows, n_more)
            logits = context.forward(feeds, self._features if n_rows else (), vocabulary)
            if n_more:
                chosen = logits.argmax().reshape(1 + n_more, -1)[:-1].T
                feeds = [
                    evolve(feed, tokens=np.append(feed.tokens, mine[np.logical_and.accumulate(mine >= 0)]))
                    for feed, mine in zip(feeds, chosen, strict=True)
                ]
        except BaseException as error:  # the contents of the slots are unknown; others are opened for requests that go on
            broken = [*self._texts.values()] if isinstance(error, LostDeviceError) else [cached for cached, _, _ in shares]
            for slot in [slot for slot, cached in self._texts.items() if cached in broken]:
                self._drop(slot, forgets=True)
            raise
        for feed, (cached, _, _) in zip(feeds, shares, strict=True):
            cached.tokens[cached.n : cached.n + len(feed.tokens)] = feed.tokens
            context.commit(evolve(feed, tokens=self._names(cached, feed)))
            cached.n += len(feed.tokens)
        return logits

    def _feeds(self, shares: Shares, n_rows: int, n_more: int) -> list[SlotInput]:
        """The input of a pass."""
        return [self._context.prepare(cached.slot, tokens, n_rows, draft, n_more) for cached, tokens, draft in shares]

    def _names(self, cached: CachedText, feed: SlotInput) -> np.ndarray:  # noqa: ARG002 - for runners that know more of a text
        """The tokens (m,) by which the cached positions of a feed are found again."""
        return feed.tokens


def _probabilities(logits: Pass, row: int, ids: np.ndarray, likely: np.ndarray | None) -> np.ndarray:
    """The probabilities (m,) of tokens (m,) int32 by the model's own distribution, or among those of logits `likely` (m,)."""
    if likely is not None:
        weights = np.exp(likely.astype(np.float64) - likely[0])
        shares: np.ndarray = weights / weights.sum()
        return shares
    logarithms = logits.gather(row, ids).astype(np.float64) - logits.log_normalizer(row)
    return np.exp(np.minimum(logarithms, 0.0))  # above 0 by rounding alone
