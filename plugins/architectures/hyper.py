"""Families with several residual streams, which hyper-connections read and write: DeepSeek 4, GLM 5 Next and Hunyuan 4."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from augury.blocks import (
    CompressedAttention,
    FeedForward,
    Gating,
    HyperConnection,
    Integers,
    KimiDeltaAttention,
    LatentAttention,
    Layer,
    Matrices,
    MixtureOfExperts,
    ModelPlan,
    Norm,
    NormKind,
    Output,
    PoolIndexer,
    Pooling,
    Rope,
    StreamMean,
    Vector,
)
from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, limit, limited_feed_forward, mixture
from augury.plugins.architectures.kimi import KimiK3
from augury.plugins.architectures.latent import latent_attention
from augury.plugins.architectures.rope import MAX_POSITIONS, base_of, local_size
from augury.plugins.architectures.sparse import chooses, indexer
from augury.plugins.architectures.transformer import Transformer

_PLAIN: Mapping[str, Any] = {"has_scale": False, "has_bias": False}
_OVERLAPPING = 4  # positions of the smaller blocks of DeepSeek 4, which overlap
_RATIOS = (0, _OVERLAPPING, 128)
_LEAST_EPS = 1e-12  # of norms whose epsilon a file does not state: llama.cpp takes 0
_EPS_OF_LENGTHS = 1e-6  # of queries and keys of delta attention; files do not state it


def connection(decoder: Decoder, name: str, n_parts: int, **others: Any) -> HyperConnection:
    """The hyper-connection of tensors `NAME_fn`, `NAME_base` and `NAME_scale`.

    Args:
        decoder: Of the file.
        name: What its tensors begin with.
        n_parts: Of its coefficients: 1 to read streams, 2 to write them as well, 3 to mix them as well.
        **others: Other fields.
    """
    n = decoder.keys.count("hyper_connection.count")
    n_coefficients = sum((n, n, n * n)[:n_parts])
    made = HyperConnection(
        norm=Norm(None, n * decoder.n_embd, decoder.eps),
        coefficients=decoder.linear(f"{name}_fn", n * decoder.n_embd, n_coefficients, has_scale=False, has_bias=False),
        scales=Vector(f"{name}_scale.weight", n_parts),
        base=Vector(f"{name}_base.weight", n_coefficients),
        n_streams=n,
        eps=decoder.keys.number("hyper_connection.epsilon"),
        **others,
    )
    for part in (made.scales, made.base):
        decoder.check(part)
    return made


def plain_output(decoder: Decoder) -> Output:
    """The last block, of families that take no note of a scale or bias of it."""
    output = decoder.output(has_bias=False)
    assert output.weight is not None
    return attrs.evolve(output, weight=attrs.evolve(output.weight, scale=1.0))


class HunyuanV4(Transformer):
    """Hunyuan 4: gated latent attention with sinks, whose indexer some layers share; streams are not mixed."""

    name = "hy_v4"
    rotary = {"is_interleaved": True}
    experts = {"has_weights_scale": True, "has_scales": False}
    feeding = {"has_scales": False, "has_biases": False}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        """A layer, from 0."""
        assert rope is not None
        keys, at = decoder.keys, f"blk.{layer}"
        attention = latent_attention(decoder, layer, rope)
        sinks = Vector(f"{at}.attn_sinks.weight", decoder.n_heads[layer])
        decoder.check(sinks)
        gate = decoder.linear(f"{at}.attn_gate", decoder.n_embd, attention.o.n_in, **_PLAIN)
        choice: Mapping[str, Any] = {}
        if keys.count("attention.indexer.top_k", 0, least=0):
            size = keys.count("attention.indexer.key_length")
            choice = {"reuses_choice": True}
            if chooses(decoder, None)[layer]:
                turned = attrs.evolve(rope, offset=size - decoder.n_rot)
                choice = {"indexer": indexer(decoder, layer, turned, eps=decoder.eps)}
        post = {"post_scale": keys.number("hyper_connection.magnitude"), "post_eps": keys.number("hyper_connection.epsilon")}
        mixer, feed_forward = (connection(decoder, f"{at}.hc_{part}", 2, **post) for part in ("attn", "ffn"))
        o = decoder.linear(f"{at}.attn_output", attention.o.n_in, decoder.n_embd, **_PLAIN)
        attention = attrs.evolve(attention, o=o, sinks=sinks, gate=gate, **choice)
        return Layer(attention, cls.feed_forward(decoder, layer)).connected(mixer, feed_forward)

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> Any:
        """The feed-forward of a layer; what experts hide is limited."""
        if not has_experts(decoder, layer):
            return decoder.feed_forward(layer, **cls.feeding)
        return mixture(decoder, layer, limit=limit(decoder, layer, "swiglu_clamp_exp"), **(cls.experts or {}))

    @classmethod
    def embedding(cls, decoder: Decoder) -> Mapping[str, Any]:
        """How many streams there are."""
        return {"n_streams": decoder.keys.count("hyper_connection.count")}

    @classmethod
    def output(cls, decoder: Decoder) -> Output:
        """The last block."""
        return attrs.evolve(plain_output(decoder), connection=connection(decoder, "output_hc", 1))


def mixed_streams(decoder: Decoder, layer: int) -> list[HyperConnection]:
    """The connections of a layer whose streams are mixed."""
    n_rounds = max(decoder.keys.count("hyper_connection.sinkhorn_iterations", least=0), 1)
    names = (f"blk.{layer}.hc_{part}" for part in ("attn", "ffn"))
    return [connection(decoder, name, 3, post_scale=2.0, n_rounds=n_rounds) for name in names]


class DeepSeek4(Transformer):
    """DeepSeek 4: attention to the last tokens, and to rows that are pooled of four or of 128, by layer."""

    name = "deepseek4"
    experts = {"gating": Gating.SQRT_SOFTPLUS, "has_weights_scale": True}
    nextn_hidden = "layer"

    @classmethod
    def decoder(cls, file: ModelFile) -> Decoder:
        """The sizes of a file; layers that predict further tokens count as others where they are not complete."""
        decoder = super().decoder(file)
        decoder.n_rot = local_size(decoder)  # all layers have a window
        n_next = decoder.keys.count("nextn_predict_layers", 0, least=0)
        if n_next and f"blk.{decoder.n_layers}.nextn.eh_proj.weight" not in file.tensors:
            decoder.n_layers += n_next
        return decoder

    @classmethod
    def rope(cls, decoder: Decoder) -> None:
        """Layers have different ones."""

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:  # noqa: ARG003 - see `rope`
        """A layer, from 0."""
        keys, key = decoder.keys, "attention.compress_ratios"
        ratios = decoder.file.get(keys.full(key), list[int])
        if len(ratios) < max(layer + 1, decoder.n_layers) or any(ratio not in _RATIOS for ratio in ratios):
            keys.fail(key, ratios[:8], f"{decoder.n_layers} of 0, 4 and 128, one per layer")
        mixer = cls.attention(decoder, layer, ratios[layer])
        return Layer(mixer, cls.feed_forward(decoder, layer)).connected(*mixed_streams(decoder, layer))

    @classmethod
    def attention(cls, decoder: Decoder, layer: int, ratio: int) -> CompressedAttention:
        """The attention of a layer that pools so many positions; 0: none."""
        keys, at, n_embd, size = decoder.keys, f"blk.{layer}", decoder.n_embd, decoder.head_dim
        n_heads, n_low, n_rot = decoder.n_heads[layer], keys.count("attention.q_lora_rank"), decoder.n_rot
        n_groups, n_out = keys.count("attention.output_group_count"), keys.count("attention.output_lora_rank")
        if n_heads % n_groups:
            keys.fail("attention.output_group_count", n_groups, f"a divisor of the {n_heads} heads")
        base = base_of(decoder, "attention.compress_rope_freq_base") if ratio else None
        rope = decoder.rope(is_interleaved=True, base=base, is_scaled=ratio > 0)
        rope = attrs.evolve(rope, magnitude=1.0, offset=size - n_rot)
        groups = Matrices(f"{at}.attn_output_a.weight", n_groups, n_heads // n_groups * size, n_out)
        sinks = Vector(f"{at}.attn_sinks.weight", n_heads)
        decoder.check(sinks)
        stored = decoder.file.tensor(groups.weight).shape
        if stored == (n_groups * n_out, groups.n_in):
            groups = attrs.evolve(groups, is_flat=True)
        decoder.file.tensor(groups.weight, groups.shapes[groups.weight])
        return CompressedAttention(
            norm=decoder.norm(f"{at}.attn_norm"),
            q_down=decoder.linear(f"{at}.attn_q_a", n_embd, n_low, **_PLAIN),
            q_norm=decoder.norm(f"{at}.attn_q_a_norm", n_low),
            q=decoder.linear(f"{at}.attn_q_b", n_low, n_heads * size, **_PLAIN),
            head_norm=Norm(None, size, decoder.eps),
            kv=decoder.linear(f"{at}.attn_kv", n_embd, size, **_PLAIN),
            kv_norm=decoder.norm(f"{at}.attn_kv_a_norm", size),
            rope=rope,
            sinks=sinks,
            window=keys.count("attention.sliding_window", most=MAX_POSITIONS),
            scale=1.0 / math.sqrt(size),
            groups=groups,
            o=decoder.linear(f"{at}.attn_output_b", n_groups * n_out, n_embd, **_PLAIN),
            pooling=cls.pooling(decoder, f"{at}.attn", ratio, size, rope) if ratio else None,
            indexer=cls.indexer(decoder, layer, ratio, rope) if ratio == _OVERLAPPING else None,
        )

    @classmethod
    def pooling(cls, decoder: Decoder, at: str, ratio: int, size: int, rope: Rope) -> Pooling:
        """What pools so many positions to rows of a size."""
        n = size * (2 if ratio == _OVERLAPPING else 1)
        pooling = Pooling(
            ratio,
            decoder.linear(f"{at}_compressor_kv", decoder.n_embd, n, **_PLAIN),
            weights=decoder.linear(f"{at}_compressor_gate", decoder.n_embd, n, **_PLAIN),
            places=Vector(f"{at}_compressor_ape.weight", ratio * n, (ratio, n)),
            norm=decoder.norm(f"{at}_compressor_norm", size),
            rope=attrs.evolve(rope, offset=size - decoder.n_rot),
            overlaps=ratio == _OVERLAPPING,
        )
        assert pooling.places is not None
        decoder.check(pooling.places)
        return pooling

    @classmethod
    def indexer(cls, decoder: Decoder, layer: int, ratio: int, rope: Rope) -> PoolIndexer:
        """The indexer of a layer."""
        keys, at = decoder.keys, f"blk.{layer}.indexer"
        n_heads, width = keys.count("attention.indexer.head_count"), keys.count("attention.indexer.key_length")
        if width < decoder.n_rot:
            keys.fail("attention.indexer.key_length", width, f"at least the {decoder.n_rot} values that rope turns")
        return PoolIndexer(
            q=decoder.linear(f"{at}.attn_q_b", keys.count("attention.q_lora_rank"), n_heads * width, **_PLAIN),
            keys=cls.pooling(decoder, at, ratio, width, rope),
            rope=attrs.evolve(rope, offset=width - decoder.n_rot),
            n_chosen=keys.count("attention.indexer.top_k"),
            weights=decoder.linear(f"{at}.proj", decoder.n_embd, n_heads, factor=1.0 / math.sqrt(width * n_heads), **_PLAIN),
        )

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> FeedForward | MixtureOfExperts:
        """The feed-forward of a layer; gates are limited. The first layers' experts are chosen by token id."""
        block = limited_feed_forward(decoder, layer, limits_activated=False, shares_limit=True, **(cls.experts or {}))
        if layer >= decoder.keys.count("hash_layer_count", least=0) or not isinstance(block, MixtureOfExperts):
            return block
        router = block.router
        table = Integers(f"blk.{layer}.ffn_gate_tid2eid.weight", (decoder.n_vocab, router.n_used))
        decoder.file.integers(table.weight, table.shape, router.logits.n_out)
        return attrs.evolve(block, router=attrs.evolve(router, bias=None, token_experts=table))

    @classmethod
    def embedding(cls, decoder: Decoder) -> Mapping[str, Any]:
        """How many streams there are."""
        return {"n_streams": decoder.keys.count("hyper_connection.count")}

    @classmethod
    def output(cls, decoder: Decoder) -> Output:
        """The last block."""
        return attrs.evolve(plain_output(decoder), connection=connection(decoder, "output_hc", 1))


class Glm5Next(KimiK3):
    """GLM 5 Next: Kimi's delta attention, and latent attention without rope to pooled blocks of positions."""

    name = "glm5-next"
    gate_names = ("ssm_g_a", "ssm_g_b")

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file, least=0, may_have_experts=True)
        keys, n = decoder.keys, decoder.keys.count("hyper_connection.count")
        if n_rot := keys.count("rope.dimension_count", least=0):
            keys.fail("rope.dimension_count", n_rot, "0: attention has no rope")
        if not keys.flag("attention.indexer.kpool_select_tail", default=False):
            keys.fail("attention.indexer.kpool_select_tail", False, "true: tokens see those of the last block")
        layers = [cls.layer(decoder, layer) for layer in range(decoder.n_layers)]
        output = attrs.evolve(plain_output(decoder), connection=StreamMean())
        return {"main": decoder.plan(layers, output=output, n_streams=n)}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int) -> Layer:
        """A layer, from 0."""
        mixer = cls.attention(decoder, layer) if decoder.n_kv_heads[layer] else cls.delta_attention(decoder, layer)
        return Layer(mixer, cls.feed_forward(decoder, layer)).connected(*mixed_streams(decoder, layer))

    @classmethod
    def delta_attention(cls, decoder: Decoder, layer: int, **others: Any) -> KimiDeltaAttention:
        """The delta attention of a layer."""
        return attrs.evolve(super().delta_attention(decoder, layer, **others), eps=_EPS_OF_LENGTHS)

    @classmethod
    def attention(cls, decoder: Decoder, layer: int) -> LatentAttention:
        """The latent attention of a layer."""
        attention = latent_attention(decoder, layer, None, n_turned=0)
        attention = attrs.evolve(attention, o=attrs.evolve(attention.o, scale=1.0))
        first = next(i for i, n in enumerate(decoder.n_kv_heads) if n)
        if chooses(decoder, [True] * decoder.n_layers, first)[layer]:
            return attrs.evolve(attention, indexer=cls.indexer(decoder, layer))
        return attrs.evolve(attention, reuses_choice=True)

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
            values=decoder.linear(f"{at}.attn_k", n_embd, width, **_PLAIN),
            value_norm=Norm(f"{at}.k_norm.weight", width, eps, f"{at}.k_norm.bias", NormKind.LAYER),
            weights=decoder.linear(f"{at}_compressor_gate", n_embd, width, **_PLAIN),
            places=Vector(f"{at}_compressor_ape.weight", size * width, (size, width)),
        )
        for part in pooling.tensors():
            for name, shape in part.shapes.items():
                decoder.file.tensor(name, shape)
        return PoolIndexer(
            q=decoder.linear(f"{at}.attn_q_b", keys.count("attention.q_lora_rank"), n_heads * width, **_PLAIN),
            keys=pooling,
            rope=None,
            n_chosen=n_chosen // size,
            weights=decoder.linear(f"{at}.proj", n_embd, n_heads, factor=1.0 / math.sqrt(width * n_heads), **_PLAIN),
        )

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> FeedForward | MixtureOfExperts:
        """The feed-forward of a layer; gates are limited."""
        return limited_feed_forward(
            decoder,
            layer,
            has_biases=False,
            limits_activated=False,
            shares_limit=True,
            fallback=Gating.SIGMOID,
            has_weights_scale=True,
        )


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer the architectures of this page."""
    return (DeepSeek4, Glm5Next, HunyuanV4)
