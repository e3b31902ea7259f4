"""Gemma 3, its text models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from augury.blocks import Activation, Layer, ModelPlan
from augury.errors import UnsupportedError
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile

_PERIOD = 6  # one layer in six sees everything, where the file does not say otherwise
_N_LAYERS_27B = 62  # this size alone scales by E / H instead of D, and files do not say so


class Gemma3(Architecture):
    """Norms before and after attention and feed-forward, GELU gates; most layers see a window only, with a rope of their own.

    Its norms multiply by 1 + w; files hold the sum.
    """

    name = "gemma3"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file)
        keys = decoder.keys
        if keys.number("final_logit_softcapping", 0.0):
            raise UnsupportedError(f"{file.path}: {keys.full('final_logit_softcapping')!r} is set; it is not supported")
        scale = keys.number("attention.scale", 0.0) or _scale(decoder)
        window = keys.count("attention.sliding_window", 0, least=0) or None
        wide_rope, local_rope = decoder.rope(), decoder.rope(base_key="rope.freq_base_swa", is_scaled=False)
        layers = []
        for layer, is_local in enumerate(_is_local(decoder)):
            is_narrow = is_local and window is not None
            attention = decoder.attention(
                layer,
                local_rope if is_narrow else wide_rope,
                scale=scale,
                has_head_norms=True,
                has_post_norm=True,
                window=window if is_narrow else None,
            )
            feed_forward = decoder.feed_forward(layer, Activation.GELU, has_post_norm=True, has_scales=False)
            layers.append(Layer(attention, feed_forward))
        return {"main": decoder.plan(layers, embedding_scale=math.sqrt(decoder.n_embd))}


def _scale(decoder: Decoder) -> float:
    """What q · k is multiplied by."""
    is_27b = decoder.n_layers == _N_LAYERS_27B
    return 1.0 / math.sqrt(decoder.n_embd / decoder.n_heads[0] if is_27b else decoder.head_dim)


def _is_local(decoder: Decoder) -> list[bool]:
    """By layer, whether it sees a window only: every n-th sees all where the file gives a number, else as its array says."""
    key, n_layers = "attention.sliding_window_pattern", decoder.n_layers
    pattern = decoder.file.metadata.get(decoder.keys.full(key))
    if isinstance(pattern, np.ndarray):
        if pattern.shape != (n_layers,) or pattern.dtype.kind not in "iub":
            decoder.keys.fail(key, f"an array of {pattern.size} {pattern.dtype}", f"{n_layers} truth values, one per layer")
        return [bool(is_local) for is_local in pattern]
    period = decoder.keys.count(key, _PERIOD)
    return [layer % period < period - 1 for layer in range(n_layers)]


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `gemma3`."""
    return (Gemma3,)
