"""Writes ahead with the target's own layers that predict further tokens, for several slots at once.

Such a layer reads, at position p, token p and `hidden`, the output of the target's layers for token p - 1; its own output
predicts token p + 1. Its keys and values stay in the target's slots, so they are computed once::

    text            the   cat   sat   on          "on" was sampled last, and is not in the target's memory
    hidden           h0    h1    h2
    is given        (the,0)(cat,h0)(sat,h1)(on,h2)          predicts the draft's first token, and makes h3'
    then                                   (a,h3')          predicts the second

A single layer is applied again and again. Each of several drafts one token, after it has computed the draft before that.
An assistant keeps no state, and attends to the target's positions before "on" with every token that it drafts.

Source: llama.cpp's driver of MTP (`common/speculative.cpp`), whose order and positions these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import define, evolve, field

from augury.batch import PartInput
from augury.drafters.model.draft_runner import DraftVocabulary, FedRows, n_common
from augury.drafters.model.written_draft import N_JUDGED, WrittenDraft, add_best, n_chained

if TYPE_CHECKING:
    from augury.drafters.model.written_draft import DraftRequest
    from augury.passes import Pass, Target

_MOST_PENDING = 256  # tokens that are fed and not computed; as a prompt goes on, so many at least are computed in one pass
_KEPT = 32  # tokens whose hidden states are kept for teacher forcing, which wants fewer


@define(eq=False)
class HiddenText(FedRows):
    """A slot's text as far as it was fed, and the hidden states of its last tokens."""

    tokens: np.ndarray = field(kw_only=True)  # (n_ctx,) int32, of which the first `n` were fed
    n_computed: list[int] | None = None  # by layer, how many of the first tokens it has computed; None: the target knows

    def before(self, start: int, end: int) -> np.ndarray:
        """The hidden states (end - start, F) of the tokens before each from `start` to before `end`; zeros before the first."""
        if start:
            return self.of(start - 1, end - 1)
        return np.concatenate([np.zeros_like(self.rows[:1]), self.rows[: end - 1]])

    def has_before(self, start: int) -> bool:
        """Whether the hidden state of the token before `start` is there."""
        return self.first < start or (self.first == start == 0)

    def n_agreed(self, text: np.ndarray) -> int:
        """How many of the first tokens of a text (t,) int32 were fed."""
        return n_common(self.tokens[: self.n], text)


class MtpRunner:
    """The layers of a target; the drafters of all slots share them.

    Tokens that were fed are computed when a draft needs that, or when there are many.
    """

    def __init__(self, target: Target, n_ctx: int, *, n_vocab: int, n_first: int | None = None) -> None:
        """Take over the layers of a target with slots of `n_ctx` positions; see `DraftVocabulary` for `n_first`."""
        self.n_model_vocab = n_vocab
        self._target = target
        self._parts, heads = [*target.heads], [*target.heads.values()]
        self._n_layers, self._first, self._caches = len(heads), heads[0].input[0], heads[0].caches
        self._made = [head.output for head in heads]
        self._vocabulary = DraftVocabulary(n_vocab, n_first)
        self._n_ctx = n_ctx
        self._texts: dict[int, HiddenText] = {}

    def n_held(self, slot: int, history: np.ndarray) -> int:
        """How many of the first tokens of a new text (h,) int32 need not be fed again."""
        text = self._text(slot)
        text.n = text.n_agreed(history)
        text.tokens[: len(history)], text.n_computed = history, None
        n_computed = min(self._target.n_held(part, slot, history) for part in self._parts)
        if n_computed and (text.n < n_computed or not text.has_before(n_computed)):
            self._take_over(text, history, n_computed)
        n_by_states = max(n_computed - 1, 0)  # the hidden state of the last token that was computed is to be fed
        return max(text.n, n_by_states) if text.has_before(n_computed) else n_by_states

    def feed(self, slot: int, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """The target computed tokens (m,) int32 of a slot's text, from `start` on, and their hidden states (m, F)."""
        text, hidden = self._text(slot), features[self._first]
        text.add(start, hidden)
        text.tokens[start : text.n] = tokens
        if not start:  # of a new text; the end of the one before is not fed where it had not begun
            text.n_computed = None
        if text.n - min(self._n_computed(slot, text)) >= _MOST_PENDING:
            self._go_on(slot, text)
        self._forget(slot, text)

    def begin(self, slot: int, history: np.ndarray) -> Iterator[None]:
        """Compute the rest of a prompt, which is less than waits for a pass of its own."""
        self._vocabulary.begin(slot, history)
        self._go_on(slot, self._text(slot))
        return iter(())

    def end(self, slot: int, *, is_private: bool = False) -> None:
        """The request of a slot is over. Its text may serve the next one, unless it is private."""
        self._text(slot).n_computed = None
        if is_private:
            del self._texts[slot]

    def draft(self, requests: Sequence[DraftRequest]) -> list[WrittenDraft]:
        """Write ahead for several slots, a token of each with every pass, or with each of a chain of passes.

        Returns:
            The tokens written for each request, in order; none where not all tokens before were fed.
        """
        requests, written = [self._limited(request) for request in requests], [WrittenDraft() for _ in requests]
        writing = [i for i, request in enumerate(requests) if request.limit > 0]
        made: list[list[np.ndarray]] = [[] for _ in requests]  # (1, F) each, of written tokens
        step = 0
        while writing:
            layer = min(step, self._n_layers - 1)
            feeds = [self._feed(requests[i], written[i].tokens, made[i], layer) for i in writing]
            n_more = self._n_more([requests[i] for i in writing], step)
            logits = self._forward(feeds, layer, is_draft=True, n_more=n_more)
            going_on = add_best(written, requests, writing, logits, n_vocab=self.n_model_vocab, n_judged=N_JUDGED)
            if going_on:
                ends = np.cumsum([1 if n_more else len(feed.tokens) for feed in feeds])
                given = logits.features(self._made[layer])[ends - 1]
                for row, i in enumerate(writing):
                    made[i].append(given[row : row + 1])
            writing, step = going_on, step + 1 + n_more
        return written

    def _n_more(self, requests: Sequence[DraftRequest], n_written: int) -> int:
        """How many passes more are begun together with the next one; see `n_chained`. Several layers take turns."""
        if self._n_layers > 1:
            return 0
        n_wanted = max(request.limit for request in requests) - n_written
        room = self._n_ctx - max(len(request.history) for request in requests) + 1 - n_written
        return n_chained(requests, n_written, min(n_wanted, room, self._target.chain_rows // len(requests)))

    def _limited(self, request: DraftRequest) -> DraftRequest:
        self._vocabulary.follow(request.slot, request.history)
        text, n, limit = self._text(request.slot), len(request.history), 0
        if text.n == n - 1 >= (not self._caches) and all(
            text.has_before(min(m, n - 1)) for m in self._n_computed(request.slot, text)
        ):
            limit = min(request.limit, self._n_ctx - n + 1, request.limit if self._n_layers == 1 else self._n_layers)
        return evolve(request, limit=limit)

    def teacher_forced(self, slot: int, history: np.ndarray, n: int) -> np.ndarray:
        """The best token in place of each of the last n of `history` (h,) int32, by the first layer.

        Returns:
            (n,) int32; -1 where the hidden states before are not kept.
        """
        text, end = self._text(slot), len(history) - 1
        start = min(self._n_computed(slot, text)[0], end - n)
        if text.n < end or start < (not self._caches) or not text.has_before(start):
            return np.full(n, -1, np.int32)
        feed = PartInput(slot, start, text.tokens[start:end], text.before(start, end), end - start, n)
        return self._forward([feed], 0).argmax()

    def _take_over(self, text: HiddenText, history: np.ndarray, n: int) -> None:
        """Copy the hidden state of token n - 1 of a new text from a slot that holds the same n tokens, if there is one."""
        others = (each for each in self._texts.values() if each.has_before(n) and each.n_agreed(history[:n]) == n)
        if (other := next(others, None)) is not None:
            text.add(n - 1, other.before(n, n + 1))

    def _text(self, slot: int) -> HiddenText:
        if slot not in self._texts:
            self._texts[slot] = HiddenText(tokens=np.empty(self._n_ctx, np.int32))
        return self._texts[slot]

    def _n_computed(self, slot: int, text: HiddenText) -> list[int]:
        if text.n_computed is None or not self._caches:
            fed = text.tokens[: text.n]
            text.n_computed = [self._target.n_held(part, slot, fed) for part in self._parts]
        return text.n_computed

    def _feed(self, request: DraftRequest, written: Sequence[int], made: Sequence[np.ndarray], layer: int) -> PartInput:
        """A slot's share of a step: the last token of the text and uncomputed ones before it, or the drafted tokens."""
        text, history, n = self._text(request.slot), request.history, len(request.history)
        start = min(self._n_computed(request.slot, text)[layer], n - 1)
        tokens, hidden = history[start:], text.before(start, n)
        if written and self._n_layers == 1:
            at = n - 1 + len(written) * self._caches
            return PartInput(request.slot, at, np.array(written[-1:], np.int32), made[-1], 0)
        if written:
            tokens, hidden = np.append(tokens, np.array(written, np.int32)), np.concatenate([hidden, *made])
        return PartInput(request.slot, start, tokens, hidden, n - start)

    def _go_on(self, slot: int, text: HiddenText) -> None:
        for layer, start in enumerate(self._n_computed(slot, text)):
            if start < text.n and text.has_before(start):
                tokens, hidden = text.tokens[start : text.n], text.before(start, text.n)
                self._forward([PartInput(slot, start, tokens, hidden, text.n - start, 0)], layer)

    def _forward(self, feeds: Sequence[PartInput], layer: int, *, is_draft: bool = False, n_more: int = 0) -> Pass:
        """A pass, or a chain of passes; its certain tokens count as computed from then on."""
        logits = self._target.forward_part(self._parts[layer], feeds, self._vocabulary.tokens if is_draft else None, n_more)
        for feed in feeds:
            text = self._text(feed.slot)
            if feed.n_certain and text.n_computed is not None:
                text.n_computed[layer] = feed.start + feed.n_certain
                self._forget(feed.slot, text)
        return logits

    def _forget(self, slot: int, text: HiddenText) -> None:
        """Keep the hidden states that are still to be given, and a few before them."""
        text.forget(max(min(self._n_computed(slot, text)) - 1 - _KEPT, 0))
