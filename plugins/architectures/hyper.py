"""Families with several residual streams, which hyper-connections read and write: GLM 5 Next and Hunyuan 4."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from augury import blocks
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import expert_limit, limited_feed_forward
from augury.plugins.architectures.kimi import KimiK3
from augury.plugins.architectures.latent import latent_attention
from augury.plugins.architectures.sparse import chooses, indexer
from augury.plugins.architectures.transformer import Transformer
from augury.plugins.pooling import PoolIndexer, Pooling
from augury.plugins.residual_streams import HyperConnection, StreamMean

_LEAST_EPS = 1e-12  # of norms whose epsilon a file does not state: llama.cpp takes 0
_EPS_OF_LENGTHS = 1e-6  # of queries and keys of delta attention; files do not state it


def connection(decoder: Decoder, name: str, n_parts: int, **others: Any) -> HyperConnection:
    """The hyper-connection of tensors `NAME_fn`, `NAME_base` and `NAME_scale`.

    Args:
        decoder: Of the file.
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


def plain_output(decoder: Decoder) -> blocks.Output:
    """The last block, of families that take no note of a scale or bias of it."""
    output = decoder.output(has_bias=False)
    assert output.weight is not None
    return attrs.evolve(output, weight=attrs.evolve(output.weight, scale=1.0))


class HyperConnected(Transformer):
    """A family with residual streams from the embedding to the output, which has a connection of its own."""

    embedding_args = {"n_streams": lambda decoder: decoder.keys.count("hyper_connection.count")}

    @classmethod
    def output(cls, decoder: Decoder) -> blocks.Output:
        return attrs.evolve(plain_output(decoder), connection=connection(decoder, "output_hc", 1))

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
        attention = latent_attention(decoder, layer, rope)
        sinks = decoder.vector(f"{at}.attn_sinks.weight", decoder.n_heads[layer])
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
        o = decoder.matrix(f"{at}.attn_output", attention.o.n_in, decoder.n_embd)
        attention = attrs.evolve(attention, o=o, sinks=sinks, gate=gate, **choice)
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
        output = attrs.evolve(plain_output(decoder), connection=StreamMean())
        return {"main": decoder.plan(layers, output=output, n_streams=n)}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: blocks.Rope | None) -> blocks.Layer:  # noqa: ARG003 - it has none
        mixer = cls.attention(decoder, layer) if decoder.n_kv_heads[layer] else cls.delta_attention(decoder, layer)
        return blocks.Layer(mixer, cls.feed_forward(decoder, layer)).connected(*mixed_streams(decoder, layer))

    @classmethod
    def delta_attention(cls, decoder: Decoder, layer: int, **others: Any) -> blocks.KimiDeltaAttention:
        return attrs.evolve(super().delta_attention(decoder, layer, **others), eps=_EPS_OF_LENGTHS)

    @classmethod
    def attention(cls, decoder: Decoder, layer: int) -> blocks.LatentAttention:
        attention = latent_attention(decoder, layer, None, n_turned=0)
        attention = attrs.evolve(attention, o=attrs.evolve(attention.o, scale=1.0))
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

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> blocks.FeedForward | blocks.MixtureOfExperts:
        return limited_feed_forward(
            decoder,
            layer,
            has_biases=False,
            limits_activated=False,
            shares_limit=True,
            fallback=blocks.Gating.SIGMOID,
            has_weights_scale=True,
        )
