"""Rotary position embedding: its frequencies under the scalings of long-context models.

A rope turns pair i of a head by `position * frequencies[i]` and multiplies by a magnitude (`augury.blocks.Rope`). Every scaling
in use is a change of these two, worked out once when a model is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import TYPE_CHECKING, Literal

import numpy as np
from attrs import frozen

from augury.blocks import Rope
from augury.errors import ModelFileError, UnsupportedError

if TYPE_CHECKING:
    from augury.plugins.architectures.tensors import Tensors

MAX_POSITIONS = (1 << 31) - 1  # the limit of int32 positions
_LEAST = 0.001  # of the divisors in rope scaling: no model is near, and angles stay finite
_LEAST_BASE = 1.001


def of_file(
    decoder: Tensors,
    *,
    base: float | None = None,
    n_rot: int | None = None,
    is_scaled: bool = True,
    is_interleaved: bool = False,
    has_factors: bool = False,
    sections: Literal["blocks", "turns"] | None = None,
    yarn_keys: Container[str] = (),
) -> Rope:
    """Rotary positions with the scaling that a file states.

    Args:
        base: The base of the frequencies, if it is not `base_of(decoder)`.
        n_rot: Values of a head that are turned, where these layers do not turn `decoder.n_rot`.
        is_scaled: Whether the file's scaling applies to these layers.
        is_interleaved: How the family pairs values (see `Rope`).
        has_factors: Whether the family divides frequencies by tensors of the file, if it has them: `rope_freqs`, or
            `rope_factors_long` and `rope_factors_short` for contexts that are longer than the original one, or not.
        sections: How the family deals pairs out to the axes of an image, in blocks or in turns. In a text all axes but the
            last of four are the position; pairs of the last stay as they are. Files that state three axes, as Ollama's do,
            or none have no pair of the last.
        yarn_keys: Which of the keys `rope.scaling.yarn_*` the family reads: `beta_fast`, `beta_slow`, `log_multiplier`.

    Source: the keys `rope.scaling.*` as llama.cpp reads them; 0 stands for "not set".
    """
    keys = decoder.keys
    base = base_of(decoder) if base is None else base
    n_rot = decoder.n_rot if n_rot is None else n_rot
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedError(
            f"{decoder.file.path}: {keys.full('rope.scaling.type')!r} is {kind!r}; known are none, linear, yarn and longrope"
        )
    factor = (keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0) if kind != "none" else 1.0
    if factor < _LEAST:
        keys.number("rope.scaling.factor", factor, least=_LEAST)
    magnitude = keys.number("rope.scaling.attn_factor", 0.0) or 1.0

    def n_ctx_original() -> int:
        return keys.count("rope.scaling.original_context_length", 0, least=0, most=MAX_POSITIONS) or decoder.n_ctx_train

    yarn = None
    if kind == "yarn":

        def number(name: str, default: float, least: float = _LEAST) -> float:
            return keys.number(f"rope.scaling.yarn_{name}", default, least=least) if name in yarn_keys else default

        yarn = Yarn(
            factor=factor,
            n_ctx_original=n_ctx_original(),
            beta_fast=number("beta_fast", 32.0),
            beta_slow=number("beta_slow", 1.0),
            log_multiplier=number("log_multiplier", 0.0, 0.0),
        )
        magnitude *= yarn.magnitude if is_scaled else yarn.magnitude / (1.0 + 0.1 * math.log(factor))

    def scaled(factors: np.ndarray | None) -> np.ndarray:
        frequencies = plain(n_rot, base, factors)
        if sections is not None:
            frequencies[_is_of_last_axis(decoder, len(frequencies), sections)] = 0.0
        if not is_scaled:
            return frequencies
        return linear(frequencies, factor) if yarn is None else yarn.frequencies(frequencies, base)

    short, long = _factors(decoder) if has_factors else (None, None)
    if short is long:
        return Rope(scaled(short), magnitude, is_interleaved)
    return Rope(scaled(short), magnitude, is_interleaved, scaled(long), n_ctx_original())


def base_of(decoder: Tensors, key: str = "rope.freq_base", default: float = 10000.0) -> float:
    """The base of frequencies."""
    return decoder.keys.number(key, default, least=_LEAST_BASE)


def local_base(decoder: Tensors) -> float:
    """The base of frequencies of layers with a window: the other layers' if the file does not state it."""
    return base_of(decoder, "rope.freq_base_swa", base_of(decoder))


def own_local_base(decoder: Tensors) -> float:
    """The same of families where the other layers' base says nothing of them."""
    return base_of(decoder, "rope.freq_base_swa")


def local_size(decoder: Tensors) -> int:
    """How many values of a head layers with a window turn: as many as others where the file says nothing of them."""
    key = "rope.dimension_count_swa"
    n_rot = decoder.keys.count(key, decoder.n_rot, least=2, most=decoder.head_dim)
    if n_rot % 2:
        decoder.keys.fail(key, n_rot, "an even number")
    return n_rot


def axes(decoder: Tensors) -> Literal["blocks"] | None:
    """The `sections` of families whose files state axes of an image where they have them; see `of_file`."""
    sections = _sections(decoder)
    return "blocks" if sections is not None and sections[0] and sections[1] else None


def _factors(decoder: Tensors) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The divisors of frequencies, (n_rot / 2,) each: for contexts up to the original one, and for longer ones."""
    divisors: dict[str, np.ndarray | None] = {}
    for name in ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"):
        divisors[name] = values = None
        if f"{decoder.prefix}{name}" in decoder.file.tensors:
            divisors[name] = values = decoder.values(name, decoder.n_rot // 2)
            if not values.all():
                raise ModelFileError(f"{decoder.file.path}: tensor {name!r} holds a 0, expected divisors")
    always, short, long = divisors.values()
    return (short, long) if always is None else (always, always)


def _sections(decoder: Tensors) -> tuple[int, ...] | None:
    """How many pairs each of four axes has; None where the file does not say."""
    key = "rope.dimension_sections"
    if key not in decoder.keys:
        return None
    stated = decoder.file.metadata[decoder.keys.full(key)]
    n = 3 if isinstance(stated, np.ndarray) and stated.size == 3 else 4
    return (*decoder.keys.counts(key, n, least=0), 0)[:4]


def _is_of_last_axis(decoder: Tensors, n_pairs: int, sections: str) -> np.ndarray:
    """Which pairs turn by the last of four axes, (n_pairs,) bool, as ggml's rope deals them out."""
    if (sizes := _sections(decoder)) is None:
        return np.zeros(n_pairs, bool)
    if sum(sizes) == 0:
        decoder.keys.fail("rope.dimension_sections", list(sizes), "sizes of which one is above 0")
    sector = np.arange(n_pairs) % sum(sizes)
    if sections == "blocks":
        return sector >= sum(sizes[:3])
    return sector >= 3 * np.array(sizes)[sector % 3]


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
    log_multiplier: float = 0.0  # of the magnitude's own correction; 0 where the model has none

    def frequencies(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Scale `frequencies` (n,) of a rope with this `base`; returns (n,) float64."""
        n_pairs = len(frequencies)
        low = max(0.0, math.floor(self._pair(self.beta_fast, n_pairs, base)))
        high = min(2 * n_pairs - 1.0, math.ceil(self._pair(self.beta_slow, n_pairs, base)))
        # 0.001: ggml's own guard for boundaries that coincide
        share: np.ndarray = np.clip((np.arange(n_pairs) - low) / max(0.001, high - low), 0.0, 1.0)
        kept: np.ndarray = 1.0 - share
        scaled: np.ndarray = frequencies * kept + linear(frequencies, self.factor) * (1.0 - kept)
        return scaled

    @property
    def magnitude(self) -> float:
        """The factor of cos and sin: sharper attention makes up for the longer context."""
        return self._sharpness(1.0) / self._sharpness(self.log_multiplier)

    def _sharpness(self, multiplier: float) -> float:
        return 1.0 + 0.1 * multiplier * math.log(self.factor) if self.factor > 1.0 else 1.0

    def _pair(self, n_turns: float, n_pairs: int, base: float) -> float:
        """The pair, as a fraction, that turns `n_turns` times within the original context."""
        return n_pairs * math.log(self.n_ctx_original / (n_turns * 2.0 * math.pi)) / math.log(base)
