"""Rotary position embedding: what the scalings of long-context models do to its frequencies.

A rope turns pair i of a head by `position * frequencies[i]` and multiplies by a magnitude (`augury.blocks.Rope`). Every scaling
in use is a change of these two, worked out once when a model is loaded.
"""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen

__all__ = ["Yarn", "linear", "plain"]


def plain(n_rot: int, base: float, factors: np.ndarray | None = None) -> np.ndarray:
    """Compute the frequencies that a model is trained with.

    Pair i turns by base^(-2i / n_rot) radians per position: the first pairs fast, the last ones hardly.

    Args:
        n_rot: Values of a head that are turned, two to a pair.
        base: How slow the last pairs are; 10,000 in the paper.
        factors: (n_rot / 2,), divide the frequencies; llama 3 stores them as the tensor `rope_freqs.weight`.

    Returns:
        (n_rot / 2,) float64, radians per position.

    >>> plain(4, 10000.0).tolist()
    [1.0, 0.01]

    Source: Su et al. 2021, "RoFormer", section 3.2.2.
    """
    frequencies: np.ndarray = base ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    return frequencies if factors is None else frequencies / factors


def linear(frequencies: np.ndarray, factor: float) -> np.ndarray:
    """Squeeze `factor` times the context into the angles that the model knows (position interpolation).

    Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation".
    """
    return frequencies / factor


@frozen
class Yarn:
    """YaRN: pairs that turn often within the trained context keep their frequency, slow ones are interpolated.

    Between those two kinds, over the pairs from `beta_fast` to `beta_slow` turns, the share of interpolation rises linearly.

    Source: Peng et al. 2023, "YaRN", section 3.2; boundaries rounded and the magnitude taken as ggml's rope does.
    """

    factor: float  # how much longer the context is than the trained one
    n_ctx_original: int  # positions that the model was trained on before
    beta_fast: float = 32.0  # turns within n_ctx_original, from which on a pair is left alone
    beta_slow: float = 1.0  # turns up to which a pair is interpolated fully
    strength: float = 1.0  # share of the original frequency that the fast pairs keep (ggml's ext_factor)
    log_multiplier: float = 0.0  # of the magnitude's own correction; 0 where the model has none

    def frequencies(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Scale `frequencies` (n,) of a rope with this `base`; returns (n,) float64."""
        n_pairs = len(frequencies)
        low = max(0.0, math.floor(self._pair(self.beta_fast, n_pairs, base)))
        high = min(2 * n_pairs - 1.0, math.ceil(self._pair(self.beta_slow, n_pairs, base)))
        # 0.001: ggml's own guard for boundaries that coincide
        share: np.ndarray = np.clip((np.arange(n_pairs) - low) / max(0.001, high - low), 0.0, 1.0)
        kept: np.ndarray = (1.0 - share) * self.strength
        scaled: np.ndarray = frequencies * kept + linear(frequencies, self.factor) * (1.0 - kept)
        return scaled

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by: sharper attention makes up for the longer context."""
        return self._sharpness(1.0) / self._sharpness(self.log_multiplier)

    def _sharpness(self, multiplier: float) -> float:
        return 1.0 + 0.1 * multiplier * math.log(self.factor) if self.factor > 1.0 else 1.0

    def _pair(self, n_turns: float, n_pairs: int, base: float) -> float:
        """The pair, as a fraction, that turns `n_turns` times within the original context."""
        return n_pairs * math.log(self.n_ctx_original / (n_turns * 2.0 * math.pi)) / math.log(base)
