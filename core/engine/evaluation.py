"""Texts that are computed and not continued: for their logits, log-probabilities, embeddings or hidden states."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence as Items
from typing import Any, Protocol

import numpy as np

from augury.engine.context import EngineContext
from augury.engine.stats import PromptToken
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.passes import Pass
from augury.types import ModelInfo, TokenLogprob

Steps = Generator[Any, None, None]
"""Yields None where rounds may go on in between, and its result at the end. Closing it frees the slots."""

POOLING = ("none", "mean", "cls", "last")
"""How tokens' embeddings are pooled: all of them, their mean, the first, the last. llama.cpp's names."""


class Slots(Protocol):
    """The part of the loop that evaluations use."""

    @property
    def n_chunk(self) -> int:
        """Tokens that the next pass may have."""

    def take(self, tokens: np.ndarray) -> int | None:
        """A slot for a text, or None while all are taken."""

    def release(self, slot: int) -> None:
        """Give it back."""


def evaluate(slots: Slots, context: EngineContext, tokens: np.ndarray, rows: np.ndarray) -> Steps:
    """Logits of a text.

    Args:
        slots: Of the loop.
        context: Of the model.
        tokens: (T,) int32.
        rows: (r,) int32, rising positions whose logits are wanted.

    Yields:
        None, at last (r, V) float32.
    """
    logits = np.empty((len(rows), context.info.n_vocab), np.float32)

    def read(_: int, start: int, stop: int, passed: Pass, __: int) -> None:
        first, last = np.searchsorted(rows, (start, stop))
        logits[first:last] = passed.rows()

    yield from _read(slots, context, [tokens], rows, (), read)
    yield logits


def score(
    slots: Slots, context: EngineContext, texts: Items[np.ndarray], n_top: int, n_vocab: int, spell: Callable[[int], Any]
) -> Steps:
    """How probable the tokens of texts are, as many texts at once as slots are free. Only that is kept of each pass.

    Args:
        slots: Of the loop.
        context: Of the model.
        texts: (T,) int32 each.
        n_top: How many alternatives to each token.
        n_vocab: How many tokens there are to choose from.
        spell: Gives the bytes of a token, or None.

    Yields:
        None, at last a list of T `PromptToken` for each text.
    """
    scored = [[PromptToken(int(text[0]), spell(int(text[0])))] for text in texts]

    def read(text: int, start: int, stop: int, passed: Pass, first: int) -> None:
        if n_vocab < context.info.n_vocab:
            passed = passed.first(n_vocab)
        following = texts[text][start + 1 : stop + 1].tolist()  # none after the last
        rows = np.arange(first, first + len(following), dtype=np.int32)
        for token, row, ids, values in zip(following, rows.tolist(), *passed.top_k(rows, n_top), strict=True):
            logit, normalizer = float(passed.gather(row, np.array([token], np.int32))[0]), passed.log_normalizer(row)
            if not np.isfinite(normalizer):
                raise ModelFileError("the model's logits are not finite numbers; its weights are probably damaged")
            top = (TokenLogprob(i, x - normalizer, spell(i)) for i, x in zip(ids.tolist(), values.tolist(), strict=True))
            rank = 1 + int(np.count_nonzero(passed.row(row) > logit))
            scored[text].append(PromptToken(token, spell(token), logit - normalizer, rank, tuple(top)))

    yield from _read(slots, context, texts, np.arange(max(map(len, texts))), (), read)
    yield scored


def embed(slots: Slots, context: EngineContext, texts: Items[np.ndarray], pooling: str, *, normalize: bool) -> Steps:
    """Embeddings of texts: the inputs of the output's matrix, of as many texts at once as slots are free.

    Args:
        slots: Of the loop.
        context: Of the model.
        texts: (T,) int32 each.
        pooling: One of `POOLING`.
        normalize: Whether they are scaled to length 1.

    Yields:
        None, at last (n, E) float32, or a list of (T, E) where nothing is pooled.

    Numerics: A mean is summed in float64, token by token: it does not depend on how the text was divided into passes.
    """
    if "output" not in context.model.features:
        raise UnsupportedError("this backend has no embeddings; load the model with another one")
    embeddings: list[Any] = [[] for _ in texts]

    def read(text: int, start: int, stop: int, passed: Pass, first: int) -> None:
        values = passed.features("output")[first : first + stop - start]
        if pooling == "mean":
            before = embeddings[text] if start else np.zeros(values.shape[1])
            embeddings[text] = np.add.reduce(np.vstack([before[None], values]), axis=0, dtype=np.float64)
        elif pooling == "none":
            embeddings[text].append(values.copy())
        elif start == 0 or pooling == "last":
            embeddings[text] = values[0 if pooling == "cls" else -1].copy()

    yield from _read(slots, context, texts, np.empty(0, np.int32), ("output",), read)
    if pooling == "mean":
        embeddings = [sums / len(text) for sums, text in zip(embeddings, texts, strict=True)]
    if pooling == "none":
        embeddings = [np.concatenate(each) for each in embeddings]
    scaled = [_unit(each) if normalize else each.astype(np.float32) for each in embeddings]
    yield scaled if pooling == "none" else np.stack(scaled)


def hidden_states(slots: Slots, context: EngineContext, texts: Items[np.ndarray], names: tuple[str, ...]) -> Steps:
    """Features of every token of texts, of as many texts at once as slots are free.

    Args:
        slots: Of the loop.
        context: Of the model.
        texts: (T,) int32 each.
        names: Of the features, see `augury.interfaces.Model.features`.

    Yields:
        None, at last for each text (T, F) float32 by name.
    """
    widths = context.model.features
    if missing := [name for name in names if name not in widths]:
        known = ", ".join(widths) or "none"
        raise UnsupportedError(f"{context.info.name} tells no hidden states {missing[0]!r}; expected some of: {known}")
    found = [{name: np.empty((len(text), widths[name]), np.float32) for name in names} for text in texts]

    def read(text: int, start: int, stop: int, passed: Pass, first: int) -> None:
        for name, values in found[text].items():
            values[start:stop] = passed.features(name)[first : first + stop - start]

    yield from _read(slots, context, texts, np.empty(0, np.int32), names, read)
    yield found


def _read(
    slots: Slots,
    context: EngineContext,
    texts: Items[np.ndarray],
    rows: np.ndarray,
    features: tuple[str, ...],
    read: Callable[[int, int, int, Pass, int], None],
) -> Steps:
    """Compute texts; `read` gets the text, from and to where a pass went on with it, the pass, and where in it that is."""
    waiting = deque(range(len(texts)))
    places: dict[int, tuple[int, int]] = {}  # by text: its slot, and how many of its tokens are computed
    try:
        while waiting or places:
            while waiting and (slot := slots.take(texts[waiting[0]])) is not None:
                places[waiting.popleft()] = slot, 0
            feeds, n_left = [], slots.n_chunk
            for text, (slot, start) in places.items():
                if len(tokens := texts[text][start : start + n_left]):
                    first, last = np.searchsorted(rows, (start, start + len(tokens)))
                    feeds.append((text, start, context.feed(slot, tokens, (rows[first:last] - start).astype(np.int32))))
                    n_left -= len(tokens)
            if feeds:
                passed, at = context.forward([feed for *_, feed in feeds], features), 0
                passed.wait()
                for text, start, feed in feeds:
                    stop = start + len(feed.tokens)
                    read(text, start, stop, passed, at)
                    at += feed.n_tokens
                    context.commit(feed)
                    places[text] = feed.slot, stop
                    if stop == len(texts[text]):
                        slots.release(places.pop(text)[0])
            yield None
    finally:
        for slot, _ in places.values():
            slots.release(slot)


def checked_pooling(asked: str | None, info: ModelInfo) -> str:
    """The pooling that a caller asks for, or else the model's file, or else `last`.

    Raises:
        OptionError: There is no such pooling.
        UnsupportedError: The file's is none of augury's, or its embeddings have a head.
    """
    if info.has_embedding_head:
        raise UnsupportedError(
            f"the embeddings of {info.name} go through a head (cls.output, dense_2), which augury does not compute"
        )
    if asked is None and info.pooling is not None and info.pooling not in POOLING:
        raise UnsupportedError(f"the file's pooling_type is {info.pooling}, expected one of {', '.join(POOLING)}; ask for one")
    pooling = asked or info.pooling or "last"
    if pooling not in POOLING:
        raise OptionError(f"pooling is {asked!r}, expected one of {', '.join(POOLING)}")
    return pooling


def _unit(embedding: np.ndarray) -> np.ndarray:
    """Vectors (..., E) scaled to length 1, as float32; those of length 0 stay."""
    lengths = np.linalg.norm(embedding.astype(np.float64), axis=-1, keepdims=True)
    return (embedding / np.where(lengths > 0, lengths, 1)).astype(np.float32)
