"""Mamba and Mamba-2, and models with their blocks: Falcon-H1, Jamba and Nemotron-H."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import attrs

from augury.blocks import Activation, Block, FeedForward, Gating, Layer, MixtureOfExperts, ModelPlan, NormKind, Output, Rope
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, mixture
from augury.plugins.architectures.keys import Keys
from augury.plugins.architectures.state_space import mamba, mamba2
from augury.plugins.architectures.transformer import Transformer


class MambaModel(Architecture):
    """Layers of Mamba alone."""

    name = "mamba"
    block: ClassVar[Callable[[Decoder, int], Block]] = mamba

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, least=0)
        return {"main": decoder.plan(Layer(cls.block(decoder, layer)) for layer in range(decoder.n_layers))}


class Mamba2Model(MambaModel):
    """Layers of Mamba-2 alone."""

    name = "mamba2"
    block = mamba2


class FalconH1(Transformer):
    """Attention and Mamba-2 see the same input in every layer."""

    name = "falcon-h1"

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        scale = decoder.keys.number("attention.scale", 0.0) or None
        attention = decoder.attention(layer, rope, scale=scale, has_output_bias=False)
        norm = decoder.norm(f"blk.{layer}.ffn_norm", suffix="")
        feed_forward = decoder.feed_forward(layer, norm=norm)
        return Layer((attention, attrs.evolve(mamba2(decoder, layer), is_parallel=True)), feed_forward)


Jamba = Transformer.family(
    "jamba",
    "Mamba, with attention without positions in layers that have key heads.",
    decoder_args={"least": 0},
    rope_args=None,
    attention_args={"has_output_bias": False},
    without_heads=mamba,
    ffn_args={"has_biases": False},
    experts={"gating": Gating.SOFTMAX, "is_normalised": False},
)


class NemotronH(Architecture):
    """Layers of one block each: a feed-forward without a gate, attention without positions, or Mamba-2."""

    name = "nemotron_h"
    has_mtp: ClassVar[bool] = False  # whether layers that predict further tokens are used

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        eps = Keys(file).number("attention.layer_norm_epsilon", 0.0)
        decoder = Decoder(file, least=0, may_have_experts=True, least_eps=eps)
        scale = decoder.keys.number("attention.scale", 0.0) or None
        layers = []
        for layer in range(decoder.n_layers):
            if decoder.n_ff[layer]:
                layers.append(Layer(None, cls.feed_forward(decoder, layer)))
            elif decoder.n_kv_heads[layer]:
                layers.append(Layer(decoder.attention(layer, None, scale=scale)))
            else:
                layers.append(Layer(mamba2(decoder, layer)))

        def mtp(layer: int) -> Layer:
            attention = decoder.attention(layer, None, scale=scale)
            return Layer(attention, cls.feed_forward(decoder, layer, norm="post_attention_norm"))

        def mtp_output(at: str, output: Output) -> Output:  # noqa: ARG001 - as `Decoder.plan` calls it
            norm = output.norm
            return output if norm is None else attrs.evolve(output, norm=attrs.evolve(norm, kind=NormKind.LAYER, eps=eps))

        names = {f"blk.{decoder.n_layers}.{each}.weight" for each in ("attn_q", "attn_qkv")}
        has_mtp = cls.has_mtp and not names.isdisjoint(file.tensors)  # files without are of llama.cpp's tests
        return {"main": decoder.plan(layers, mtp=mtp if has_mtp else None, mtp_output=mtp_output)}

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int, norm: str = "attn_norm") -> FeedForward | MixtureOfExperts:
        """The feed-forward of a layer; where it has a router, a mixture of experts, which may work on fewer values."""
        at, keys = f"blk.{layer}", decoder.keys
        if not has_experts(decoder, layer):
            return decoder.feed_forward(layer, Activation.RELU_SQUARED, gate=None, norm=norm, has_scales=True)
        n_latent = keys.count("moe_latent_size", 0, least=0) or decoder.n_embd
        sizes = {"down": (decoder.n_embd, n_latent), "up": (n_latent, decoder.n_embd)}
        latent: dict[str, Any] = {}
        for part, (n_in, n_out) in sizes.items():
            name = f"{at}.ffn_latent_{part}"
            if n_latent != decoder.n_embd or f"{name}.weight" in decoder.file.tensors:
                latent[f"latent_{part}"] = decoder.matrix(name, n_in, n_out)
        return mixture(
            decoder,
            layer,
            gating=Gating.SIGMOID,
            activation=Activation.RELU_SQUARED,
            has_gate=False,
            norm=norm,
            has_weights_scale=True,
            has_scales=True,
            n_latent=n_latent,
            **latent,
        )


class NemotronHMoe(NemotronH):
    """The same by another name; a layer that predicts further tokens has attention and experts, and a layer norm at its end."""

    name = "nemotron_h_moe"
    has_mtp = True
