"""Sampler `dry`: lowers the logits of tokens that would continue a repetition of earlier text.

A token that followed an earlier occurrence of the text's last n tokens loses `multiplier * base ** (n - allowed_length)`, where
n is at least `allowed_length`. A repetition does not reach back over a *breaker*, a text such as a line break::

    a b c x . a b c        n 3: x loses; nothing follows "b c" or "c" that did not follow "a b c"

Source: llama.cpp b11434, `src/llama-sampler.cpp` (`llama_sampler_dry`), which has it from KoboldCpp's pull request 982.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import Factory, frozen

from augury.engine.sampling_step import Adjustment

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

Breakers = Mapping[int, Sequence[tuple[int, ...]]]
"""By token: the tokens that complete a breaker after it; () if it holds one by itself."""

_LONGEST_TEXT, _LONGEST_TAIL = 40, 20  # bytes of a breaker, tokens of one: llama.cpp's
_LOG_LARGEST = 88.7228391  # of float32: no penalty is larger


@frozen(eq=False)
class Dry(Adjustment):
    """The penalties of one request."""

    multiplier: float
    base: float
    allowed_length: int
    n_last: int
    breakers: Breakers = Factory(dict)

    @property
    def is_neutral(self) -> bool:
        return self.multiplier == 0.0 or self.n_last == 0

    def recent(self, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that would go on with a repetition, rising, and how long it would be before them."""
        text = history if self.n_last < 0 else history[-self.n_last :]
        most = self._n_back(text)
        if len(text) <= self.allowed_length or most < self.allowed_length:
            return _NO_TOKENS, _NO_TOKENS
        longest = self.allowed_length + int(_LOG_LARGEST / math.log(self.base)) if self.base > 1.000001 else len(text)
        back = np.arange(1, len(text))  # how far before the text's end an earlier occurrence ends
        n_same = np.zeros(len(text), np.int64)
        for n in range(min(most, longest, len(text) - 1)):
            back = back[back < len(text) - n]
            back = back[text[-1 - n - back] == text[-1 - n]]
            if not len(back):
                break
            n_same[back] = n + 1
        (back,) = np.nonzero((n_same >= self.allowed_length) & (np.arange(len(text)) > 0))
        tokens, places = np.unique(text[len(text) - back], return_inverse=True)
        lengths = np.zeros(len(tokens), np.int64)
        np.maximum.at(lengths, places, n_same[back])
        is_penalised = np.array([() not in self.breakers.get(token, ()) for token in tokens.tolist()], bool)
        return tokens[is_penalised], lengths[is_penalised]

    def changed(self, logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The logits of tokens that would go on with repetitions of these lengths."""
        return logits - self.multiplier * self.base ** (counts - self.allowed_length).astype(np.float64)

    def _n_back(self, text: np.ndarray) -> int:
        """How many of the last tokens stand after the last breaker."""
        tokens = text[::-1].tolist() if self.breakers else []
        for i, token in enumerate(tokens):
            tails = (tail for tail in self.breakers.get(token, ()) if len(tail) <= i)
            lengths = [len(tail) for tail in tails if tuple(tokens[i - len(tail) : i][::-1]) == tail]
            if lengths:
                return i - max(lengths)
        return len(text)


_NO_TOKENS = np.empty(0, np.int64)


def breakers(tokenizer: Tokenizer, texts: Sequence[str]) -> Breakers:
    """The tokens of breakers: tokens that hold one, and tokens that begin one, with the rest of it."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for text in texts:
        wanted = text.encode()[:_LONGEST_TEXT]
        tails = {
            wanted[:n]: tuple(tokenizer.encode(wanted[n:].decode(errors="ignore"), add_special=False)[:_LONGEST_TAIL])
            for n in range(1, len(wanted))
        }
        for token in range(tokenizer.n_vocab):
            piece = tokenizer.piece(token)
            ways = [()] if wanted in piece else [tail for head, tail in tails.items() if piece.endswith(head)]
            if ways:
                found.setdefault(token, []).extend(ways)
    return found
