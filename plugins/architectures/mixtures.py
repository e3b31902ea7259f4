"""Families that have mixtures of experts, beside dense models or alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from augury.blocks import Activation, GateKind, Gating, Layer, MixtureOfExperts, NormKind, Rope, Temperature
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import expert_limit, expert_matrices, mixture
from augury.plugins.architectures.llama import Ernie, HunyuanDense, Phi3, Qwen3, Qwen3VL
from augury.plugins.architectures.mamba import mamba2
from augury.plugins.architectures.rope import axes, base_of, local_base, local_size, own_local_base, plain
from augury.plugins.architectures.transformer import Transformer, gates, sinks, stated

_PERIOD = 4
_SOFTMAX: dict[str, Any] = {"gating": Gating.SOFTMAX, "is_normalised": True}
_ROPE: dict[str, Any] = {"is_interleaved": True, "has_factors": True}
_N_EXPERTS_MAVERICK, _CHUNK = 128, 8192  # of Llama 4, whose files say neither
_WINDOW = 4096  # of SmallThinker, in place of the window that a file states

ErnieMoe = Ernie.family(
    "ernie4_5-moe", "As Ernie, with experts in some layers, and one that is shared.", experts=_SOFTMAX, mtp_hidden="output"
)
Qwen2Moe = Transformer.family(
    "qwen2moe",
    "As Qwen2, with experts, and one that is shared and has a gate.",
    experts={"gating": Gating.SOFTMAX, "is_normalised": False},
)
Qwen3Moe = Qwen3.family("qwen3moe", "As Qwen3, with experts, whose weights sum to 1.", experts={**_SOFTMAX, "has_scales": True})
Qwen3VLMoe = Qwen3VL.family("qwen3vlmoe", "As Qwen3VL, with the experts of Qwen3.", experts=_SOFTMAX)
PhiMoe = Phi3.family("phimoe", "As Phi 3 with layer norms, biases everywhere and experts.", experts=_SOFTMAX)
Olmoe = Transformer.family(
    "olmoe",
    "Queries and keys are normed over all heads, before attention; experts.",
    attention_args={"has_joint_norms": True},
    experts={"gating": Gating.SOFTMAX, "is_normalised": False},
)
ExaoneMoe = Transformer.family(
    "exaone-moe",
    "Normed heads; layers with a window have rope, and the others none; experts, one of them shared.",
    rope_args=None,
    local_rotary={"has_factors": True},
    windows={"period": _PERIOD, "is_required": True, "has_mtp": True},
    attention_args={"has_head_norms": True},
    experts={"has_weights_scale": True},
    mtp_hidden="output",
)
Glm4Moe = Transformer.family(
    "glm4moe",
    "GLM 4.5: heads may be normed; the first layers have no experts.",
    rope_args={"sections": axes},
    attention_args={"has_head_norms": lambda decoder, layer: f"blk.{layer}.attn_q_norm.weight" in decoder.file.tensors},
    ffn_args={"norm": "post_attention_norm"},
    experts={"has_weights_scale": True, "fallback": Gating.SIGMOID, "norm": "post_attention_norm"},
    mtp_hidden="output",
)
HunyuanMoe = Transformer.family(
    "hunyuan-moe",
    "Heads are normed after rope; experts, one of them shared.",
    rope_args={"has_factors": True},
    attention_args=HunyuanDense.attention_args,
    experts=_SOFTMAX,
)
HyV3 = Transformer.family(
    "hy_v3",
    "Heads are normed before rope; the first layers have no experts.",
    rope_args={"has_factors": True},
    attention_args={"has_head_norms": True},
    ffn_args={"has_scales": True},
    experts={"has_weights_scale": True, "fallback": Gating.SIGMOID, "has_scales": True},
    mtp_hidden="output",
)
GptOss = Transformer.family(
    "gpt-oss",
    "gpt-oss: every other layer sees a window; sinks, biases everywhere, a SwiGLU of its own.",
    local_rotary={"base": local_base},
    windows={"period": 2, "is_required": True},
    attention_args={"sinks": sinks},
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
    rope_args=_ROPE,
    experts={"has_weights_scale": True, "gating": Gating.SOFTMAX},
)
BailingMoe2 = Dots1.family("bailingmoe2", "Ling 2: normed heads; the first layers have no experts.")
DeepSeek = Transformer.family(
    "deepseek",
    "The first DeepSeek: its attention is Llama's, and some experts are shared.",
    rope_args=_ROPE,
    attention_args={"scale": stated("attention.scale")},
    experts={"has_weights_scale": True, "gating": Gating.SOFTMAX, "is_normalised": False},
)
DeepSeekOcr = Transformer.family(
    "deepseek2-ocr",
    "The text model of DeepSeek-OCR: DeepSeek 2 with Llama's attention, and a rope that nothing stretches.",
    rope=lambda decoder: Rope(plain(decoder.head_dim, base_of(decoder))),
    attention_args={"has_output_bias": False},
    experts={"has_weights_scale": True},
)
Mellum = Transformer.family(
    "mellum",
    "Normed heads; three layers of four see a window, where there is one, and do not stretch their rope.",
    windows={"period": _PERIOD},
    local_rope=lambda decoder, _: Rope(decoder.rope(is_scaled=False).frequencies),
    attention_args={"has_head_norms": True},
    experts={**_SOFTMAX, "has_scales": True},
)
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
Laguna = Transformer.family(
    "laguna",
    "Normed heads; gates of attention are softplus, by head or by value; three layers of four may see a window only.",
    windows={"period": _PERIOD, "is_first": True},
    local_rope=lambda decoder, _: Rope(plain(local_size(decoder), local_base(decoder))),
    attention_args={
        "has_head_norms": True,
        "gate_kind": GateKind.SOFTPLUS,
        "gate": lambda decoder, layer: gates(
            decoder, layer, by_head=decoder.file.tensor(f"blk.{layer}.attn_gate.weight").shape[0] == decoder.n_heads[layer]
        ),
    },
    experts={"has_weights_scale": True, "fallback": Gating.SIGMOID},
)
Maple = Transformer.family(
    "maple",
    "Normed heads; layers with a window have rope and the others none; experts' hidden values are limited.",
    rope_args=None,
    local_rotary={"base": local_base, "n_rot": local_size},
    windows={"period": None, "is_required": True},
    attention_args={"has_head_norms": True},
    experts={**_SOFTMAX, "limit": expert_limit},
)
Dbrx = Transformer.family(
    "dbrx",
    "Layer norms, of which the second has another name; queries, keys and values may be clamped.",
    decoder_args={"norm": NormKind.LAYER},
    attention_args={"clamp": stated("attention.clamp_kqv")},
    experts={**_SOFTMAX, "norm": "attn_output_norm"},
)
Mimo2 = Transformer.family(
    "mimo2",
    "MiMo 2: layers with a window have heads, a rope and sinks of their own.",
    local_rotary={"base": own_local_base, "is_scaled": False},
    windows={"period": None, "is_required": True, "has_mtp": True},
    attention_args={
        "has_biases": False,
        "has_scales": False,
        "sinks": lambda decoder, layer: sinks(decoder, layer, are_optional=True),
        "factor": stated("attention.value_scale", 0.0, 1.0),
    },
    experts={"gating": Gating.SIGMOID, "is_normalised": True},
    mtp_hidden="layer",
)


class Llama4(Transformer):
    """Three layers of four have rope and see chunks; the others grow their queries with the position."""

    name = "llama4"
    rope_args = _ROPE
    experts = {"gating": Gating.SIGMOID, "is_normalised": False, "weighs_input": True}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        """A layer, from 0; files that state a window of 0 have neither chunks nor temperature."""
        keys, key = decoder.keys, "attention.sliding_window"
        has_chunks = key not in keys or keys.count(key, least=0) > 0
        turns = (layer + 1) % (_PERIOD if has_chunks else decoder.n_layers) != 0
        common: dict[str, Any] = {"scale": keys.number("attention.scale", 0.0) or None}
        if has_chunks and decoder.flags(f"{key}_pattern", _PERIOD)[layer]:
            common["chunk"] = _CHUNK
            rope = decoder.rope(base=local_base(decoder), **cls.rope_args)
        if turns and keys.count("expert_count", 0, least=0) != _N_EXPERTS_MAVERICK:
            norm = decoder.plain_norm(decoder.head_dim)
            common |= {"q_norm": norm, "k_norm": norm, "is_rope_first": True}
        if has_chunks and not turns:
            common["temperature"] = Temperature(0.1, _CHUNK, 1.0)
        attention = decoder.attention(layer, rope if turns else None, **common)
        return Layer(attention, cls.feed_forward(decoder, layer))


def _averaged_experts(decoder: Decoder, layer: int) -> Mapping[str, Any]:
    """Arguments of a mixture, beside which a dense feed-forward may stand."""
    at, tensors = f"blk.{layer}", decoder.file.tensors
    post = "layer_output_norm" if f"{at}.layer_output_norm.weight" in tensors else "post_ffw_norm"
    marks: dict[str, Any] = {"activation": Activation.GELU_HALF}
    given: dict[str, Any] = {"post_norm": decoder.norm(f"{at}.{post}")}
    if f"{at}.ffn_up.weight" in tensors:
        marks["factor"] = math.sqrt(2.0) / 2.0
        given["shared"] = decoder.feed_forward(layer, norm=None, **marks)
    return {**_SOFTMAX, **marks, **given}


Grok = Transformer.family(
    "grok",
    "Scores and logits are capped; a dense feed-forward may stand beside the experts, and their mean counts.",
    attention_args={
        "scale": lambda decoder, _: decoder.keys.positive("attention.output_scale", 0.08838834764831845),
        "softcap": lambda decoder, _: decoder.keys.positive("attn_logit_softcapping", 30.0),
        "post_norm": lambda decoder, layer: decoder.norm(f"blk.{layer}.attn_output_norm"),
    },
    feed_forward=lambda decoder, layer: mixture(decoder, layer, **_averaged_experts(decoder, layer)),
    experts=_SOFTMAX,
    embedding_args={"scale": lambda decoder: decoder.keys.positive("embedding_scale", 78.38367176906169)},
    output_args={
        "scale": lambda decoder: decoder.keys.number("logit_scale", 0.5773502691896257),
        "softcap": stated("final_logit_softcapping"),
    },
)


class Arctic(Transformer):
    """A dense feed-forward, and beside both blocks of a layer a mixture over the layer's input."""

    name = "arctic"
    rope_args = {"is_interleaved": True}
    experts = {**_SOFTMAX, "norm": "ffn_norm_exps"}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        attention = decoder.attention(layer, rope, has_output_bias=False)
        dense = decoder.feed_forward(layer, n_ff=decoder.n_embd, has_biases=False)
        return Layer(attention, (dense, mixture(decoder, layer, is_parallel=True, **cls.experts)))


def _grouped_experts(decoder: Decoder, layer: int) -> MixtureOfExperts:
    block, keys = mixture(decoder, layer, **_SOFTMAX), decoder.keys
    n_experts = block.router.logits.n_out
    n_alike = keys.count("experts_per_group", most=n_experts)
    n_groups = n_experts // n_alike
    if n_experts % n_alike:
        keys.fail("experts_per_group", n_alike, f"a divisor of the {n_experts} experts")
    router = attrs.evolve(
        block.router, n_used=min(block.router.n_used, n_groups), n_alike=n_alike, scale=keys.number("expert_group_scale")
    )
    parts = expert_matrices(decoder, layer, n_groups, suffix="chexps")
    adjugate = MixtureOfExperts(norm=None, router=router, activation=block.activation, **parts)
    return attrs.evolve(block, adjugate=adjugate)


GroveMoe = Transformer.family(
    "grovemoe",
    "Normed heads; experts' outputs go through experts of groups of them, too.",
    attention_args={"has_head_norms": True},
    feed_forward=_grouped_experts,
    experts=_SOFTMAX,
)


class SmallThinker(Transformer):
    """Experts are chosen by the layer's input; layers with a window have rope, and the others none."""

    name = "smallthinker"
    experts = {"is_normalised": True, "activation": Activation.RELU}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        window = None
        if decoder.keys.count("attention.sliding_window", 0, least=0):
            is_local = decoder.flags("attention.sliding_window_pattern", _PERIOD, is_first=True)[layer]
            window = _WINDOW if is_local else None
            turns = decoder.n_layers == _PERIOD or layer % _PERIOD
            rope = (decoder.rope(base=local_base(decoder)) if is_local else rope) if turns else None
        block = mixture(decoder, layer, **cls.experts)
        early = attrs.evolve(block, router=attrs.evolve(block.router, is_early=True))
        return Layer(decoder.attention(layer, rope, window=window), early)


def _factor(decoder: Decoder, _layer: int) -> float:
    """The factor of layers' outputs; the first files of MiniCPM do not state it."""
    is_minicpm = decoder.file.architecture == MiniCPM.name
    return decoder.keys.number("residual_scale", 1.4 / math.sqrt(decoder.n_layers) if is_minicpm else 0.0) or 1.0


class GraniteMoe(Transformer):
    """Llama, with scales of the embedding, of layers' outputs, of scores and of logits, and with experts."""

    name = "granitemoe"
    rope_args = _ROPE
    attention_args = {"factor": _factor, "scale": stated("attention.scale")}
    ffn_args = {"factor": _factor}
    experts = {**ffn_args, **_SOFTMAX}
    embedding_args = {"scale": stated("embedding_scale", 0.0, 1.0)}
    output_args = {"scale": lambda decoder: 1.0 / (decoder.keys.number("logit_scale") or 1.0)}


def _granite_rope(decoder: Decoder) -> Rope | None:
    return GraniteMoe.rope(decoder) if decoder.keys.flag("rope.scaling.finetuned", default=True) else None


Granite = GraniteMoe.family("granite", "The dense models, whose files may say that there is no rope.", rope=_granite_rope)
GraniteHybrid = Granite.family(
    "granitehybrid",
    "Mamba-2 in layers that have no key heads.",
    decoder_args={"least": 0},
    without_heads=lambda decoder, layer: mamba2(decoder, layer, factor=_factor(decoder, layer)),
    output_args={"scale": lambda decoder: 1.0 / (decoder.keys.number("logit_scale", 0.0) or 1.0)},
)


def _granite_turns(decoder: Decoder, layer: int) -> bool:
    key = "attention.rope_pattern"  # llama.cpp takes note of an array alone
    has_pattern = isinstance(decoder.file.metadata.get(decoder.keys.full(key)), np.ndarray)
    return not has_pattern or decoder.flags(key, 0)[layer]


GraniteSwa = GraniteMoe.family(
    "granite_swa",
    "Some layers see a window only, some have no rope, and all have sinks.",
    windows={"period": None, "is_required": True},
    turns=_granite_turns,
    attention_args={**GraniteMoe.attention_args, "sinks": sinks},
)
MiniCPM = GraniteMoe.family(
    "minicpm",
    "Scales that the first files do not state, and none of scores.",
    attention_args={"factor": _factor},
    embedding_args={"scale": stated("embedding_scale", 12.0, 1.0)},
    output_args={"scale": lambda decoder: 1.0 / (decoder.keys.number("logit_scale", 256.0 / decoder.n_embd) or 1.0)},
)
