"""Qwen 1 to 3, their dense models, and models that build on them."""

from __future__ import annotations

from augury.blocks import Gating
from augury.plugins.architectures.transformer import Transformer


class Qwen(Transformer):
    """As Qwen2; its files state twice the size of the feed-forward."""

    name = "qwen"
    ffn_args = {"n_ff": lambda decoder, layer: decoder.n_ff[layer] // 2}


class Qwen2(Transformer):
    """Pre-norm attention with biased q, k and v, gated feed-forward."""

    name = "qwen2"


class Qwen2VL(Transformer):
    """As Qwen2, with positions on the axes of an image; texts have one."""

    name = "qwen2vl"
    decoder_args = {"least_eps": 1e-30}  # llama.cpp reads none, and writes 0
    rope_args = {"sections": "blocks"}
    output_args = {"has_bias": False}


class Qwen3(Transformer):
    """Pre-norm attention with normed query and key heads, gated feed-forward."""

    name = "qwen3"
    attention_args = {"has_head_norms": True}
    ffn_args = {"has_scales": True}


class Qwen3VL(Transformer):
    """As Qwen3, with positions on the axes of an image; texts have one."""

    name = "qwen3vl"
    rope_args = {"sections": "turns"}
    attention_args = {"has_head_norms": True}


class Qwen3TTS(Qwen3VL):
    """The language model of Qwen3-TTS."""

    name = "qwen3tts"


class Qwen2Moe(Transformer):
    """As Qwen2, with experts, and one that is shared and has a gate."""

    name = "qwen2moe"
    experts = {"gating": Gating.SOFTMAX, "is_normalised": False}


class Qwen3Moe(Qwen3):
    """As Qwen3, with experts, whose weights sum to 1."""

    name = "qwen3moe"
    experts = {"gating": Gating.SOFTMAX, "is_normalised": True, "has_scales": True}


class Qwen3VLMoe(Qwen3VL):
    """As Qwen3VL, with the experts of Qwen3."""

    name = "qwen3vlmoe"
    experts = {"gating": Gating.SOFTMAX, "is_normalised": True}
