"""DeepSeek 4: attention to the last tokens and to pooled rows, and residual streams that are mixed."""

from __future__ import annotations

import math

import attrs

from augury.blocks import FeedForward, Gating, Integers, Layer, Matrices, MixtureOfExperts, Norm, Rope
from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import limited_feed_forward
from augury.plugins.architectures.rope import MAX_POSITIONS, base_of, local_size
from augury.plugins.architectures.streams import HyperConnected, mixed_streams
from augury.plugins.compressed_attention.block import CompressedAttention
from augury.plugins.pooling import PoolIndexer, Pooling

_OVERLAPPING = 4  # positions of the smaller blocks, which overlap
_RATIOS = (0, _OVERLAPPING, 128)


class DeepSeek4(HyperConnected):
    """DeepSeek 4: attention to the last tokens, and to rows that are pooled of four or of 128, by layer."""

    name = "deepseek4"
    experts = {"gating": Gating.SQRT_SOFTPLUS, "has_weights_scale": True}
    mtp_hidden = "layer"

    @classmethod
    def decoder(cls, file: ModelFile) -> Decoder:
        """The sizes of a file; layers that predict further tokens count as others where they are not complete."""
        decoder = super().decoder(file)
        decoder.n_rot = local_size(decoder)  # all layers have a window
        if not decoder.has_mtp:
            decoder.n_layers = decoder.n_stored
        return decoder

    @classmethod
    def rope(cls, decoder: Decoder) -> None:
        """Layers have different ones."""

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:  # noqa: ARG003 - see `rope`
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
        sinks = decoder.vector(f"{at}.attn_sinks.weight", n_heads)
        stored = decoder.file.tensor(groups.weight).shape
        if stored == (n_groups * n_out, groups.n_in):
            groups = attrs.evolve(groups, is_flat=True)
        decoder.check(groups)
        return CompressedAttention(
            norm=decoder.norm(f"{at}.attn_norm"),
            q_down=decoder.matrix(f"{at}.attn_q_a", n_embd, n_low),
            q_norm=decoder.norm(f"{at}.attn_q_a_norm", n_low),
            q=decoder.matrix(f"{at}.attn_q_b", n_low, n_heads * size),
            head_norm=Norm(None, size, decoder.eps),
            kv=decoder.matrix(f"{at}.attn_kv", n_embd, size),
            kv_norm=decoder.norm(f"{at}.attn_kv_a_norm", size),
            rope=rope,
            sinks=sinks,
            window=keys.count("attention.sliding_window", most=MAX_POSITIONS),
            scale=1.0 / math.sqrt(size),
            groups=groups,
            o=decoder.matrix(f"{at}.attn_output_b", n_groups * n_out, n_embd),
            pooling=cls.pooling(decoder, f"{at}.attn", ratio, size, rope) if ratio else None,
            indexer=cls.indexer(decoder, layer, ratio, rope) if ratio == _OVERLAPPING else None,
        )

    @classmethod
    def pooling(cls, decoder: Decoder, at: str, ratio: int, size: int, rope: Rope) -> Pooling:
        """The pooling of so many positions to rows of a size."""
        n = size * (2 if ratio == _OVERLAPPING else 1)
        return Pooling(
            ratio,
            decoder.matrix(f"{at}_compressor_kv", decoder.n_embd, n),
            weights=decoder.matrix(f"{at}_compressor_gate", decoder.n_embd, n),
            places=decoder.vector(f"{at}_compressor_ape.weight", ratio * n, (ratio, n)),
            norm=decoder.norm(f"{at}_compressor_norm", size),
            rope=attrs.evolve(rope, offset=size - decoder.n_rot),
            overlaps=ratio == _OVERLAPPING,
        )

    @classmethod
    def indexer(cls, decoder: Decoder, layer: int, ratio: int, rope: Rope) -> PoolIndexer:
        """The indexer of a layer."""
        keys, at = decoder.keys, f"blk.{layer}.indexer"
        n_heads, width = decoder.indexer_sizes()
        return PoolIndexer(
            q=decoder.matrix(f"{at}.attn_q_b", keys.count("attention.q_lora_rank"), n_heads * width),
            keys=cls.pooling(decoder, at, ratio, width, rope),
            rope=attrs.evolve(rope, offset=width - decoder.n_rot),
            n_chosen=keys.count("attention.indexer.top_k"),
            weights=decoder.matrix(f"{at}.proj", decoder.n_embd, n_heads, factor=1.0 / math.sqrt(width * n_heads)),
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


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer DeepSeek 4."""
    return (DeepSeek4,)
