"""Perplexity of a long text, over the windows that llama.cpp's `llama-perplexity` takes, so that the figures compare."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from attrs import frozen

from augury.errors import OptionError
from augury.options import check_count

WINDOW = 512
"""Tokens of a window, as llama.cpp has them."""


@frozen
class Perplexity:
    """How well a model predicts a text: the exponential of the mean negative log-likelihood of a token."""

    value: float
    error: float  # its standard error, as if tokens were independent of each other
    n_tokens: int  # that were predicted
    n_windows: int

    @classmethod
    def of(cls, logprobs: Sequence[np.ndarray]) -> Perplexity:
        """From the log-probabilities of the tokens predicted in each window, (t,) float64 each."""
        lost = -np.concatenate(logprobs)
        value = math.exp(lost.mean())
        error = value * lost.std() / math.sqrt(len(lost) - 1) if len(lost) > 1 else math.inf
        return cls(value, float(error), len(lost), len(logprobs))


def windows_of(tokens: np.ndarray, window: int, n_windows: int | None, bos: int | None) -> np.ndarray:
    """The windows of a text (T,) int32: its first `n_windows` equal parts, (n, window) int32, or all, without the rest.

    With `bos` that takes the place of each window's first token. Raises OptionError: a window has fewer than 4, or the text
    fewer than that.
    """
    n = len(tokens) // check_count("window", window, 4)
    if not n:
        raise OptionError(f"the text has {len(tokens)} tokens, expected at least {window}, a window; give a longer text")
    n = n if n_windows is None else min(n, check_count("n_windows", n_windows, 1))
    windows: np.ndarray = tokens[: n * window].reshape(n, window).copy()
    if bos is not None:
        windows[:, 0] = bos
    return windows
