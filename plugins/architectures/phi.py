"""Phi 2 to 4, their dense models."""

from __future__ import annotations

from augury.blocks import Activation, Gating, NormKind
from augury.plugins.architectures.transformer import Transformer


class Phi2(Transformer):
    """Attention and feed-forward see one layer norm of the same input; no gates, biases everywhere."""

    name = "phi2"
    decoder_args = {"norm": NormKind.LAYER}
    ffn_args = {"activation": Activation.GELU_HALF, "gate": None, "norm": "attn_norm", "is_parallel": True}


class Phi3(Transformer):
    """Fused matrices and LongRoPE. It attends to everything without regard to its window, as in llama.cpp."""

    name = "phi3"
    rope_args = {"has_factors": True}
    ffn_args = {"gate": "fused"}


class PhiMoe(Phi3):
    """As Phi 3 with layer norms, biases everywhere and experts."""

    name = "phimoe"
    experts = {"gating": Gating.SOFTMAX, "is_normalised": True}
