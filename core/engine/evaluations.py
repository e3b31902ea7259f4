"""`Evaluations`: the methods of an engine for texts that are not continued."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence as Items
from typing import Any

import numpy as np

from augury.engine.evaluation import Steps, checked_pooling
from augury.engine.loop import Loop
from augury.engine.request import checked_rows, is_several
from augury.engine.worker import Worker
from augury.errors import OptionError
from augury.options import check_count
from augury.text.tokenizer import Tokenizer
from augury.types import ModelInfo


class Evaluations(ABC):
    """Logits, log-probabilities, embeddings and hidden states of texts. The slots used forget their contents."""

    info: ModelInfo
    tokenizer: Tokenizer | None
    _worker: Worker

    @abstractmethod
    def _tokens(self, prompt: Any, messages: Any) -> np.ndarray:
        """The token ids of a text or a conversation, (T,) int32."""

    def evaluate(self, prompt: str | Items[int] | np.ndarray, rows: Items[int] | np.ndarray | None = None) -> np.ndarray:
        """The logits after every token of a text, without generating, in a free slot, whose contents are forgotten.

        Args:
            prompt: A text or T token ids.
            rows: R positions whose logits are wanted, in any order; None for all T.

        Returns:
            (R, V) float32.

        Raises:
            OptionError: A token or row is out of range, or there are none.
            CapacityError: The tokens do not fit into the context.
        """
        tokens = self._tokens(prompt, None)
        wanted = checked_rows(rows, len(tokens))
        rising, back = np.unique(wanted, return_inverse=True)
        logits: np.ndarray = self._worker.answer(lambda loop: loop.evaluate(tokens, rising))
        return logits if np.array_equal(rising, wanted) else logits[back]

    def score(self, texts: Any, *, logprobs: int = 0) -> list[Any]:
        """How probable the tokens of texts are. The slots used forget their contents.

        Args:
            texts: A text or token ids, or a list of such.
            logprobs: How many of the most probable tokens to report beside each.

        Returns:
            A `PromptToken` for each token of one text, the first without a log-probability; of several a list of such lists.

        Raises:
            AuguryError: By its kind: a text that has no tokens, or too many for the context, or a count below 0.
        """
        scored: list[Any] = self._worker.answer(self._scoring(texts, logprobs))
        return scored if is_several(texts) else scored[0]

    async def ascore(self, texts: Any, *, logprobs: int = 0) -> list[Any]:
        """`score` for asyncio: the event loop goes on meanwhile, and a task that is cancelled frees its slots."""
        scored: list[Any] = await self._worker.answer_async(await asyncio.to_thread(self._scoring, texts, logprobs))
        return scored if is_several(texts) else scored[0]

    def _scoring(self, texts: Any, logprobs: int) -> Callable[[Loop], Steps]:
        n_top, tokenizer = check_count("logprobs", logprobs, 0), self.tokenizer
        tokens = [self._tokens(text, None) for text in (texts if is_several(texts) else [texts])]
        return lambda loop: loop.score(tokens, n_top, lambda token: None if tokenizer is None else tokenizer.piece(token))

    def embed(self, texts: Any, *, pooling: str | None = None, normalize: bool = True) -> np.ndarray | list[np.ndarray]:
        """Embeddings: the inputs of the output's matrix. The slots used forget their contents.

        Args:
            texts: A text or token ids, or a list of such.
            pooling: `mean` of the tokens, the `last` or the first (`cls`) of them, or `none`: all. By default as the model's
                file says, or else `last`.
            normalize: Whether to scale them to length 1.

        Returns:
            (E,) float32 of one text, (n, E) of several; with `none` (T, E), or a list of such.

        Raises:
            AuguryError: By its kind: no such pooling, no embeddings, a text that has no tokens, or too many for the context.
        """
        embeddings = self._worker.answer(self._embedding(texts, pooling, normalize=normalize))
        return embeddings if is_several(texts) else embeddings[0]

    async def aembed(self, texts: Any, *, pooling: str | None = None, normalize: bool = True) -> np.ndarray | list[np.ndarray]:
        """`embed` for asyncio: the event loop goes on meanwhile, and a task that is cancelled frees its slots."""
        embeddings = await self._worker.answer_async(self._embedding(texts, pooling, normalize=normalize))
        return embeddings if is_several(texts) else embeddings[0]

    def _embedding(self, texts: Any, pooling: str | None, *, normalize: bool) -> Callable[[Loop], Steps]:
        kind = checked_pooling(pooling, self.info)
        tokens = [self._tokens(text, None) for text in (texts if is_several(texts) else [texts])]
        return lambda loop: loop.embed(tokens, pooling=kind, normalize=normalize)

    def hidden_states(self, texts: Any, names: Items[str]) -> Any:
        """The outputs of layers for every token, as heads and other drafters read them. The slots used forget their texts.

        Args:
            texts: A text or token ids, or a list of such.
            names: Features of the model: `layer.I`, the residual stream after layer I, counted from 0; `embedding`, the same
                before the first layer; `output`, the input of the output's matrix.

        Returns:
            (T, F) float32 by name of one text; of several a list of such mappings.

        Raises:
            AuguryError: By its kind: no such features, a text that has no tokens, or too many for the context.
        """
        if isinstance(names, str):
            raise OptionError(f"names is {names!r}, expected a list of names, such as [{names!r}]")
        tokens = [self._tokens(text, None) for text in (texts if is_several(texts) else [texts])]
        found: list[dict[str, np.ndarray]] = self._worker.answer(lambda loop: loop.hidden_states(tokens, tuple(names)))
        return found if is_several(texts) else found[0]
