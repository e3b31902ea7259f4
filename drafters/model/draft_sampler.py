"""Draws drafts from the draft model's own distribution, for verification by rejection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np

from augury.engine.sampler import Sampler, random_stream
from augury.passes import Pass

if TYPE_CHECKING:
    from augury.sampling import SamplingParams


class DraftSampler:
    """Draws one request's drafts as the request draws its tokens: the nearer the two distributions are, the more is accepted.

    Whether a token is drawn must not depend on which one it would be, or the target's draws instead would have another
    distribution; so tokens that the target lacks are left out before.
    """

    def __init__(self, params: SamplingParams, *, n_drawn: int, n_vocab: int) -> None:
        """Prepare to draw.

        Args:
            params: The request's, with its seed.
            n_drawn: V of the draft model.
            n_vocab: V of the target.
        """
        known = {token: bias for token, bias in params.logit_bias.items() if token < n_drawn}
        self._sampler = Sampler(attrs.evolve(params, logit_bias=known), n_vocab=n_drawn)
        self._n_vocab = n_vocab
        # the streams that follow the seed's belong to the target: one to draw by, one to accept by
        self._stream = random_stream(self._sampler.params.seed, 2)

    def draw(self, logits: Pass, row: int, text: np.ndarray) -> tuple[int, np.ndarray] | None:
        """The token after `text` (t,) int32 and its distribution, (V,) float32; None if the target has none."""
        ids, probabilities = self._sampler.distribution(logits, row, text, len(text))
        is_known = (ids >= 0) & (ids < self._n_vocab)
        if not is_known.any():
            return None
        weights = np.zeros(self._n_vocab, np.float32)
        weights[ids[is_known]] = probabilities[is_known] / probabilities[is_known].sum()
        sums = np.cumsum(weights[ids[is_known]], dtype=np.float64)
        place = int(np.searchsorted(sums, self._stream.random() * sums[-1], side="right"))
        return int(ids[is_known][min(place, len(sums) - 1)]), weights
