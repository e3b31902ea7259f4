"""Phi 2 to 4, their dense models."""

from __future__ import annotations

from augury.blocks import Activation, Gating, NormKind
from augury.plugins.architectures.transformer import Transformer

Phi2 = Transformer.family(
    "phi2",
    "Attention and feed-forward see one layer norm of the same input; no gates, biases everywhere.",
    decoder_args={"norm": NormKind.LAYER},
    ffn_args={"activation": Activation.GELU_HALF, "gate": None, "norm": "attn_norm", "is_parallel": True},
)
Phi3 = Transformer.family(
    "phi3",
    "Fused matrices and LongRoPE. It attends to everything without regard to its window, as in llama.cpp.",
    rope_args={"has_factors": True},
    ffn_args={"gate": "fused"},
)
PhiMoe = Phi3.family(
    "phimoe",
    "As Phi 3 with layer norms, biases everywhere and experts.",
    experts={"gating": Gating.SOFTMAX, "is_normalised": True},
)
