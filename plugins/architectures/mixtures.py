"""Families that have mixtures of experts alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from augury.blocks import Activation, GateKind, Gating, Layer, NormKind, Rope
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import expert_limit, mixture
from augury.plugins.architectures.rope import base_of, local_base, local_size, own_local_base, plain
from augury.plugins.architectures.transformer import Transformer, gates

_PERIOD = 4


GptOss = Transformer.family(
    "gpt-oss",
    "gpt-oss: every other layer sees a window; sinks, biases everywhere, a SwiGLU of its own.",
    local_rotary={"base": local_base},
    windows={"period": 2, "is_required": True},
    attention_args={"sinks": lambda decoder, layer: decoder.vector(f"blk.{layer}.attn_sinks.weight", decoder.n_heads[layer])},
    experts={
        "gating": Gating.SOFTMAX_OF_CHOSEN,
        "is_normalised": False,
        "activation": Activation.SWIGLU_OAI,
        "norm": "post_attention_norm",
    },
)
MinimaxM2 = Transformer.family(
    "minimax-m2",
    "Queries and keys are normed over all heads; experts are chosen by sigmoids with a bias.",
    attention_args={"has_joint_norms": True},
    experts={"is_normalised": True},
)
Dots1 = Transformer.family(
    "dots1",
    "Normed heads; the first layers have no experts.",
    attention_args={"has_head_norms": True},
    experts={"has_weights_scale": True},
)
BailingMoe = Transformer.family(
    "bailingmoe",
    "Ling 1: one expert is shared.",
    rope_args={"is_interleaved": True, "has_factors": True},
    experts={"has_weights_scale": True, "gating": Gating.SOFTMAX},
)
BailingMoe2 = Dots1.family("bailingmoe2", "Ling 2: normed heads; the first layers have no experts.")
DeepSeek = Transformer.family(
    "deepseek",
    "The first DeepSeek: its attention is Llama's, and some experts are shared.",
    rope_args={"is_interleaved": True, "has_factors": True},
    attention_args={"scale": lambda decoder, _: decoder.keys.number("attention.scale", 0.0) or None},
    experts={"has_weights_scale": True, "gating": Gating.SOFTMAX, "is_normalised": False},
)


class DeepSeekOcr(Transformer):
    """The text model of DeepSeek-OCR: DeepSeek 2 with Llama's attention, and a rope that nothing stretches."""

    name = "deepseek2-ocr"
    attention_args = {"has_output_bias": False}
    experts = {"has_weights_scale": True}

    @classmethod
    def rope(cls, decoder: Decoder) -> Rope:
        return Rope(plain(decoder.head_dim, base_of(decoder)))


class Mellum(Transformer):
    """Normed heads; three layers of four see a window, where there is one, and do not stretch their rope."""

    name = "mellum"
    windows = {"period": _PERIOD}
    attention_args = {"has_head_norms": True}
    experts = {"gating": Gating.SOFTMAX, "is_normalised": True, "has_scales": True}

    @classmethod
    def local_rope(cls, decoder: Decoder, rope: Rope | None) -> Rope:  # noqa: ARG003 - as its parent's
        return Rope(decoder.rope(is_scaled=False).frequencies)


Afmoe = Transformer.family(
    "afmoe",
    "Trinity: gated attention, normed heads, norms before and after all; layers that see everything have no rope.",
    local_rotary={"base": local_base},
    windows={"period": _PERIOD},
    turns=lambda _, layer: (layer + 1) % _PERIOD != 0,
    attention_args={"has_head_norms": True, "has_post_norm": True, "gate": gates},
    ffn_args={"has_post_norm": True},
    experts={"has_weights_scale": True, "fallback": Gating.SIGMOID, "has_post_norm": True},
    embedding_args={"scale": lambda decoder: math.sqrt(decoder.n_embd)},
)


class Laguna(Transformer):
    """Normed heads; gates of attention are softplus, by head or by value; three layers of four may see a window only."""

    name = "laguna"
    windows = {"period": _PERIOD, "is_first": True}
    attention_args = {"has_head_norms": True, "gate_kind": GateKind.SOFTPLUS}
    experts = {"has_weights_scale": True, "fallback": Gating.SIGMOID}

    @classmethod
    def local_rope(cls, decoder: Decoder, rope: Rope | None) -> Rope:  # noqa: ARG003 - as its parent's
        return Rope(plain(local_size(decoder), local_base(decoder)))

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        n_gates = decoder.file.tensor(f"blk.{layer}.attn_gate.weight").shape[0]
        return {"gate": gates(decoder, layer, by_head=n_gates == decoder.n_heads[layer])}


Maple = Transformer.family(
    "maple",
    "Normed heads; layers with a window have rope and the others none; experts' hidden values are limited.",
    rope_args=None,
    local_rotary={"base": local_base, "n_rot": local_size},
    windows={"period": None, "is_required": True},
    attention_args={"has_head_norms": True},
    experts={"gating": Gating.SOFTMAX, "is_normalised": True, "limit": expert_limit},
)


class Mimo2(Transformer):
    """MiMo 2: layers with a window have heads, a rope and sinks of their own."""

    name = "mimo2"
    experts = {"gating": Gating.SIGMOID, "is_normalised": True}
    mtp_hidden = "layer"

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        window = decoder.windows(None, is_required=True, has_mtp=True)[layer]
        if window is not None:
            rope = decoder.rope(base=own_local_base(decoder), is_scaled=False)
        factor = decoder.keys.number("attention.value_scale", 0.0) or 1.0
        sinks = decoder.optional_vector(f"blk.{layer}.attn_sinks.weight", decoder.n_heads[layer])
        attention = decoder.attention(layer, rope, window=window, sinks=sinks, factor=factor, has_scales=False)
        plain = {part: attrs.evolve(getattr(attention, part), bias=None) for part in "qkv"}
        attention = attrs.evolve(attention, **plain)
        return Layer(attention, cls.feed_forward(decoder, layer))


class Grok(Transformer):
    """Scores and logits are capped; a dense feed-forward may stand beside the experts, and their mean counts."""

    name = "grok"
    experts = {"gating": Gating.SOFTMAX, "is_normalised": True}
    embedding_args = {"scale": lambda decoder: decoder.keys.positive("embedding_scale", 78.38367176906169)}
    output_args = {
        "scale": lambda decoder: decoder.keys.number("logit_scale", 0.5773502691896257),
        "softcap": lambda decoder: decoder.keys.number("final_logit_softcapping", 0.0) or None,
    }

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        keys, at, tensors = decoder.keys, f"blk.{layer}", decoder.file.tensors
        attention = decoder.attention(
            layer,
            rope,
            scale=keys.positive("attention.output_scale", 0.08838834764831845),
            softcap=keys.positive("attn_logit_softcapping", 30.0),
            post_norm=decoder.norm(f"{at}.attn_output_norm"),
        )
        post = "layer_output_norm" if f"{at}.layer_output_norm.weight" in tensors else "post_ffw_norm"
        marks: dict[str, Any] = {"activation": Activation.GELU_HALF}
        given: dict[str, Any] = {"post_norm": decoder.norm(f"{at}.{post}")}
        if f"{at}.ffn_up.weight" in tensors:
            marks["factor"] = math.sqrt(2.0) / 2.0
            given["shared"] = decoder.feed_forward(layer, norm=None, **marks)
        return Layer(attention, mixture(decoder, layer, **cls.experts, **marks, **given))


Dbrx = Transformer.family(
    "dbrx",
    "Layer norms, of which the second has another name; queries, keys and values may be clamped.",
    decoder_args={"norm": NormKind.LAYER},
    attention_args={"clamp": lambda decoder, _: decoder.keys.number("attention.clamp_kqv", 0.0) or None},
    experts={"gating": Gating.SOFTMAX, "is_normalised": True, "norm": "attn_output_norm"},
)
