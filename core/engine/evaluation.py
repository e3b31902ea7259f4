"""Texts that are computed and not continued: for their logits, log-probabilities, embeddings or hidden states.

`Evaluations` has an engine's methods for them, which any thread may call. Each gives the engine's thread a function of its
loop: a generator that takes a step at a time, between rounds.
"""

from __future__ import annotations

import asyncio
from abc import ABC
from collections import deque
from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from augury.engine.context import EngineContext
from augury.engine.generation import Generation
from augury.engine.loop import Loop
from augury.engine.perplexity import WINDOW, Perplexity, windows_of
from augury.engine.request import checked_tokens, is_several
from augury.engine.stats import PromptToken
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.guard import guarded
from augury.interfaces import Progress
from augury.notebook import shown_progress
from augury.options import check_count
from augury.passes import Pass
from augury.types import ModelInfo, Round, TokenLogprob

Steps = Generator[Any, None, None]
"""Yields None where rounds may go on in between, and its result at the end. Closing it frees the slots."""

POOLING = ("none", "mean", "cls", "last")
"""How tokens' embeddings are pooled: all of them, their mean, the first, the last. llama.cpp's names."""

_NO_ROWS = np.empty(0, np.int32)


class Evaluations(Generation, ABC):
    """What an engine tells of texts, or of lists of token ids. The slots used forget their contents."""

    info: ModelInfo
    _context: EngineContext

    def evaluate(self, prompt: str | Sequence[int] | np.ndarray, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """The logits (R, V) float32 after tokens of a text, without generating, in a free slot, whose contents are forgotten.

        Args:
            prompt: A text or T token ids.
            rows: R positions whose logits are wanted, in any order; None for all T.

        Raises OptionError: a token or row is out of range, or there are none. CapacityError: the tokens do not fit into the
        context.
        """
        tokens = self._tokens(prompt, None)
        wanted = _checked_rows(rows, len(tokens))
        rising, back = np.unique(wanted, return_inverse=True)
        logits = np.empty((len(rising), self.info.n_vocab), np.float32)

        def read(_: int, start: int, stop: int, passed: Pass, *__: int) -> None:
            first, last = np.searchsorted(rising, (start, stop))
            logits[first:last] = passed.rows()

        self._worker.answer(_reading(self._context, [tokens], read, lambda: logits, rows=rising))
        return logits if np.array_equal(rising, wanted) else logits[back]

    def score(self, texts: Any, *, logprobs: int = 0) -> list[Any]:
        """How probable the tokens of texts are: a `PromptToken` for each, the first of a text without a log-probability.

        Args:
            texts: A text or token ids, or a list of such, which gives a list of such lists.
            logprobs: How many of the most probable tokens to report beside each.

        Raises AuguryError: by its kind, a text that has no tokens, or too many for the context, or a count below 0.
        """
        scored: list[Any] = self._worker.answer(self._scoring(texts, logprobs))
        return scored

    async def ascore(self, texts: Any, *, logprobs: int = 0) -> list[Any]:
        """`score` for asyncio: the event loop goes on meanwhile, and a task that is cancelled frees its slots."""
        scored: list[Any] = await self._worker.answer_async(await asyncio.to_thread(self._scoring, texts, logprobs))
        return scored

    def _scoring(self, given: Any, logprobs: int) -> Callable[[Loop], Steps]:
        n_top, narrowed, tokenizer = check_count("logprobs", logprobs, 0), self._narrowing(), self.tokenizer
        spell: Callable[[int], bytes | None] = (lambda _: None) if tokenizer is None else tokenizer.piece
        texts = self._each(given)
        scored = [[PromptToken(int(text[0]), spell(int(text[0])))] for text in texts]

        def read(text: int, start: int, stop: int, passed: Pass, first: int, _: int) -> None:
            passed = narrowed(passed)  # of which only the probabilities are kept
            following = texts[text][start + 1 : stop + 1].tolist()  # none after the last
            rows = np.arange(first, first + len(following), dtype=np.int32)
            for token, row, ids, values in zip(following, rows.tolist(), *passed.top_k(rows, n_top), strict=True):
                logit, normalizer = _logit_and_normalizer(passed, row, token)
                top = (TokenLogprob(i, x - normalizer, spell(i)) for i, x in zip(ids.tolist(), values.tolist(), strict=True))
                rank = 1 + int(np.count_nonzero(passed.row(row) > logit))
                scored[text].append(PromptToken(token, spell(token), logit - normalizer, rank, tuple(top)))

        rows = np.arange(max(map(len, texts)))
        return _reading(self._context, texts, read, lambda: _as_given(given, scored), rows=rows)

    def logprobs(self, texts: Any, *, first: int = 1) -> Any:
        """The log-probabilities of the tokens of texts, each after those before it, (T - first,) float64.

        They are those that `score` tells and that a request reports of the same tokens, to the bit.

        Args:
            texts: A text or token ids, or a list of such, which gives a list.
            first: The first token that is wanted, at least 1: token 0 follows nothing.

        Raises AuguryError: by its kind, a text that has no tokens, or too many for the context, or `first` below 1.
        """
        each, wanted, narrowed = self._each(texts), check_count("first", first, 1), self._narrowing()
        found = [np.empty(max(len(text) - wanted, 0)) for text in each]

        def read(text: int, start: int, stop: int, passed: Pass, _: int, row: int) -> None:
            passed, begin = narrowed(passed), max(start + 1, wanted)
            for i, token in enumerate(each[text][begin : stop + 1].tolist()):
                logit, normalizer = _logit_and_normalizer(passed, row + i, token)
                found[text][begin - wanted + i] = logit - normalizer

        rows = np.arange(wanted - 1, max(map(len, each)))
        return self._worker.answer(_reading(self._context, each, read, lambda: _as_given(texts, found), rows=rows))

    def perplexity(
        self,
        text: str | Sequence[int] | np.ndarray,
        *,
        window: int = WINDOW,
        n_windows: int | None = None,
        progress: Progress | None = None,
    ) -> Perplexity:
        """How well the model predicts a text of any length, as `llama-perplexity` counts it.

        Args:
            text: A text or token ids.
            window: The text is cut into windows of so many tokens, without the rest. In the second half of each, every token is
                predicted after all of the window before it.
            n_windows: How many windows to take at most; None: all.
            progress: Is told how many windows are computed, of how many; None: a notebook shows it.

        Raises AuguryError: by its kind, a text shorter than a window, or a window that does not fit into the context.
        """
        tokenizer = self.tokenizer
        ids = tokenizer.encode(text) if tokenizer is not None and isinstance(text, str) else text
        # a text is longer than the context, which only a window has to fit into; without a tokenizer it is refused there
        tokens = self._tokens(ids, None) if isinstance(ids, str) else checked_tokens(ids, self._n_vocab, n_ctx=None)
        bos = tokenizer.bos if tokenizer is not None and tokenizer.add_bos else None
        windows = windows_of(tokens, window, n_windows, bos)
        found: list[np.ndarray] = []
        show = progress or shown_progress()
        for start in range(0, len(windows), n_at_once := self._context.spec.n_slots):
            found += self.logprobs(list(windows[start : start + n_at_once]), first=window // 2 + 1)
            show("windows", len(found), len(windows))
        return Perplexity.of(found)

    def embed(self, texts: Any, *, pooling: str | None = None, normalize: bool = True) -> np.ndarray | list[np.ndarray]:
        """Embeddings: the inputs of the output's matrix, (E,) float32 of one text, (n, E) of several.

        A mean is summed in float64, token by token: it does not depend on how the text was divided into passes.

        Args:
            texts: A text or token ids, or a list of such.
            pooling: `mean` of the tokens, the `last` or the first (`cls`) of them, or `none`: all, (T, E), or a list of such.
                By default as the model's file says, or else `last`.
            normalize: Whether to scale them to length 1.

        Raises AuguryError: by its kind, no such pooling, no embeddings, a text that has no tokens, or too many for the context.
        """
        kind = _checked_pooling(pooling, self.info)
        embeddings: np.ndarray | list[np.ndarray] = self._worker.answer(self._embedding(texts, kind, normalize=normalize))
        return embeddings

    async def aembed(self, texts: Any, *, pooling: str | None = None, normalize: bool = True) -> np.ndarray | list[np.ndarray]:
        """`embed` for asyncio: the event loop goes on meanwhile, and a task that is cancelled frees its slots."""
        steps = self._embedding(texts, _checked_pooling(pooling, self.info), normalize=normalize)
        embeddings: np.ndarray | list[np.ndarray] = await self._worker.answer_async(steps)
        return embeddings

    def _embedding(self, given: Any, pooling: str, *, normalize: bool) -> Callable[[Loop], Steps]:
        if "output" not in self.hidden_state_names:
            raise UnsupportedError("this backend has no embeddings; load the model with another one")
        texts = self._each(given)
        embeddings: list[Any] = [[] for _ in texts]

        def read(text: int, start: int, stop: int, passed: Pass, first: int, _: int) -> None:
            values = passed.features("output")[first : first + stop - start]
            if pooling == "mean":
                before = embeddings[text] if start else np.zeros(values.shape[1])
                embeddings[text] = np.add.reduce(np.vstack([before[None], values]), axis=0, dtype=np.float64)
            elif pooling == "none":
                embeddings[text].append(values.copy())
            elif start == 0 or pooling == "last":
                embeddings[text] = values[0 if pooling == "cls" else -1].copy()

        def result() -> Any:
            of_mean = pooling == "mean"
            found = [sums / len(text) if of_mean else sums for sums, text in zip(embeddings, texts, strict=True)]
            found = [np.concatenate(each) for each in found] if pooling == "none" else found
            scaled = [_unit(each) if normalize else each.astype(np.float32) for each in found]
            return _as_given(given, scaled if pooling == "none" else np.stack(scaled))

        return _reading(self._context, texts, read, result, features=("output",))

    async def arank(self, texts: Any) -> np.ndarray:
        """How well documents answer queries, of a model with a rank head, for asyncio.

        Args:
            texts: A list of token ids, as `RankHead.tokens` writes a query and a document.

        Returns:
            (n,) float64.

        Raises:
            AuguryError: By its kind: the model has no rank head, or a text has no tokens, or too many for the context.
        """
        if (head := self.info.rank_head) is None:
            raise UnsupportedError(f"{self.info.name} has no rank head; compare embeddings")
        return head.scores(await self._worker.answer_async(self._embedding(texts, "last", normalize=False)))

    @property
    def hidden_state_names(self) -> tuple[str, ...]:
        """What `hidden_states`, of the engine or of a request, may name."""
        return tuple(self._context.model.features)

    def hidden_states(self, texts: Any, names: Sequence[str]) -> Any:
        """The outputs of layers for every token, (T, F) float32 by name, as heads and other drafters read them.

        Args:
            texts: A text or token ids, or a list of such, which gives a list of such mappings.
            names: Features of the model: `layer.I`, the residual stream after layer I, counted from 0; `embedding`, the same
                before the first layer; `output`, the input of the output's matrix.

        Raises AuguryError: by its kind, no such features, a text that has no tokens, or too many for the context.
        """
        if isinstance(names, str):
            raise OptionError(f"names is {names!r}, expected a list of names, such as [{names!r}]")
        widths, each = self._context.model.features, self._each(texts)
        if missing := [name for name in names if name not in widths]:
            known = ", ".join(widths) or "none"
            raise UnsupportedError(f"{self.info.name} tells no hidden states {missing[0]!r}; expected some of: {known}")
        found = [{name: np.empty((len(text), widths[name]), np.float32) for name in names} for text in each]

        def read(text: int, start: int, stop: int, passed: Pass, first: int, _: int) -> None:
            for name, values in found[text].items():
                values[start:stop] = passed.features(name)[first : first + stop - start]

        steps = _reading(self._context, each, read, lambda: _as_given(texts, found), features=tuple(names))
        return self._worker.answer(steps)

    def _narrowing(self) -> Callable[[Pass], Pass]:
        """A function of a pass: its rows over the tokenizer's tokens alone, where there are logits of more."""
        n = self._n_vocab
        return (lambda passed: passed.first(n)) if n < self.info.n_vocab else lambda passed: passed

    def _each(self, texts: Any) -> list[np.ndarray]:
        return [self._tokens(text, None) for text in (texts if is_several(texts) else [texts])]


def _as_given(texts: Any, found: Any) -> Any:
    """What was found of texts, in a list only if they were."""
    return found if is_several(texts) else found[0]


def _logit_and_normalizer(passed: Pass, row: int, token: int) -> tuple[float, float]:
    normalizer = passed.log_normalizer(row)
    if not np.isfinite(normalizer):
        raise ModelFileError("the model's logits are not finite numbers; its weights are probably damaged")
    return float(passed.gather(row, np.array([token], np.int32))[0]), normalizer


def _reading(
    context: EngineContext,
    texts: Sequence[np.ndarray],
    read: Callable[[int, int, int, Pass, int, int], None],
    result: Callable[[], Any],
    *,
    rows: np.ndarray = _NO_ROWS,
    features: tuple[str, ...] = (),
) -> Callable[[Loop], Steps]:
    """Steps that compute as many texts at once as slots are free, with the logits of the positions `rows`, (r,) rising.

    `read` gets the text, from and to where a pass went on with it, the pass, and the first of its tokens and rows for that.
    `result` is called at the end.
    """

    def steps(loop: Loop) -> Steps:
        waiting = deque(range(len(texts)))
        places: dict[int, tuple[int, int]] = {}  # by text: its slot, and how many of its tokens are computed
        try:
            while waiting or places:
                while waiting and (slot := loop.slots.reserve(texts[waiting[0]])) is not None:
                    places[waiting.popleft()] = slot, 0
                feeds, n_left = [], loop.n_chunk
                for text, (slot, start) in places.items():
                    if len(tokens := texts[text][start : start + n_left]):
                        first, last = np.searchsorted(rows, (start, start + len(tokens)))
                        feeds.append((text, start, context.prepare(slot, tokens, (rows[first:last] - start).astype(np.int32))))
                        n_left -= len(tokens)
                if feeds:
                    begun_at, passed, at, row = perf_counter(), context.forward([feed for *_, feed in feeds], features), 0, 0
                    passed.wait()
                    forward_s, n_tokens = perf_counter() - begun_at, sum([feed.n_tokens for *_, feed in feeds])
                    if loop.on_round is not None:
                        guarded(loop.on_round, round=Round(len(feeds), n_tokens, 0, 0, 0, draft_s=0.0, forward_s=forward_s))
                    for text, start, feed in feeds:
                        stop = start + len(feed.tokens)
                        read(text, start, stop, passed, at, row)
                        at, row = at + feed.n_tokens, row + np.size(feed.rows)
                        context.commit(feed)
                        places[text] = feed.slot, stop
                        if stop == len(texts[text]):
                            loop.slots.release(places.pop(text)[0])
                yield None
        finally:
            for slot, _ in places.values():
                loop.slots.release(slot)
        yield result()

    return steps


def _checked_rows(rows: Any, n: int) -> np.ndarray:
    wanted = np.arange(n) if rows is None else np.asarray(rows).reshape(-1)
    wanted = wanted if len(wanted) else wanted.astype(np.int64)  # an empty list has no type of its own
    if wanted.dtype.kind not in "iu" or ((wanted < 0) | (wanted >= n)).any():
        raise OptionError(f"rows are {wanted.tolist()}, expected 0 to {n - 1}, the positions of the tokens given")
    return wanted


def _checked_pooling(asked: str | None, info: ModelInfo) -> str:
    """The pooling that a caller asks for, or else the model's file, or else `last`."""
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
