"""Gemma 1 to 3, their text models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from augury.blocks import Activation, Layer, ModelPlan, Output
from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import base_of, local_base
from augury.plugins.architectures.transformer import Transformer

_N_LAYERS_27B = {"gemma2": 46, "gemma3": 62}  # this size alone scales by E / H instead of D, and files do not say so


class Gemma(Transformer):
    """Embeddings scaled by sqrt(E), GELU gates; its norms multiply by 1 + w, and files hold the sum."""

    name = "gemma"
    feeding = {"activation": Activation.GELU_HALF, "has_scales": False}

    @classmethod
    def mixing_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:  # noqa: ARG003 - as its parent's
        """The scale of its scores."""
        return {"scale": 1.0 / math.sqrt(decoder.value_dim)}

    @classmethod
    def embedding(cls, decoder: Decoder) -> Mapping[str, Any]:
        """What the embedding has beside its weight."""
        return {"scale": math.sqrt(decoder.n_embd)}

    @classmethod
    def output(cls, decoder: Decoder) -> Output:
        """The last block."""
        return decoder.output(is_tied=True)


class Gemma2(Gemma):
    """Norms before and after attention and feed-forward, soft caps; every other layer sees a window only."""

    name = "gemma2"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file)
        wide_rope = decoder.rope()
        local_rope = decoder.rope(base=local_base(decoder))
        softcap = decoder.keys.positive("attn_logit_softcapping", 50.0)
        layers = []
        for layer, window in enumerate(decoder.windows(2, default=4096)):
            rope = wide_rope if window is None else local_rope
            common: dict[str, Any] = {"scale": _scale(decoder), "window": window, "softcap": softcap}
            attention = decoder.attention(layer, rope, has_post_norm=True, **common)
            layers.append(Layer(attention, decoder.feed_forward(layer, has_post_norm=True, **cls.feeding)))
        output = decoder.output(is_tied=True, softcap=decoder.keys.positive("final_logit_softcapping", 30.0))
        return {"main": decoder.plan(layers, output=output, **cls.embedding(decoder))}


class Gemma3(Gemma):
    """Normed heads; five layers of six see a window only, with a rope of their own."""

    name = "gemma3"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file)
        keys = decoder.keys
        scale = keys.number("attention.scale", 0.0) or _scale(decoder)
        wide_rope = decoder.rope()
        local_rope = decoder.rope(base=base_of(decoder, "rope.freq_base_swa"), is_scaled=False)
        layers = []
        for layer, window in enumerate(decoder.windows(6)):
            rope = wide_rope if window is None else local_rope
            attention = decoder.attention(layer, rope, scale=scale, has_head_norms=True, has_post_norm=True, window=window)
            layers.append(Layer(attention, decoder.feed_forward(layer, has_post_norm=True, **cls.feeding)))
        output = decoder.output(softcap=keys.number("final_logit_softcapping", 0.0) or None)
        return {"main": decoder.plan(layers, output=output, **cls.embedding(decoder))}


def _scale(decoder: Decoder) -> float:
    """What q · k is multiplied by."""
    is_27b = decoder.n_layers == _N_LAYERS_27B[decoder.file.architecture]
    return 1.0 / math.sqrt(decoder.n_embd // decoder.n_heads[0] if is_27b else decoder.head_dim)


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `gemma`, `gemma2` and `gemma3`."""
    return (Gemma, Gemma2, Gemma3)
