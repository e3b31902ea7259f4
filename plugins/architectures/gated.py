"""Muse Glimmer, Spark 2.5 and Talkie: attention's mix is gated, or the embedding goes on beside the layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from augury.blocks import Activation, Layer, Norm, Rope, SecondStream
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import local_base, local_size
from augury.plugins.architectures.transformer import Transformer, gates

_POST_EPS = 1e-8  # of Muse Glimmer's norms of blocks' outputs


def _post_norm(decoder: Decoder, name: str) -> Norm:
    return attrs.evolve(decoder.norm(name), eps=_POST_EPS)


class MuseGlimmer(Transformer):
    """Gates by value, normed heads, norms before and after; three layers of four see a window, and they alone have rope."""

    name = "muse-glimmer"
    rope_args = None
    local_rotary = {"base": local_base, "is_scaled": False, "is_interleaved": True}
    windows = {"period": 4, "is_required": True}
    attention_args = {"has_head_norms": True}
    ffn_args = {
        "post_norm": lambda decoder, layer: _post_norm(decoder, f"blk.{layer}.post_ffw_norm"),
    }
    embedding_args = {"norm": Decoder.plain_norm}
    output_args = {
        "scale": lambda decoder: decoder.keys.positive("logit_scale"),
        "softcap": lambda decoder: decoder.keys.number("final_logit_softcapping", 30.0) or None,
    }

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        return {"gate": gates(decoder, layer), "post_norm": _post_norm(decoder, f"blk.{layer}.post_attention_norm")}


Spark = Transformer.family(
    "spark2_5",
    "Gates by head, GELU; the file says which layers see a window only.",
    local_rotary={"base": local_base, "n_rot": local_size},
    windows={"period": None, "is_required": True},
    attention_args={"gate": lambda decoder, layer: gates(decoder, layer, by_head=True)},
    ffn_args={"activation": Activation.GELU_HALF},
)


class Talkie(Transformer):
    """Norms without weights; every layer adds a share of the embedding; query heads are normed, and weighted, after rope."""

    name = "talkie"
    embedding_args = {"norm": Decoder.plain_norm}
    output_args = {"norm": Decoder.plain_norm, "scale": lambda decoder: decoder.keys.positive("logit_scale")}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        at, norm = f"blk.{layer}", decoder.plain_norm()
        attention = decoder.attention(
            layer,
            rope,
            norm=norm,
            is_rope_first=True,
            q_norm=decoder.norm(f"{at}.attn_q_norm", decoder.head_dim, shape=(decoder.n_heads[layer], 1)),
            k_norm=Norm(None, decoder.head_dim, decoder.eps),
        )
        feed_forward = decoder.feed_forward(layer, norm=norm)
        down = decoder.linear(f"{at}.ffn_down", decoder.n_ff[layer], decoder.n_embd, has_bias=False)
        skip = SecondStream(float(decoder.values(f"{at}.layer_output_scale.weight", 1)[0]))
        return Layer(attention, (attrs.evolve(feed_forward, down=down), skip))
