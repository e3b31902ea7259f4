"""Hunyuan, its dense models."""

from __future__ import annotations

from augury.blocks import Gating, Rope
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import axes, base_of
from augury.plugins.architectures.transformer import Transformer


class HunyuanDense(Transformer):
    """Heads are normed after rope, whose base grows by a factor that files may state."""

    name = "hunyuan-dense"
    decoder_args = {"may_have_experts": True}  # files may state one, which is the feed-forward itself
    attention_args = {"has_head_norms": True, "is_rope_first": True}

    @classmethod
    def rope(cls, decoder: Decoder) -> Rope:
        keys, base, head_dim = decoder.keys, base_of(decoder), decoder.head_dim
        if (alpha := keys.number("rope.scaling.alpha", 0.0, most=1e6)) and head_dim > 2:
            base *= alpha ** (head_dim / (head_dim - 2))
        return decoder.rope(base=base, has_factors=True, sections=axes(decoder))


HunyuanVL = HunyuanDense.family("hunyuan_vl", "The language model of Hunyuan-VL.")
HunyuanMoe = Transformer.family(
    "hunyuan-moe",
    "Heads are normed after rope; experts, one of them shared.",
    rope_args={"has_factors": True},
    attention_args=HunyuanDense.attention_args,
    experts={"gating": Gating.SOFTMAX, "is_normalised": True},
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
