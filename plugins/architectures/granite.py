"""Granite 3 and 4, their models without experts, and MiniCPM, which scales like them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from augury.blocks import Gating, Layer, ModelPlan, Vector
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, mixture
from augury.plugins.architectures.state_space import mamba2

_ROPE = {"is_interleaved": True, "has_factors": True}


class Granite(Architecture):
    """Llama, with scales for the embedding, for what layers add, for scores and for logits."""

    name = "granite"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, may_have_experts=True)
        keys = decoder.keys
        rope = decoder.rope(**_ROPE) if keys.flag("rope.scaling.finetuned", default=True) else None
        return {"main": _plan(decoder, [{"rope": rope}] * decoder.n_layers)}


class GraniteMoe(Architecture):
    """Granite with experts, one of them shared; it has rope in any case."""

    name = "granitemoe"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, may_have_experts=True)
        return {"main": _plan(decoder, [{"rope": decoder.rope(**_ROPE)}] * decoder.n_layers)}


class GraniteSwa(Architecture):
    """Some layers see a window only, some have no rope, and all have sinks."""

    name = "granite_swa"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, may_have_experts=True)
        rope = decoder.rope(**_ROPE)
        key = "attention.rope_pattern"  # llama.cpp takes note of an array alone
        has_pattern = isinstance(file.metadata.get(decoder.keys.full(key)), np.ndarray)
        turns = decoder.flags(key, 0) if has_pattern else [True] * decoder.n_layers
        windows = decoder.windows(None, is_required=True)
        parts: list[dict[str, Any]] = []
        for layer in range(decoder.n_layers):
            sinks = Vector(f"blk.{layer}.attn_sinks.weight", decoder.n_heads[layer])
            file.tensor(sinks.weight, (sinks.size,))
            parts.append({"rope": rope if turns[layer] else None, "window": windows[layer], "sinks": sinks})
        return {"main": _plan(decoder, parts)}


class GraniteHybrid(Architecture):
    """Granite, with Mamba-2 in layers that have no key heads."""

    name = "granitehybrid"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, least=0, may_have_experts=True)
        keys = decoder.keys
        rope = decoder.rope(**_ROPE) if keys.flag("rope.scaling.finetuned", default=True) else None
        return {"main": _plan(decoder, [{"rope": rope}] * decoder.n_layers, logit_scale=0.0)}


class MiniCPM(Architecture):
    """Granite, with scales that the first files do not state."""

    name = "minicpm"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, may_have_experts=True)
        rope = decoder.rope(**_ROPE)
        return {
            "main": _plan(
                decoder,
                [{"rope": rope}] * decoder.n_layers,
                embedding_scale=12.0,
                residual_scale=1.4 / math.sqrt(decoder.n_layers),
                logit_scale=256.0 / decoder.n_embd,
                has_attention_scale=False,
            )
        }


def _plan(
    decoder: Decoder,
    attentions: list[dict[str, Any]],
    *,
    embedding_scale: float = 0.0,
    residual_scale: float = 0.0,
    logit_scale: float | None = None,
    has_attention_scale: bool = True,
) -> ModelPlan:
    """The plan, given arguments of `Decoder.attention` by layer and the scales of files that do not state them; 0 is none."""
    keys = decoder.keys
    residual = keys.number("residual_scale", residual_scale) or 1.0
    scale = (keys.number("attention.scale", 0.0) or None) if has_attention_scale else None
    marks: dict[str, Any] = {"factor": residual, "has_scales": False}
    layers = []
    for layer, parts in enumerate(attentions):
        mixer = (
            decoder.attention(layer, scale=scale, factor=residual, **parts)
            if decoder.n_kv_heads[layer]
            else mamba2(decoder, layer, factor=residual)
        )
        if has_experts(decoder, layer):
            experts = mixture(decoder, layer, gating=Gating.SOFTMAX, is_normalised=True, **marks)
            layers.append(Layer(mixer, experts))
        else:
            layers.append(Layer(mixer, decoder.feed_forward(layer, **marks)))
    logits = decoder.output(scale=1.0 / (keys.number("logit_scale", logit_scale) or 1.0))
    return decoder.plan(layers, output=logits, scale=keys.number("embedding_scale", embedding_scale) or 1.0)
