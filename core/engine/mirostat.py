"""Sampler `mirostat`: keeps so many tokens that a text is as surprising as it is asked to be.

How much surprise is allowed, mu, follows from the surprise of the tokens before. A token's distribution is kept until the next
one is asked for; then the history says which it was. So nothing has to be undone where a draft was rejected: tokens are asked
for in their order, and none after one that was wrong.

Source: Basu et al. 2020, "Mirostat" (arXiv 2007.14966), algorithms 1 and 2; as llama.cpp b11434 has them
(`src/llama-sampler.cpp`).
"""

from __future__ import annotations

import numpy as np
from attrs import define, field

from augury.engine.sampling_step import best_first

_N_FITTED = 100  # of the most probable tokens, which the exponent of Zipf's law is estimated from


@define(eq=False)
class Mirostat:
    """One request's."""

    _version: int  # 1 or 2
    _tau: float  # surprise that is aimed at, in bits
    _eta: float  # how fast it is corrected
    _n_vocab: int  # V
    mu: float  # the surprise that is allowed of the last token, in bits
    _index: int = field(default=0, init=False)
    _drawn_from: tuple[np.ndarray, np.ndarray] | None = field(default=None, init=False)  # of the token asked for last

    def go_on(self, history: np.ndarray, index: int) -> None:
        """Token `index` of the request is asked for, after `history`."""
        if index != self._index and self._drawn_from is not None:
            ids, probabilities = self._drawn_from
            drawn = probabilities[ids == history[-1]]
            if len(drawn) and drawn[0] > 0:
                self.mu -= self._eta * (-float(np.log2(drawn[0])) - self._tau)
        self._index, self._drawn_from = index, None

    def keep(self, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens among these to draw from, (n,) int32, and their logits (n,) float64.

        Of `ids` (m,) and `logits` (m,), as of the result, the best token is the first, the others come in any order.
        """
        if self._version == 1:
            n = self._n_kept(ids, logits)
            is_kept = logits >= np.partition(logits, -n)[-n]
            return (ids[is_kept], logits[is_kept]) if np.count_nonzero(is_kept) == n else best_first(ids, logits, n)
        below = logits - logits[0]
        weights = np.exp(below)
        is_kept = (below >= np.log(weights.sum()) - self.mu * np.log(2)) & (weights > 0)
        is_kept[0] = True
        return ids[is_kept], logits[is_kept]

    def _n_kept(self, ids: np.ndarray, logits: np.ndarray) -> int:
        """How many the first algorithm keeps."""
        n_possible = int(np.count_nonzero(logits > -np.inf))
        fitted = best_first(ids, logits, min(_N_FITTED, n_possible))[1]
        if len(fitted) < 2:
            return 1
        t = np.log(np.arange(2, len(fitted) + 1) / np.arange(1, len(fitted)))
        s_hat = float((t * -np.diff(fitted)).sum() / (t * t).sum())
        if s_hat <= 0:  # all are equal: nothing says where to cut
            return n_possible
        epsilon = s_hat - 1
        with np.errstate(all="ignore"):
            scale = np.float64(epsilon) / (1 - np.float64(self._n_vocab) ** -epsilon) if epsilon else 1 / np.log(self._n_vocab)
            k = (scale * np.float64(2) ** self.mu) ** (1 / s_hat)
        return max(int(min(k, n_possible)), 1)

    def draws_from(self, ids: np.ndarray, probabilities: np.ndarray) -> None:
        """The token asked for is drawn from these."""
        self._drawn_from = ids, probabilities
