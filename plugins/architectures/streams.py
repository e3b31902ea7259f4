"""Kimi delta attention, and families with several residual streams: Kimi, Ling 3, GLM 5 Next and Hunyuan 4."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import attrs

from augury import blocks
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import expert_limit, has_experts, limited_feed_forward, mixture
from augury.plugins.architectures.latent import chooses, indexer, latent_attention
from augury.plugins.architectures.rope import axes
from augury.plugins.architectures.transformer import Transformer, sinks
from augury.plugins.pooling import PoolIndexer, Pooling
from augury.plugins.residual_streams import AttentionResidual, HyperConnection, StreamMean

_MOST_DECAY = 1e6
_LEAST_EPS = 1e-12  # of norms whose epsilon a file does not state: llama.cpp takes 0
_EPS_OF_LENGTHS = 1e-6  # of queries and keys of delta attention; files do not state it
_PLAIN: dict[str, Any] = {"has_bias": False, "has_scale": False}


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
    def mixer(cls, decoder: Decoder, layer: int, rope: blocks.Rope | None) -> blocks.Block:  # noqa: ARG003 - attention has its own
        attends = decoder.n_kv_heads[layer] or layer >= decoder.n_layers  # as all layers that predict further tokens do
        return cls.attention(decoder, layer) if attends else cls.delta_attention(decoder, layer)

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
            out_norm=decoder.norm(f"{at}.ssm_norm", size, has_bias=False),
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
        rope = decoder.rope(sections=sections, is_interleaved=sections is None)
        gate = decoder.matrix(f"blk.{layer}.attn_gate", decoder.n_embd, decoder.n_heads[layer])
        return latent_attention(decoder, layer, rope, has_output_scale=False, gate=gate)

    @classmethod
    def delta_attention(cls, decoder: Decoder, layer: int, **others: Any) -> blocks.KimiDeltaAttention:
        keys = decoder.keys
        if not keys.flag("kda.safe_gate", default=True):
            keys.fail("kda.safe_gate", False, "true: the decays of these models have a floor")
        floor = keys.number("kda.gate_lower_bound", least=-_MOST_DECAY, most=-1.0 / _MOST_DECAY)
        return super().delta_attention(decoder, layer, floor=floor, **others)

    feed_forward = partial(limited_feed_forward, has_biases=False, has_weights_scale=True)


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
        attention, name = latent_attention(decoder, layer, None, has_output_scale=False), f"blk.{layer}.attn_gate"
        has_gate = f"{name}.weight" in decoder.file.tensors
        return attrs.evolve(attention, gate=decoder.matrix(name, decoder.n_embd, attention.o.n_in) if has_gate else None)

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


def connection(decoder: Decoder, name: str, n_parts: int, **others: Any) -> HyperConnection:
    """The hyper-connection of tensors `NAME_fn`, `NAME_base` and `NAME_scale`.

    Args:
        name: The beginning of its tensors' names.
        n_parts: The number of parts of its coefficients: 1 to read streams, 2 to write them as well, 3 to mix them as well.
        **others: Other fields.
    """
    n = decoder.keys.count("hyper_connection.count")
    n_coefficients = sum((n, n, n * n)[:n_parts])
    return HyperConnection(
        norm=blocks.Norm(None, n * decoder.n_embd, decoder.eps),
        coefficients=decoder.matrix(f"{name}_fn", n * decoder.n_embd, n_coefficients),
        scales=decoder.vector(f"{name}_scale.weight", n_parts),
        base=decoder.vector(f"{name}_base.weight", n_coefficients),
        n_streams=n,
        eps=decoder.keys.number("hyper_connection.epsilon"),
        **others,
    )


class HyperConnected(Transformer):
    """A family with residual streams from the embedding to the output, which has a connection of its own."""

    embedding_args = {"n_streams": lambda decoder: decoder.keys.count("hyper_connection.count")}

    @classmethod
    def output(cls, decoder: Decoder) -> blocks.Output:
        return attrs.evolve(decoder.output(**_PLAIN), connection=connection(decoder, "output_hc", 1))

    @classmethod
    def mtp_output(cls, decoder: Decoder, at: str, output: blocks.Output) -> blocks.Output:
        """With its own connection, which the files of whole models lack."""
        has_own = f"{at}.hc_head_fn.weight" in decoder.file.tensors
        return attrs.evolve(output, connection=connection(decoder, f"{at}.hc_head", 1)) if has_own else output


class HunyuanV4(HyperConnected):
    """Hunyuan 4: gated latent attention with sinks, whose indexer some layers share; streams are not mixed, experts limited."""

    name = "hy_v4"
    rope_args = {"is_interleaved": True}
    experts = {"has_weights_scale": True, "limit": expert_limit}
    ffn_args = {"has_biases": False}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: blocks.Rope | None) -> blocks.Layer:
        assert rope is not None
        keys, at = decoder.keys, f"blk.{layer}"
        attention = latent_attention(decoder, layer, rope, has_output_scale=False, sinks=sinks(decoder, layer))
        gate = decoder.matrix(f"{at}.attn_gate", decoder.n_embd, attention.o.n_in)
        choice: Mapping[str, Any] = {}
        if keys.count("attention.indexer.top_k", 0, least=0):
            size = keys.count("attention.indexer.key_length")
            choice = {"reuses_choice": 1}
            if chooses(decoder, None)[layer]:
                turned = attrs.evolve(rope, offset=size - decoder.n_rot)
                choice = {"indexer": indexer(decoder, layer, turned, eps=decoder.eps)}
        post = {"post_scale": keys.number("hyper_connection.magnitude"), "post_eps": keys.number("hyper_connection.epsilon")}
        mixer, feed_forward = (connection(decoder, f"{at}.hc_{part}", 2, **post) for part in ("attn", "ffn"))
        attention = attrs.evolve(attention, gate=gate, **choice)
        return blocks.Layer(attention, cls.feed_forward(decoder, layer)).connected(mixer, feed_forward)


def mixed_streams(decoder: Decoder, layer: int) -> list[HyperConnection]:
    """The connections of a layer whose streams are mixed."""
    n_rounds = max(decoder.keys.count("hyper_connection.sinkhorn_iterations", least=0), 1)
    names = (f"blk.{layer}.hc_{part}" for part in ("attn", "ffn"))
    return [connection(decoder, name, 3, post_scale=2.0, n_rounds=n_rounds) for name in names]


class Glm5Next(KimiK3):
    """GLM 5 Next: Kimi's delta attention, and latent attention without rope to pooled blocks of positions."""

    name = "glm5-next"
    gate_names = ("ssm_g_a", "ssm_g_b")

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, blocks.ModelPlan]:
        decoder = Decoder(file, least=0, may_have_experts=True)
        keys, n = decoder.keys, decoder.keys.count("hyper_connection.count")
        if n_rot := keys.count("rope.dimension_count", least=0):
            keys.fail("rope.dimension_count", n_rot, "0: attention has no rope")
        if not keys.flag("attention.indexer.kpool_select_tail", default=False):
            keys.fail("attention.indexer.kpool_select_tail", False, "true: tokens see those of the last block")
        layers = [cls.layer(decoder, layer, None) for layer in range(decoder.n_layers)]
        output = attrs.evolve(decoder.output(**_PLAIN), connection=StreamMean())
        return {"main": decoder.plan(layers, output=output, n_streams=n)}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: blocks.Rope | None) -> blocks.Layer:
        plain = blocks.Layer(cls.mixer(decoder, layer, rope), cls.feed_forward(decoder, layer))
        return plain.connected(*mixed_streams(decoder, layer))

    @classmethod
    def delta_attention(cls, decoder: Decoder, layer: int, **others: Any) -> blocks.KimiDeltaAttention:
        return attrs.evolve(super().delta_attention(decoder, layer, **others), eps=_EPS_OF_LENGTHS)

    @classmethod
    def attention(cls, decoder: Decoder, layer: int) -> blocks.LatentAttention:
        attention = latent_attention(decoder, layer, None, n_turned=0, has_output_scale=False)
        first = next(i for i, n in enumerate(decoder.n_kv_heads) if n)
        if chooses(decoder, [True] * decoder.n_layers, first)[layer]:
            return attrs.evolve(attention, indexer=cls.indexer(decoder, layer))
        return attrs.evolve(attention, reuses_choice=decoder.keys.count("attention.indexer.kpool", least=2))

    @classmethod
    def indexer(cls, decoder: Decoder, layer: int) -> PoolIndexer:
        """The indexer of a layer."""
        keys, at, n_embd = decoder.keys, f"blk.{layer}.indexer", decoder.n_embd
        n_heads, width = keys.count("attention.indexer.head_count"), keys.count("attention.indexer.key_length")
        size, n_chosen = keys.count("attention.indexer.kpool", least=2), keys.count("attention.indexer.top_k")
        if n_chosen % size:
            keys.fail("attention.indexer.top_k", n_chosen, f"a multiple of the {size} positions of a block")
        eps = keys.number("attention.layer_norm_epsilon", 0.0) or _LEAST_EPS
        pooling = Pooling(
            size,
            values=decoder.matrix(f"{at}.attn_k", n_embd, width),
            value_norm=decoder.check(
                blocks.Norm(f"{at}.k_norm.weight", width, eps, f"{at}.k_norm.bias", blocks.NormKind.LAYER)
            ),
            weights=decoder.matrix(f"{at}_compressor_gate", n_embd, width),
            places=decoder.vector(f"{at}_compressor_ape.weight", size * width, (size, width)),
        )
        return PoolIndexer(
            q=decoder.matrix(f"{at}.attn_q_b", keys.count("attention.q_lora_rank"), n_heads * width),
            keys=pooling,
            rope=None,
            n_chosen=n_chosen // size,
            weights=decoder.matrix(f"{at}.proj", n_embd, n_heads, factor=1.0 / math.sqrt(width * n_heads)),
        )

    feed_forward = partial(
        limited_feed_forward,
        has_biases=False,
        limits_activated=False,
        shares_limit=True,
        fallback=blocks.Gating.SIGMOID,
        has_weights_scale=True,
    )
