"""Runs a head for all slots: a draft model that is given hidden states of its target beside tokens.

The head's slots are the target's, of the same numbers. Position p of one holds the head's keys and values of token p + 1
and of the target's hidden state of token p; the head's output there predicts token p + 2::

    text                  the   cat   sat   on          "on" was sampled last, and is not in the target's memory
    hidden states of       0     1     2
    the head is given   (cat,0)(sat,1)(on,2)            predicts token 4, the draft's first

Further tokens of a draft come with the output of the head's own layer for the token before. They are cut off again, because
the target will compute hidden states of the accepted ones.

Source: EAGLE-3 (see `augury.plugins.architectures.eagle`), as llama.cpp's driver feeds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import Factory, define, evolve

from augury.drafters.model.cached_text import CachedText
from augury.drafters.model.draft_runner import N_JUDGED, DraftRequest, DraftRunner, WrittenDraft

if TYPE_CHECKING:
    from augury.batch import SlotInput
    from augury.passes import Context, Pass
    from augury.types import Draft

__all__ = ["Encoder", "HeadRunner"]

_CHUNK = 256  # tokens in a pass over a text, for which all wait
_KEPT = 32  # last tokens whose features are kept, to be given again: more than teacher forcing asks for


class Encoder:
    """Makes hidden states (m, E) of the target's features of m tokens.

    Attributes:
        names: The target's features that they are made of, side by side; empty ones stand for zeros.
    """

    def __init__(self, context: Context, names: Sequence[str]) -> None:
        """Take over the model that makes them, whose rows of logits they are."""
        self.names = names
        self._context = context
        self.width = context.info.n_embd // len(names)
        opened = context.open(np.zeros(1, np.int32), may_reuse=False)
        assert opened is not None
        self._slot = opened.slot

    def joined(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Features (m, F) by name, side by side; of several residual streams the mean counts."""
        m = len(next(iter(features.values())))
        parts = [features[name] if name else np.zeros((m, self.width), np.float32) for name in self.names]
        return np.hstack([part.reshape(m, -1, self.width).mean(axis=1, dtype=np.float32) for part in parts])

    def encode(self, joined: np.ndarray) -> np.ndarray:
        """The hidden states of such rows."""
        made, context = [], self._context
        for start in range(0, len(joined), context.spec.n_ctx):
            rows = joined[start : start + context.spec.n_ctx]
            feed = context.feed(self._slot, np.zeros(len(rows), np.int32), len(rows))
            made.append(context.forward([evolve(feed, hidden=rows)]).rows().copy())
            context.commit(feed)
            context.truncate(self._slot, 0)  # it keeps nothing: every row is by itself
        return np.concatenate(made)


@define(eq=False)
class HeadText(CachedText):
    """The cached text of one request of a head, and the target's features of it.

    Attributes:
        history: (n_ctx + 1,) int32, of which `tokens` are all but the first.
        n_fed: Of how many of the text's first tokens the target told.
        told: The features of the last of these, (m, F) float32 in parts.
        hidden: (1, E) float32, output of the head's layer for its last token.
    """

    history: np.ndarray = Factory(lambda: np.empty(0, np.int32))
    n_fed: int = 0
    told: list[np.ndarray] = Factory(list)
    hidden: np.ndarray | None = None

    @property
    def n_told(self) -> int:
        """How many rows of the target's features are kept."""
        return sum(map(len, self.told))

    @property
    def is_read(self) -> bool:
        """Whether the target told of the token whose hidden state comes next."""
        return self.n < self.n_fed

    def rows(self, n: int) -> np.ndarray:
        """The target's features of the n tokens from `self.n` on."""
        told = self.told[0] if len(self.told) == 1 else np.concatenate(self.told)
        start = self.n - (self.n_fed - len(told))
        return told[start : start + n]

    def take_back(self, n: int) -> None:
        """Go back to the features of the first n tokens."""
        if n < self.n_fed:
            n_kept = max(self.n_told - (self.n_fed - n), 0)
            self.told, self.n_fed = ([np.concatenate(self.told)[:n_kept]] if n_kept else []), n

    def forget(self, n_kept: int) -> None:
        """Keep the features of the last `n_kept` tokens."""
        while self.told and self.n_told - len(self.told[0]) >= n_kept:
            self.told.pop(0)


class HeadRunner(DraftRunner):
    """A head that the drafters of all slots share.

    Texts are given up to the last hidden state that the target told; drafts go on from there.
    """

    def __init__(self, context: Context, encoder: Encoder, *, n_vocab: int) -> None:
        """Take over a loaded head with as many slots as the target has, and as long ones; see `DraftRunner`."""
        super().__init__(context, n_vocab=n_vocab, n_first=0)
        self.encoder = encoder
        self._made = f"layer.{context.info.n_layers - 1}"
        self._features, self._n_judged = (self._made,), N_JUDGED

    def n_held(self, slot: int, history: np.ndarray) -> int:
        """How many tokens of a new text (h,) int32 the target need not tell of; the slot is opened for it."""
        return self._open(slot, history, may_reuse=True).n_fed

    def feed(self, slot: int, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """The target told of tokens (m,) int32 of a text, which stand in it from `start` on."""
        if start == 0 or slot not in self._texts:
            self._open(slot, tokens, may_reuse=False)
        text = self._text(slot)
        self._cut(text, start)
        text.take_back(start)
        if start != text.n_fed or text.n < text.n_fed - text.n_told:  # tokens between are missing
            text.is_parked = True
        if text.is_parked:
            return
        text.history[start : start + len(tokens)] = tokens
        text.n_fed += len(tokens)
        text.told.append(self.encoder.joined(features))
        while text.n_fed - text.n > _CHUNK:
            self._go_on(text)

    def begin(self, slot: int, history: np.ndarray) -> Iterator[None]:  # noqa: ARG002 - it was told of the prompt
        """Process the rest of a prompt that the target has told of."""
        text = self._text(slot)
        while not text.is_parked and text.n < text.n_fed - 1:
            self._go_on(text)
            yield

    def draft(self, requests: Sequence[DraftRequest]) -> list[WrittenDraft]:
        """See `DraftRunner.draft`; nothing of a draft stays."""
        texts = [self._text(request.slot) for request in requests]
        shifted = []
        for request, text in zip(requests, texts, strict=True):
            is_read = not text.is_parked and text.n_fed == len(request.history) - 1 and text.n_told > 0
            shifted.append(evolve(request, history=request.history[1:], limit=request.limit if is_read else 0))
        written = super().draft(shifted)
        for text in texts:
            self._cut(text, text.n_fed)
            text.forget(max(_KEPT, text.n_fed - text.n))
        return written

    def teacher_forced(self, slot: int, history: np.ndarray, n: int) -> np.ndarray:
        """See `DraftRunner.teacher_forced`; -1 where the target has not told of the tokens before, or too long ago."""
        text = self._text(slot)
        end = len(history) - 2  # the last but one token is given last
        start = max(end - n, text.n_fed - text.n_told)
        if text.is_parked or text.n_fed < end or start >= end:
            return np.full(n, -1, np.int32)
        while text.n < start:
            self._go_on(text, start - text.n)
        self._cut(text, start)
        best = self._forward([(text, history[start + 1 : end + 1], None)], n_rows=end - start).argmax()
        return np.concatenate([np.full(n - len(best), -1, np.int32), best])

    def _text(self, slot: int) -> HeadText:
        """A slot's text; an unknown one if it has none, or if a pass of it failed."""
        text = self._texts.get(slot)
        return text if isinstance(text, HeadText) else HeadText(-1, np.empty(0, np.int32), is_parked=True)

    def _cached(self, slot: int, history: np.ndarray) -> CachedText:  # noqa: ARG002 - as its parent's
        return self._text(slot)

    def _open(self, slot: int, history: np.ndarray, *, may_reuse: bool) -> HeadText:
        """Open a slot for a text; it holds already the pairs whose tokens both agree."""
        self.end(slot)
        opened = self._context.open(history, may_reuse=may_reuse, slot=slot)
        assert opened is not None
        whole = np.empty(self._n_ctx + 1, np.int32)
        text = HeadText(slot, whole[1:], history=whole)
        self._texts[slot] = text
        text.n = text.n_fed = self._context.truncate(slot, max(opened.n_reused - 1, 0))
        whole[: text.n + 1] = history[: text.n + 1]
        return text

    def _go_on(self, text: HeadText, n: int = _CHUNK) -> None:
        """Give the next tokens of a text, as far as their hidden states and they themselves are known."""
        n = min(n, _CHUNK, text.n_fed - 1 - text.n)
        self._forward([(text, text.tokens[text.n : text.n + n].copy(), None)], n_rows=0)
        text.forget(max(_KEPT, text.n_fed - text.n))

    def _feeds(
        self, shares: Sequence[tuple[CachedText, np.ndarray, Draft | None]], n_rows: int, n_more: int
    ) -> list[SlotInput]:
        """See `DraftRunner._feeds`: with hidden states."""
        texts = [text for text, _, _ in shares if isinstance(text, HeadText)]
        told = [text.rows(len(tokens)) for text, (_, tokens, _) in zip(texts, shares, strict=True) if text.is_read]
        ends = np.cumsum([len(rows) for rows in told])[:-1]
        made = iter(np.split(self.encoder.encode(np.concatenate(told)), ends) if told else ())
        hidden = [next(made) if text.is_read else text.hidden for text in texts]
        feeds = super()._feeds(shares, n_rows, n_more)
        return [evolve(feed, hidden=rows) for feed, rows in zip(feeds, hidden, strict=True)]

    def _forward(
        self,
        shares: Sequence[tuple[CachedText, np.ndarray, Draft | None]],
        *,
        n_rows: int = 1,
        n_more: int = 0,
        vocabulary: np.ndarray | None = None,
    ) -> Pass:
        """See `DraftRunner._forward`; the layer's output for each share's last token is kept."""
        logits = super()._forward(shares, n_rows=n_rows, n_more=n_more, vocabulary=vocabulary)
        if n_rows:
            made, last = logits.features(self._made), -1
            for text, tokens, _ in shares:
                last += len(tokens)
                assert isinstance(text, HeadText)
                text.hidden = made[last : last + 1].copy()
        return logits

    def _names(self, text: CachedText, feed: SlotInput) -> np.ndarray:
        """See `DraftRunner._names`: a pair goes by the token whose hidden state it has, so that both decide on reuse."""
        assert isinstance(text, HeadText)
        return text.history[text.n : text.n + len(feed.tokens)].copy()
