"""Step 3.5: layers with a window have heads and a rope of their own; heads are gated, and hidden values are limited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from augury.blocks import FeedForward, Gating, MixtureOfExperts, Rope
from augury.errors import ModelFileError
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import limited_feed_forward
from augury.plugins.architectures.rope import local_size, own_local_base
from augury.plugins.architectures.transformer import Transformer

_FACTORS, _LEAST = "rope_freqs.weight", 1e-3


class Step35(Transformer):
    """Layers without a window turn half of the dimensions that the file states."""

    name = "step35"
    decoder_args = {"may_have_experts": True}
    local_rotary = {"base": own_local_base, "n_rot": local_size, "is_scaled": False}
    windows = {"period": None, "is_required": True, "has_mtp": True}
    attention_args = {"has_output_bias": False}
    mtp_hidden = "layer"

    @classmethod
    def rope(cls, decoder: Decoder) -> Rope:
        n_rot = decoder.n_rot // 2
        if n_rot % 2:
            decoder.keys.fail("rope.dimension_count", decoder.n_rot, "a multiple of 4")
        rope = decoder.rope(n_rot=n_rot)
        if _FACTORS not in decoder.file.tensors:
            return rope
        factors = decoder.values(_FACTORS, max(n_rot, local_size(decoder)) // 2)[: n_rot // 2]
        if not (factors > _LEAST).all():
            raise ModelFileError(f"{decoder.file.path}: tensor {_FACTORS!r} holds {factors.min()}, expected more than {_LEAST}")
        return attrs.evolve(rope, frequencies=rope.frequencies / factors)

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        at, tensors, parts = f"blk.{layer}", decoder.file.tensors, dict[str, Any]()
        for part in ("q_norm", "k_norm"):
            if f"{at}.attn_{part}.weight" in tensors:
                parts[part] = attrs.evolve(decoder.norm(f"{at}.attn_{part}", decoder.head_dim), bias=None)
        if f"{at}.attn_gate.weight" in tensors:
            parts["gate"] = decoder.matrix(f"{at}.attn_gate", decoder.n_embd, decoder.n_heads[layer])
        return parts

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> FeedForward | MixtureOfExperts:
        return limited_feed_forward(decoder, layer, fallback=Gating.SIGMOID, has_weights_scale=True)
