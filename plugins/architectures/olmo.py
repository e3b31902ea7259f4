"""OLMo 1 to 3, their dense models, and OpenELM."""

from __future__ import annotations

from augury.blocks import Gating, Layer, NormKind, Rope
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.transformer import Transformer


class Olmo(Transformer):
    """Layer norms without weights; queries, keys and values may be clamped."""

    name = "olmo"
    decoder_args = {"norm": NormKind.LAYER}
    rope_args = {"is_interleaved": True}
    output_args = {"norm": Decoder.plain_norm}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        norm, clamp = decoder.plain_norm(), decoder.keys.number("attention.clamp_kqv", 0.0) or None
        attention = decoder.attention(layer, rope, norm=norm, clamp=clamp, has_output_bias=False)
        return Layer(attention, decoder.feed_forward(layer, norm=norm))


class Olmo2(Transformer):
    """Norms after attention and feed-forward alone; queries and keys are normed over all heads; OLMo 3 has windows."""

    name = "olmo2"
    windows = {"period": 4}
    attention_args = {"norm": None, "has_joint_norms": True, "has_post_norm": True}
    ffn_args = {"norm": None, "has_post_norm": True}

    @classmethod
    def local_rope(cls, decoder: Decoder, rope: Rope | None) -> Rope:  # noqa: ARG003 - as its parent's
        return Rope(decoder.rope(is_scaled=False).frequencies)


OpenElm = Transformer.family(
    "openelm",
    "Normed heads; how many differs by layer.",
    attention_args={"has_head_norms": True, "has_scales": False},
    output_args={"is_tied": True},
)
Olmoe = Transformer.family(
    "olmoe",
    "Queries and keys are normed over all heads, before attention; experts.",
    attention_args={"has_joint_norms": True},
    experts={"gating": Gating.SOFTMAX, "is_normalised": False},
)
