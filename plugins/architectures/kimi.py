"""Kimi Linear, Kimi K3 and Ling 3: Kimi delta attention, and latent attention in layers that have key heads."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import attrs

from augury import blocks
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, limited_feed_forward, mixture
from augury.plugins.architectures.latent import latent_attention
from augury.plugins.architectures.rope import axes
from augury.plugins.architectures.transformer import Transformer
from augury.plugins.residual_streams import AttentionResidual

_MOST_DECAY = 1e6


class KimiLinear(Transformer):
    """Latent attention has no rope; decays and gates go through a few values."""

    name = "kimi-linear"
    decoder_args = {"least": 0, "may_have_experts": True}
    rope_args = None
    ffn_args = {"has_biases": False}
    experts = {"is_normalised": True, "has_weights_scale": True}
    decay_names: ClassVar[tuple[str, ...]] = ("ssm_f_a", "ssm_f_b")
    gate_names: ClassVar[tuple[str, ...]] = ("ssm_g_a", "ssm_g_b")

    @classmethod
    def decoder(cls, file: ModelFile) -> Decoder:
        decoder = super().decoder(file)
        if not decoder.n_heads[0]:
            decoder.keys.fail("attention.head_count", 0, "the heads of all layers with delta attention in the first layer")
        return decoder

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: blocks.Rope | None) -> blocks.Layer:  # noqa: ARG003 - latent attention has its own
        attends = decoder.n_kv_heads[layer] or layer >= decoder.n_layers  # as all layers that predict further tokens do
        mixer = cls.attention(decoder, layer) if attends else cls.delta_attention(decoder, layer)
        return blocks.Layer(mixer, cls.feed_forward(decoder, layer))

    @classmethod
    def attention(cls, decoder: Decoder, layer: int) -> blocks.LatentAttention:
        """The latent attention of a layer."""
        return latent_attention(decoder, layer, None)

    @classmethod
    def delta_attention(cls, decoder: Decoder, layer: int, **others: Any) -> blocks.KimiDeltaAttention:
        """The delta attention of a layer; all have the heads of the first layer."""
        at, n_heads, size = f"blk.{layer}", decoder.n_heads[0], decoder.keys.count("kda.head_dim")
        n, n_embd, n_taps = n_heads * size, decoder.n_embd, decoder.keys.count("ssm.conv_kernel", least=2)
        q, k, v = decoder.fused(at, ("attn_q", "attn_k", "attn_v"), "attn_qkv", (n, n, n), has_scale=False, has_bias=False)
        convolutions: dict[str, Any] = {
            f"{part}_conv": decoder.check(
                blocks.Convolution(f"{at}.ssm_conv1d_{part}.weight", n, n_taps, stored=(n, 1, n_taps))
            )
            for part in "qkv"
        }
        downs: dict[str, Any] = {}
        ends = {}
        for part, names in (("decay", cls.decay_names), ("gate", cls.gate_names)):
            sizes = (n_embd, size, n) if len(names) > 1 else (n_embd, n)
            *down, ends[part] = (
                decoder.matrix(f"{at}.{name}", n_in, n_out)
                for name, n_in, n_out in zip(names, sizes[:-1], sizes[1:], strict=True)
            )
            downs |= {f"{part}_down": linear for linear in down}
        dt = decoder.vector(f"{at}.ssm_dt.bias", n)
        is_padded = decoder.file.tensor(f"{at}.ssm_a").shape[-1:] == (1,)
        return blocks.KimiDeltaAttention(
            norm=decoder.norm(f"{at}.attn_norm"),
            q=q,
            k=k,
            v=v,
            **convolutions,
            decay=attrs.evolve(ends["decay"], bias=dt.weight),
            a=decoder.vector(f"{at}.ssm_a", n_heads, (n_heads, 1) if is_padded else (n_heads,)),
            beta=decoder.matrix(f"{at}.ssm_beta", n_embd, n_heads),
            gate=ends["gate"],
            recurrence=blocks.LinearRecurrence(n_heads, n_heads, size, size, has_delta=True, is_by_key=True),
            eps=decoder.eps,
            out_norm=attrs.evolve(decoder.norm(f"{at}.ssm_norm", size), bias=None),
            o=decoder.matrix(f"{at}.attn_output", n, n_embd),
            **downs,
            **others,
        )


class BailingMoe3(KimiLinear):
    """Ling 3: latent attention has rope and gates by head, decays have a floor, and hidden values are limited."""

    name = "bailingmoe3"
    decay_names = ("ssm_f_a",)
    gate_names = ("ssm_g_a",)
    mtp_hidden = "output"

    @classmethod
    def attention(cls, decoder: Decoder, layer: int) -> blocks.LatentAttention:
        sections = axes(decoder)
        attention = latent_attention(decoder, layer, decoder.rope(sections=sections, is_interleaved=sections is None))
        gate = decoder.matrix(f"blk.{layer}.attn_gate", decoder.n_embd, decoder.n_heads[layer])
        return attrs.evolve(attention, o=attrs.evolve(attention.o, scale=1.0), gate=gate)

    @classmethod
    def delta_attention(cls, decoder: Decoder, layer: int, **others: Any) -> blocks.KimiDeltaAttention:
        keys = decoder.keys
        if not keys.flag("kda.safe_gate", default=True):
            keys.fail("kda.safe_gate", False, "true: the decays of these models have a floor")
        floor = keys.number("kda.gate_lower_bound", least=-_MOST_DECAY, most=-1.0 / _MOST_DECAY)
        return super().delta_attention(decoder, layer, floor=floor, **others)

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> blocks.FeedForward | blocks.MixtureOfExperts:
        return limited_feed_forward(decoder, layer, has_biases=False, has_weights_scale=True)


class KimiK3(KimiLinear):
    """Kimi K3: blocks see a mean of the streams of earlier layers; experts work on fewer values; another activation."""

    name = "kimi-k3"
    gate_names: ClassVar[tuple[str, ...]] = ("ssm_g",)

    @classmethod
    def output(cls, decoder: Decoder) -> blocks.Output:
        output = super().output(decoder)
        if not decoder.keys.count("attn_res.block_size", least=0):
            return output
        return attrs.evolve(output, connection=AttentionResidual(decoder.norm("output_res_score")))

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: blocks.Rope | None) -> blocks.Layer:
        """A layer, from 0; the mixer of the first of each block of layers begins a stream."""
        plain = super().layer(decoder, layer, rope)
        if not (size := decoder.keys.count("attn_res.block_size", least=0)):
            return plain
        of_mixer, of_feed_forward = (decoder.norm(f"blk.{layer}.{part}_res_score") for part in ("attn", "ffn"))
        mixer = AttentionResidual(of_mixer if layer else None, begins=layer % size == 0)
        return plain.connected(mixer, AttentionResidual(of_feed_forward))

    @classmethod
    def attention(cls, decoder: Decoder, layer: int) -> blocks.LatentAttention:
        attention, name = super().attention(decoder, layer), f"blk.{layer}.attn_gate"
        has_gate = f"{name}.weight" in decoder.file.tensors
        gate = decoder.matrix(name, decoder.n_embd, attention.o.n_in) if has_gate else None
        return attrs.evolve(attention, o=attrs.evolve(attention.o, scale=1.0), gate=gate)

    @classmethod
    def delta_attention(cls, decoder: Decoder, layer: int, **others: Any) -> blocks.KimiDeltaAttention:
        """The delta attention of a layer; where decays have a floor, their input is negated."""
        key = "kda.gate_lower_bound"
        if decoder.file.get(decoder.keys.full(key), float, -math.inf) == -math.inf:
            return super().delta_attention(decoder, layer, **others)
        floor = decoder.keys.number(key, least=-_MOST_DECAY, most=-1.0 / _MOST_DECAY)
        attention = super().delta_attention(decoder, layer, floor=floor, **others)
        return attrs.evolve(attention, decay=attrs.evolve(attention.decay, scale=-1.0, bias_scale=-1.0))

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> blocks.FeedForward | blocks.MixtureOfExperts:
        keys, at, n_embd = decoder.keys, f"blk.{layer}", decoder.n_embd
        constants = (keys.positive("activation.situ_beta"), keys.number("activation.situ_linear_beta"))
        activation = blocks.Activation.SITU
        if not has_experts(decoder, layer):
            return decoder.feed_forward(layer, activation, constants=constants, has_biases=False)
        latent: dict[str, Any] = {}
        if n_latent := keys.count("expert_latent_length", 0, least=0):
            norm = f"{at}.ffn_routed_norm"
            latent["latent_down"] = decoder.matrix(f"{at}.ffn_routed_down", n_embd, n_latent)
            latent["latent_up"] = decoder.matrix(f"{at}.ffn_routed_up", n_latent, n_embd)
            latent["sum_norm"] = decoder.norm(norm, n_latent) if f"{norm}.weight" in decoder.file.tensors else None
        block = mixture(
            decoder,
            layer,
            activation=activation,
            has_weights_scale=True,
            n_latent=n_latent or None,
            constants=constants,
            **latent,
        )
        return attrs.evolve(block, shared=None if block.shared is None else attrs.evolve(block.shared, constants=constants))
