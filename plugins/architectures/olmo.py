"""OLMo 1 to 3, their dense models, and OpenELM."""

from __future__ import annotations

from augury.blocks import Gating, NormKind, Rope
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.transformer import Transformer

Olmo = Transformer.family(
    "olmo",
    "Layer norms without weights; queries, keys and values may be clamped.",
    decoder_args={"norm": NormKind.LAYER},
    rope_args={"is_interleaved": True},
    attention_args={
        "norm": lambda decoder, _: decoder.plain_norm(),
        "clamp": lambda decoder, _: decoder.keys.number("attention.clamp_kqv", 0.0) or None,
        "has_output_bias": False,
    },
    ffn_args={"norm": lambda decoder, _: decoder.plain_norm()},
    output_args={"norm": Decoder.plain_norm},
)


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
