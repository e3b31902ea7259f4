"""Runs a part of a draft model that is given hidden states of its target beside tokens, or in place of them, for all slots.

Its slots are the target's, of the same numbers. It is fed features of the target's tokens as they are computed; an encoder
makes hidden states of these when the draft model is to keep something of them. Position p of a slot holds what `inject` keeps
of the hidden state of token p, or what `main` does of that and of token p + 1, whose output there predicts token p + 2::

    text                  the   cat   sat   on          "on" was sampled last, and is not in the target's memory
    hidden states of       0     1     2
    `main` is given       (cat,0)(sat,1)(on,2)          predicts token 4, the draft's first

Further tokens of a draft come with the output of the part's own layers for the token before. They are cut off again, because
the target will compute hidden states of the accepted ones.

Source: EAGLE-3 (see `augury.plugins.architectures.draft_heads`), as llama.cpp's driver feeds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from attrs import Factory, define, evolve

from augury.batch import SlotInput
from augury.compiled import address_of
from augury.drafters.model.draft_runner import CachedText, DraftRunner, FedRows, Shares, n_common
from augury.drafters.model.written_draft import N_JUDGED, DraftRequest, WrittenDraft
from augury.interfaces import CompiledDraft, CompiledPass
from augury.passes import Context, Pass

_CHUNK = 256  # tokens in a pass over a text; all slots wait for it
_FACTOR = 0x9E3779B1  # odd, and its bits are those of the golden ratio: different pairs of tokens have different sums, mostly
_COMPILED_ROOM = 32  # tokens in a pass of compiled drafts; more than those of most rounds
_KEPT = 32  # last tokens whose features are kept, to be given again: more than teacher forcing asks for


class RowModel:
    """A model without layers that belongs to a head: computes rows of any number of tokens or hidden states, and keeps nothing.

    Each row of logits depends on its own token or hidden state alone.
    """

    def __init__(self, context: Context) -> None:
        """Take over the model."""
        self._context, self.n_in = context, context.info.n_embd  # values of a hidden state that it is given
        opened = context.open(np.zeros(1, np.int32), may_reuse=False)
        assert opened is not None
        self._slot = opened.slot

    def rows(self, hidden: np.ndarray) -> np.ndarray:
        """The logits (m, V) of hidden states (m, E)."""
        made = [passed.rows().copy() for passed in self._passes(np.zeros(len(hidden), np.int32), hidden)]
        return np.concatenate(made)

    def rows_of_tokens(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The logits (m, V) of tokens (m,) int32, and their hidden states (m, E)."""
        made = [(passed.rows().copy(), passed.features("output")) for passed in self._passes(tokens, None)]
        rows, hidden = zip(*made, strict=True)
        return np.concatenate(rows), np.concatenate(hidden)

    def hidden_of(self, tokens: np.ndarray) -> np.ndarray:
        """The hidden states (m, E) of tokens (m,) int32."""
        return np.concatenate([passed.features("output") for passed in self._passes(tokens, None, has_rows=False)])

    def _passes(self, tokens: np.ndarray, hidden: np.ndarray | None, *, has_rows: bool = True) -> Iterator[Pass]:
        context, features = self._context, () if hidden is not None else ("output",)
        for start in range(0, len(tokens), context.spec.n_ctx):
            here = slice(start, start + context.spec.n_ctx)
            feed = context.prepare(self._slot, tokens[here], len(tokens[here]) if has_rows else 0)
            feed = feed if hidden is None else evolve(feed, hidden=hidden[here])
            yield context.forward([feed], features)
            context.commit(feed)
            context.truncate(self._slot, 0)

    def compiled_pass(self, room: int) -> CompiledPass | None:
        """Passes of up to `room` hidden states each, for compiled drafts; None: the model has none."""
        return self._context.compiled_pass(self._slot, room, 0, is_given=True)


class Encoder(RowModel):
    """Makes hidden states (m, E) of the target's features of m tokens."""

    def __init__(self, context: Context, names: Sequence[str]) -> None:
        """Take over the model that makes them, whose rows of logits they are."""
        super().__init__(context)
        self.names = names  # the target's features that they are made of, side by side; empty ones stand for zeros
        self.width = self.n_in // len(names)  # values of one of them

    def joined(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Features (m, F) by name, side by side; of several residual streams the mean counts."""
        m = len(next(iter(features.values())))
        parts = [features[name] if name else np.zeros((m, self.width), np.float32) for name in self.names]
        if any(part.shape[1] != self.width for part in parts):
            parts = [part.reshape(m, -1, self.width).mean(axis=1, dtype=np.float32) for part in parts]
        return np.concatenate(parts, axis=1)


@define(eq=False)
class FedText(CachedText):
    """The cached text of one request, and the target's features of it."""

    # (n_ctx + 1,) int32, of which `tokens` are all but the first, or all
    history: np.ndarray = Factory(lambda: np.empty(0, np.int32))
    fed: FedRows = Factory(FedRows)  # the features (m, F)
    # what was fed since, text that goes on: the place of the first token, tokens (m,) int32 and features (m, F) by name
    waiting: list[tuple[int, np.ndarray, Mapping[str, np.ndarray]]] = Factory(list)
    is_lent: bool = False  # compiled drafts work on it
    made_at: int = 0  # which token of the last pass made the hidden state for the token after the last one that was fed

    @property
    def n_fed(self) -> int:
        """How many of the text's first tokens were fed."""
        return self.fed.n

    @property
    def has_next(self) -> bool:
        """Whether the token whose hidden state comes next was fed."""
        return self.n < self.n_fed


class PartRunner(DraftRunner):
    """A part that the drafters of all slots share, and that keeps something of each hidden state.

    Texts are given up to the last hidden state; drafts go on from there.

    Attributes:
        encoder: Makes hidden states of features.
        lag: 1 where the part is given the token after a hidden state's own, so that the last one waits for it; 0 of `inject`.
    """

    def __init__(self, context: Context, encoder: Encoder, *, n_vocab: int) -> None:
        """Take over a loaded model with as many slots as the target has, and as long ones; see `DraftRunner`."""
        super().__init__(context, n_vocab=n_vocab, n_first=0)
        self.encoder, self.lag = encoder, int("inject" not in context.info.parts)
        self._n_judged = N_JUDGED
        self._made = context.info.parts["main"].output
        self._features = (self._made,)
        self._last: Pass | None = None  # with logits, until its hidden states are in `_own`
        self._own = np.empty((0, 0), np.float32)
        self._ended: dict[int, FedText] = {}  # the last text of a slot, whose last hidden state waits for the token after it

    def n_held(self, slot: int, history: np.ndarray) -> int:
        """How many of the first tokens of a new text (h,) int32 it need not be fed; the slot is opened for it."""
        return self._open(slot, history).n_fed

    def end(self, slot: int, *, is_private: bool = False) -> None:
        """See `DraftRunner.end`; what waits is processed, or the target would have to compute it again for a later text."""
        text = self._text(slot)
        is_private |= text.is_lent  # what rounds that failed left in the slot is not known
        if not is_private:
            for _ in self.begin(slot, text.history):
                pass
            self._ended[slot] = text
        super().end(slot, is_private=is_private)

    def feed(self, slot: int, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """Take the features (m, F) by name of tokens (m,) int32 of a text, which stand in it from `start` on.

        Those of several rounds are looked at together, when they are wanted.
        """
        if start == 0 or slot not in self._texts:
            self._open(slot, tokens[:0])
        text = self._texts[slot]
        assert isinstance(text, FedText)
        if text.waiting and start != text.waiting[-1][0] + len(text.waiting[-1][1]):
            self._take(text)
        text.waiting.append((start, tokens, features))
        if start + len(tokens) - text.waiting[0][0] > _CHUNK:
            self._take(text)

    def _take(self, text: FedText) -> None:
        """Add to a text what waits."""
        (start, *_), waiting, text.waiting = text.waiting[0], text.waiting, []
        tokens = np.concatenate([each for _, each, _ in waiting])
        self._cut(text, start)
        if start > text.n_fed or text.n < min(text.fed.first, start):  # tokens between are missing
            text.is_parked = True
        if text.is_parked:
            return
        text.history[start : start + len(tokens)] = tokens
        text.fed.add(
            start, self.encoder.joined({name: np.concatenate([each[name] for _, _, each in waiting]) for name in waiting[0][2]})
        )
        while text.n_fed - text.n > _CHUNK and not text.is_lent:
            self._go_on(text)

    def begin(self, slot: int, history: np.ndarray) -> Iterator[None]:  # noqa: ARG002 - it was fed the prompt
        """Process the rest of a prompt that was fed."""
        text = self._text(slot)
        while not text.is_parked and text.n < text.n_fed - self.lag:
            self._go_on(text)
            if text.n < text.n_fed - self.lag:
                yield

    def is_fed(self, request: DraftRequest) -> bool:
        """Whether all tokens before the last one of a text were fed."""
        text = self._text(request.slot)
        return not text.is_parked and text.n_fed == len(request.history) - 1 > text.fed.first

    def draft(self, requests: Sequence[DraftRequest]) -> list[WrittenDraft]:
        limits = [request.limit * self.is_fed(request) for request in requests]
        pairs = zip(requests, limits, strict=True)
        written = super().draft([evolve(request, history=request.history[1:], limit=limit) for request, limit in pairs])
        for text in (self._text(request.slot) for request in requests):
            self._cut(text, text.n_fed)
            self._forget(text)
        return written

    def compiled_draft(self, request: DraftRequest, n_more: int, features: Mapping[str, np.ndarray]) -> CompiledDraft | None:
        """Functions that write ahead for a slot, a chain and alternatives to it, see `Drafter.compiled_draft`."""
        from augury.drafters.model.compiled_heads import draft_head, state_of

        text, history = self._text(request.slot), request.history
        if text.is_parked or not self.is_fed(request) or text.n >= text.n_fed or request.sampler is not None:
            return None
        passes = self._context.compiled_pass(text.slot, _COMPILED_ROOM, N_JUDGED, (self._made,), is_given=True)
        encoding = self.encoder.compiled_pass(_COMPILED_ROOM)
        if passes is None or encoding is None or {each.shape[1] for each in features.values()} != {self.encoder.width}:
            return None
        while text.n < text.n_fed - _COMPILED_ROOM:
            self._go_on(text, text.n_fed - _COMPILED_ROOM - text.n)
        before, start = text.fed.of(text.n, text.n_fed), text.n
        passes.begin()
        encoding.begin()
        n_more = min(n_more + request.limit, self._context.room(text.slot) - 1)
        if n_more < 0:
            return None
        feed = self._context.prepare(text.slot, history[start + 1 :], 1, n_more=n_more)
        sources = np.array([features[name].ctypes.data if name else 0 for name in self.encoder.names])
        state = state_of(passes, encoding, self._made, sources, before)
        state["n_cached"], state["n_before"], state["n_ctx"] = start, len(history), start + 1 + n_more
        state["n_vocab"], state["depth"], state["n_candidates"] = self._n_vocab, request.limit, request.n_candidates
        state["p_min"], state["min_path_probability"] = request.p_min, request.min_path_probability
        text.is_lent, kept = True, (features, sources, before)  # whose addresses it has

        def end(history: np.ndarray) -> None:
            n = int(state["n_cached"][0])
            text.tokens[start:n] = history[start + 1 : n + 1]
            self._context.commit(evolve(feed, tokens=self._named(text.history, start, n)))
            text.n, text.is_lent, _ = n, False, kept
            self._cut(self._text(text.slot), text.n_fed)
            self._forget(text)

        return CompiledDraft(address_of(draft_head), 0, state.ctypes.data, end)

    def teacher_forced(self, slot: int, history: np.ndarray, n: int) -> np.ndarray | None:
        """See `DraftRunner.teacher_forced`; -1 where the tokens before were not fed, or too long ago."""
        text = self._text(slot)
        end = len(history) - 2  # the last but one token is given last
        start = max(end - n, text.fed.first)
        if text.is_parked or text.n_fed < end or start >= end:
            return np.full(n, -1, np.int32)
        while text.n < start:
            self._go_on(text, start - text.n)
        self._cut(text, start)
        best = self._forward([(text, history[start + 1 : end + 1], None)], n_rows=end - start).argmax()
        return np.concatenate([np.full(n - len(best), -1, np.int32), best])

    def _text(self, slot: int) -> FedText:
        """A slot's text, with all that was fed; an unknown one if it has none, or if a pass of it failed."""
        text = self._texts.get(slot)
        if not isinstance(text, FedText):
            return FedText(-1, np.empty(0, np.int32), is_parked=True)
        if text.waiting:
            self._take(text)
        return text

    def _cached(self, slot: int, history: np.ndarray) -> CachedText:  # noqa: ARG002 - as its parent's
        return self._text(slot)

    def _open(self, slot: int, history: np.ndarray) -> FedText:
        """Open a slot for a text; it already holds the common prefix with another one."""
        self._drop(slot)
        opened = self._context.open(self._named(history, 0, len(history) - self.lag), slot=slot)
        assert opened is not None
        whole = np.empty(self._n_ctx + 1, np.int32)
        text = FedText(slot, whole[self.lag :], history=whole)
        self._texts[slot] = text
        text.n = text.fed.n = text.fed.first = opened.n_reused
        if (ended := self._ended.pop(slot, None)) is not None:
            n = n_common(ended.history[: ended.n_fed], history)
            if ended.fed.first <= text.n and 0 < text.n <= n:
                text.fed, ended.fed.n = ended.fed, n
        n = min(max(text.n + self.lag, text.n_fed), len(history))
        whole[:n] = history[:n]
        return text

    def _go_on(self, text: FedText, n: int = _CHUNK) -> None:
        """Give the next tokens of a text, as far as their hidden states and they themselves are known."""
        n = min(n, _CHUNK, text.n_fed - self.lag - text.n)
        self._forward([(text, text.tokens[text.n : text.n + n].copy(), None)], n_rows=0)
        self._forget(text)

    @staticmethod
    def _forget(text: FedText) -> None:
        text.fed.forget(min(text.n_fed - _KEPT, text.n))

    def _feeds(self, shares: Shares, n_rows: int, n_more: int) -> list[SlotInput]:
        texts = [text for text, _, _ in shares if isinstance(text, FedText)]
        pairs = zip(texts, shares, strict=True)
        fed = [text.fed.of(text.n, text.n + len(tokens)) for text, (_, tokens, _) in pairs if text.has_next]
        ends = np.cumsum([len(rows) for rows in fed])[:-1]
        made = iter(np.split(self.encoder.rows(np.concatenate(fed)), ends) if fed else ())
        hidden = [next(made) if text.has_next else self._own_hidden(text) if self.lag else None for text in texts]
        feeds = super()._feeds(shares, n_rows, n_more)
        return [evolve(feed, hidden=rows) for feed, rows in zip(feeds, hidden, strict=True)]

    def _forward(self, shares: Shares, *, n_rows: int = 1, n_more: int = 0, vocabulary: np.ndarray | None = None) -> Pass:
        """See `DraftRunner._forward`; the output for each share's last token is there until the next pass."""
        logits = super()._forward(shares, n_rows=n_rows, n_more=n_more, vocabulary=vocabulary)
        if n_rows:
            self._last, last = logits, -1
            for text, tokens, _ in shares:
                last += 1 if n_more else len(tokens)
                assert isinstance(text, FedText)
                text.made_at = last
        return logits

    def _own_hidden(self, text: FedText) -> np.ndarray:
        """The hidden state (1, E) that the last pass made for the next token of a text."""
        if self._last is not None:
            self._own, self._last = self._last.features(self._made).copy(), None
        return self._own[text.made_at : text.made_at + 1]

    def _names(self, text: CachedText, feed: SlotInput) -> np.ndarray:
        """See `DraftRunner._names`; those beyond the tokens that were fed are cut off again."""
        assert isinstance(text, FedText)
        return self._named(text.history, text.n, text.n + len(feed.tokens))

    def _named(self, history: np.ndarray, start: int, end: int) -> np.ndarray:
        """What decides on the reuse of positions, beside those before: their tokens, and in the first all that lag."""
        names = history[start + self.lag : max(end, start) + self.lag].copy()
        if not start and self.lag and len(names):
            names[0] = (int(names[0]) + _FACTOR * int(history[0])) % 2**31
        return names
