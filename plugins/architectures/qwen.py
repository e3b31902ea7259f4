"""Qwen 1 to 3, their dense models, and models that build on them."""

from __future__ import annotations

from augury.blocks import Gating
from augury.plugins.architectures.transformer import Transformer

Qwen = Transformer.family(
    "qwen",
    "As Qwen2; its files state twice the size of the feed-forward.",
    ffn_args={"n_ff": lambda decoder, layer: decoder.n_ff[layer] // 2},
)
Qwen2 = Transformer.family("qwen2", "Pre-norm attention with biased q, k and v, gated feed-forward.")
Qwen2VL = Transformer.family(
    "qwen2vl",
    "As Qwen2, with positions on the axes of an image; texts have one.",
    decoder_args={"least_eps": 1e-30},  # llama.cpp reads none, and writes 0
    rope_args={"sections": "blocks"},
    output_args={"has_bias": False},
)
Qwen3 = Transformer.family(
    "qwen3",
    "Pre-norm attention with normed query and key heads, gated feed-forward.",
    attention_args={"has_head_norms": True},
    ffn_args={"has_scales": True},
)
Qwen3VL = Transformer.family(
    "qwen3vl",
    "As Qwen3, with positions on the axes of an image; texts have one.",
    rope_args={"sections": "turns"},
    attention_args={"has_head_norms": True},
)
Qwen3TTS = Qwen3VL.family("qwen3tts", "The language model of Qwen3-TTS.")
Qwen2Moe = Transformer.family(
    "qwen2moe",
    "As Qwen2, with experts, and one that is shared and has a gate.",
    experts={"gating": Gating.SOFTMAX, "is_normalised": False},
)
Qwen3Moe = Qwen3.family(
    "qwen3moe",
    "As Qwen3, with experts, whose weights sum to 1.",
    experts={"gating": Gating.SOFTMAX, "is_normalised": True, "has_scales": True},
)
Qwen3VLMoe = Qwen3VL.family(
    "qwen3vlmoe", "As Qwen3VL, with the experts of Qwen3.", experts={"gating": Gating.SOFTMAX, "is_normalised": True}
)
