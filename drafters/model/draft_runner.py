"""Runs a draft model for all slots: keeps its cache in step with their texts, and writes ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from attrs import Factory, define, evolve

from augury.batch import SlotInput
from augury.drafters.model.written_draft import DraftRequest, WrittenDraft, add_best, n_chained
from augury.errors import LostDeviceError
from augury.log import get_logger
from augury.passes import Context, Pass
from augury.types import Draft


@define(eq=False)
class CachedText:
    """The cached text of one request.

    A stretch that was missed for long may be left out: the text after it moves up into its positions.
    """

    slot: int  # the slot of the draft model
    tokens: np.ndarray  # (n_ctx,) int32; the slot holds the first `n`
    n: int = 0  # see there
    n_before: int = 0  # how many tokens come before the omitted ones
    n_left_out: int = 0  # how many are
    is_parked: bool = False  # the text has gone beyond the draft model's context

    def text(self, history: np.ndarray) -> np.ndarray:
        """The part of `history` (h,) int32 that is not left out."""
        if not self.n_left_out:
            return history
        return np.concatenate([history[: self.n_before], history[self.n_before + self.n_left_out :]])

    def n_agreed(self, text: np.ndarray) -> int:
        """How many tokens of `text` (t,) int32 are cached."""
        return n_common(self.tokens[: self.n], text)

    def leave_out(self, history: np.ndarray, n_kept: int) -> None:
        """Keep the cached beginning of `history`, and the last `n_kept` tokens."""
        n_agreed = self.n_agreed(self.text(history))
        self.n_before = min(n_agreed, self.n_before) if self.n_left_out else n_agreed
        self.n_left_out = len(history) - n_kept - self.n_before


@define(eq=False)
class FedRows:
    """Hidden states of a text's last tokens that were fed."""

    n: int = 0  # how many of the text's first tokens were fed
    first: int = 0  # the first of them whose hidden state is kept
    rows: np.ndarray = Factory(lambda: np.empty((0, 0), np.float32))  # (c, F) float32, theirs from `first` on

    def add(self, start: int, rows: np.ndarray) -> None:
        """Take the rows (m, F) of tokens from `start` on, in place of those of an earlier text there."""
        if not self.first <= start <= self.n:
            self.first = start
        kept = start - self.first
        if kept + len(rows) > len(self.rows):
            grown = np.empty((2 * (kept + len(rows)), rows.shape[1]), np.float32)
            if kept:
                grown[:kept] = self.rows[:kept]
            self.rows = grown
        self.rows[kept : kept + len(rows)] = rows
        self.n = start + len(rows)

    def of(self, start: int, end: int) -> np.ndarray:
        """The hidden states (end - start, F) of tokens that are kept."""
        return self.rows[start - self.first : end - self.first]

    def forget(self, n_before: int) -> None:
        """Keep hidden states from the token `n_before` on, where no more are left than go: each is copied rarely."""
        if n_before - self.first > self.n - n_before:
            self.rows, self.first = self.of(n_before, self.n).copy(), n_before


def n_common(tokens: np.ndarray, text: np.ndarray) -> int:
    """How many first tokens two texts (n,) and (t,) int32 have in common."""
    n = min(len(tokens), len(text))
    differs = tokens[:n] != text[:n]
    return int(differs.argmax()) if differs.any() else n


_SHARE = 4  # of the vocabulary is a quarter, unless a number is given,
_LEAST = 16384  # but no less than this
_MOST_SEEN = 16  # a sixteenth as many tokens are kept that were seen beyond the first ones,
_FEW_SEEN = 64  # but these in any case

_KEEP = 0.99  # of the estimated share of missing tokens, with each new one
_TOO_OFTEN = 0.06  # missing: every draft is then cut short more often than the smaller matrix saves


class DraftVocabulary:
    """Which logits a draft model computes, for all slots together: the most frequent tokens, and those of the texts.

    The output matrix is a large part of a small model's weights: 37 % of Qwen2.5's 0.5B model. Tokenizers number their tokens
    by how frequent they were where the vocabulary was made, so the first ones are most of any text.

    Texts in other scripts than most of the vocabulary's, or a tokenizer whose numbers follow another order, miss many tokens.
    In that case the whole vocabulary is used until few are missing.

    Source: frequency-ranked draft vocabularies are those of FR-Spec (Zhao et al. 2025, arXiv 2502.14856).
    """

    def __init__(self, n_vocab: int, n_first: int | None = None) -> None:
        """Begin with the first `n_first` tokens; 0: all, None: a quarter, if that saves anything worth having."""
        self._n_first = min(max(n_vocab // _SHARE, _LEAST) if n_first is None else n_first, n_vocab)
        self._is_whole = not 0 < self._n_first < n_vocab
        self._n_vocab = n_vocab
        self._missing = 0.0  # share of the tokens
        self._seen: set[int] = set()  # beyond the first
        self._n_seen: dict[int, int] = {}  # tokens of a slot's text, by slot
        self._tokens = np.arange(self._n_first, dtype=np.int32)

    @property
    def tokens(self) -> np.ndarray | None:
        """(m,) int32, rising, the same array until there are others; None: all."""
        return None if self._is_whole or self._missing > _TOO_OFTEN else self._tokens

    def begin(self, slot: int, history: np.ndarray) -> None:
        """A slot has a new text, `history` (h,) int32."""
        self._n_seen[slot] = len(history)
        if not self._is_whole:
            self._add(history)

    def follow(self, slot: int, history: np.ndarray) -> None:
        """A slot's text went on, to `history` (h,) int32."""
        new = history[self._n_seen.get(slot, 0) :]
        self._n_seen[slot] = len(history)
        if self._is_whole:
            return
        for token in new.tolist():
            is_missing = token >= self._n_first and token not in self._seen
            self._missing += (1 - _KEEP) * (is_missing - self._missing)
        self._add(new)

    def _add(self, tokens: np.ndarray) -> None:
        found = set(tokens[(tokens >= self._n_first) & (tokens < self._n_vocab)].tolist()) - self._seen
        if not found:
            return
        most = max(self._n_first // _MOST_SEEN, _FEW_SEEN)
        if len(self._seen) + len(found) > most:
            self._seen.clear()  # of older texts
        self._seen.update(sorted(found)[:most])
        self._tokens = np.array([*range(self._n_first), *sorted(self._seen)], np.int32)


Shares = Sequence[tuple[CachedText, np.ndarray, Draft | None]]
"""Of texts, the tokens of a pass that are cached from then on, and drafted ones after them that are not."""
_CHUNK = 256  # prompt tokens in a pass; the other slots wait for it


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
        """Take over a loaded model with as many slots as the target has; a token from `n_vocab` on is never proposed."""
        self.n_model_vocab = context.info.n_vocab
        self.is_asynchronous, self.trip_s = context.is_asynchronous, context.trip_s
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
        room = min(self._n_ctx - cached.n - len(tokens) for cached, tokens, _ in feeds)
        n_most = min(n_wanted, room + 1, self._context.chain_rows // len(feeds))
        return n_chained(requests, n_written, n_most, is_elsewhere=self.trip_s > 0)

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
        return [self._context.prepare(cached.slot, tokens, n_rows, draft, n_more) for cached, tokens, draft in shares]

    def _names(self, cached: CachedText, feed: SlotInput) -> np.ndarray:  # noqa: ARG002 - for runners that know more of a text
        """The tokens (m,) by which the cached positions of a feed are found again."""
        return feed.tokens
