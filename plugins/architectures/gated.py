"""Muse Glimmer, Spark 2.5 and Talkie: attention's mix is gated, or the embedding goes on beside the layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from augury.blocks import Activation, Layer, ModelPlan, Norm, SecondStream
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import local_base, local_size
from augury.plugins.architectures.transformer import Transformer

_POST_EPS = 1e-8  # of Muse Glimmer's norms of blocks' outputs


class MuseGlimmer(Architecture):
    """Gates by value, normed heads, norms before and after; three layers of four see a window, and they alone have rope."""

    name = "muse-glimmer"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file)
        keys = decoder.keys
        rope = decoder.rope(base=local_base(decoder), is_scaled=False, is_interleaved=True)
        windows = decoder.windows(4, is_required=True)
        is_local = decoder.flags("attention.sliding_window_pattern", 4)
        layers = []
        for layer in range(decoder.n_layers):
            n_mixed = decoder.n_heads[layer] * decoder.value_dim
            attention = decoder.attention(
                layer,
                rope if is_local[layer] else None,
                has_head_norms=True,
                window=windows[layer],
                gate=decoder.linear(f"blk.{layer}.attn_gate", decoder.n_embd, n_mixed, has_scale=False),
                post_norm=attrs.evolve(decoder.norm(f"blk.{layer}.post_attention_norm"), eps=_POST_EPS),
            )
            post_norm = attrs.evolve(decoder.norm(f"blk.{layer}.post_ffw_norm"), eps=_POST_EPS)
            layers.append(Layer(attention, decoder.feed_forward(layer, has_scales=False, post_norm=post_norm)))
        softcap = keys.number("final_logit_softcapping", 30.0) or None
        output = decoder.output(scale=keys.positive("logit_scale"), softcap=softcap)
        return {"main": decoder.plan(layers, output=output, norm=decoder.plain_norm())}


class Spark(Transformer):
    """Gates by head, GELU; the file says which layers see a window only."""

    name = "spark2_5"
    local_rotary = {"base": local_base, "n_rot": local_size}
    windows = {"period": None, "is_required": True}
    feeding = {"activation": Activation.GELU_HALF, "has_scales": False}

    @classmethod
    def mixing_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        return {"gate": decoder.linear(f"blk.{layer}.attn_gate", decoder.n_embd, decoder.n_heads[layer], has_scale=False)}


class Talkie(Architecture):
    """Norms without weights; every layer adds a share of the embedding; query heads are normed, and weighted, after rope."""

    name = "talkie"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file)
        rope, norm = decoder.rope(), decoder.plain_norm()
        layers = []
        for layer in range(decoder.n_layers):
            at = f"blk.{layer}"
            attention = decoder.attention(
                layer,
                rope,
                norm=norm,
                is_rope_first=True,
                q_norm=decoder.norm(f"{at}.attn_q_norm", decoder.head_dim, shape=(decoder.n_heads[layer], 1)),
                k_norm=Norm(None, decoder.head_dim, decoder.eps),
            )
            feed_forward = decoder.feed_forward(layer, norm=norm, has_scales=False)
            down = decoder.linear(f"{at}.ffn_down", decoder.n_ff[layer], decoder.n_embd, has_bias=False)
            skip = SecondStream(float(decoder.values(f"{at}.layer_output_scale.weight", 1)[0]))
            layers.append(Layer(attention, (attrs.evolve(feed_forward, down=down), skip)))
        output = decoder.output(norm=norm, scale=decoder.keys.positive("logit_scale"))
        return {"main": decoder.plan(layers, output=output, norm=norm)}
