"""Granite 3 and 4, their models without experts, and MiniCPM, which scales like them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from augury.blocks import Gating, Layer, Output, Rope
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, mixture
from augury.plugins.architectures.state_space import mamba2
from augury.plugins.architectures.transformer import Transformer


class GraniteMoe(Transformer):
    """Llama, with scales of the embedding, of layers' outputs, of scores and of logits, and with experts."""

    name = "granitemoe"
    reading = {"may_have_experts": True}
    rotary = {"is_interleaved": True, "has_factors": True}

    @classmethod
    def unstated(cls, decoder: Decoder) -> Mapping[str, float | None]:  # noqa: ARG003 - families read it
        """The scales of files that do not state them: 0 is none, and None that they have to."""
        return {"embedding_scale": 0.0, "residual_scale": 0.0, "logit_scale": None}

    @classmethod
    def scale(cls, decoder: Decoder, key: str) -> float:
        """One of these scales."""
        return decoder.keys.number(key, cls.unstated(decoder)[key]) or 1.0

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        marks: dict[str, Any] = {"factor": cls.scale(decoder, "residual_scale"), "has_scales": False}
        mixer = (
            decoder.attention(layer, rope, factor=marks["factor"], **cls.mixing_of(decoder, layer))
            if decoder.n_kv_heads[layer]
            else mamba2(decoder, layer, factor=marks["factor"])
        )
        if has_experts(decoder, layer):
            return Layer(mixer, mixture(decoder, layer, gating=Gating.SOFTMAX, is_normalised=True, **marks))
        return Layer(mixer, decoder.feed_forward(layer, **marks))

    @classmethod
    def mixing_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:  # noqa: ARG003 - families read it
        return {"scale": decoder.keys.number("attention.scale", 0.0) or None}

    @classmethod
    def embedding(cls, decoder: Decoder) -> Mapping[str, Any]:
        return {"scale": cls.scale(decoder, "embedding_scale")}

    @classmethod
    def output(cls, decoder: Decoder) -> Output:
        return decoder.output(scale=1.0 / cls.scale(decoder, "logit_scale"))


class Granite(GraniteMoe):
    """The dense models, whose files may say that there is no rope."""

    name = "granite"

    @classmethod
    def rope(cls, decoder: Decoder) -> Rope | None:
        return super().rope(decoder) if decoder.keys.flag("rope.scaling.finetuned", default=True) else None


class GraniteHybrid(Granite):
    """Mamba-2 in layers that have no key heads."""

    name = "granitehybrid"
    reading = {"may_have_experts": True, "least": 0}

    @classmethod
    def unstated(cls, decoder: Decoder) -> Mapping[str, float | None]:
        return {**super().unstated(decoder), "logit_scale": 0.0}


class GraniteSwa(GraniteMoe):
    """Some layers see a window only, some have no rope, and all have sinks."""

    name = "granite_swa"

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        key = "attention.rope_pattern"  # llama.cpp takes note of an array alone
        has_pattern = isinstance(decoder.file.metadata.get(decoder.keys.full(key)), np.ndarray)
        return super().layer(decoder, layer, None if has_pattern and not decoder.flags(key, 0)[layer] else rope)

    @classmethod
    def mixing_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        sinks = decoder.vector(f"blk.{layer}.attn_sinks.weight", decoder.n_heads[layer])
        window = decoder.windows(None, is_required=True)[layer]
        return {**super().mixing_of(decoder, layer), "window": window, "sinks": sinks}


class MiniCPM(GraniteMoe):
    """Scales that the first files do not state, and none of scores."""

    name = "minicpm"

    @classmethod
    def unstated(cls, decoder: Decoder) -> Mapping[str, float | None]:
        residual_scale, logit_scale = 1.4 / math.sqrt(decoder.n_layers), 256.0 / decoder.n_embd
        return {"embedding_scale": 12.0, "residual_scale": residual_scale, "logit_scale": logit_scale}

    @classmethod
    def mixing_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:  # noqa: ARG003 - as its parent's
        return {}
