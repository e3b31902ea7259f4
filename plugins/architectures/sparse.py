"""Families whose attention is sparse, by an indexer: DeepSeek 3.2, GLM 5, dots3.note and MiniMax-M3."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from attrs import frozen

from augury.blocks import Activation, Gating, Layer, Linear, Norm, NormKind, PositionIndexer, Preparation, Rope
from augury.lowering import Builder, Choose, ChooseByHead, PositionChoice, Value
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts
from augury.plugins.architectures.latent import DeepSeek2, Mistral4, latent_attention
from augury.plugins.architectures.rope import local_base
from augury.plugins.architectures.transformer import Transformer

_EPS = 1e-6  # of the norm of the indexer's keys; files do not state it
_N_CTX_SHARED = 1 << 20  # a GLM for so many positions is 5.2, where layers share choices; its first files do not say which


@frozen
class Indexer(PositionIndexer):
    """Chooses the `n_chosen` tokens that a token attends to, among the visible ones; all of them while there are no more.

    A token keeps k = rope(k_norm(k(n))). Its q has H_i heads, turned too, and is made of the same values as attention's q. The
    score of a token is the sum of w_h * max(q_h · k, 0) over heads, with w = weights(n); of equal ones the earlier is chosen.

    Source: DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1. Its Hadamard transforms leave products as they are.
    """

    q: Linear  # → H_i * D_i
    k: Linear  # E → D_i
    k_norm: Norm
    weights: Linear  # E → H_i
    rope: Rope
    n_chosen: int

    @property
    def reach(self) -> int:
        return self.n_chosen

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        return (("cache_type_k", 1, self.k.n_out),)

    def choose(self, build: Builder, made: Sequence[Value], cache: int) -> PositionChoice:
        q, k, weights = made
        steps = (Preparation(rope=self.rope), Preparation(norm=self.k_norm, rope=self.rope))
        q, _ = build.prepare_heads((q, k), (self.k.n_out,) * 2, steps, (None, cache))
        return build.add(Choose, q, weights, cache, self.n_chosen)


@frozen
class BlockIndexer(PositionIndexer):
    """Chooses the `n_chosen` blocks of `size` positions that a token attends to, for each KV head by itself.

    A token keeps k = rope(k_norm(k(n))), and has a q = rope(q_norm(q(n))) of D_i values for each KV head. The score of a block
    is the largest q · k of the tokens in it that are seen. The last `n_local` blocks, its own the last of them, are chosen
    before all others; of equal ones the earlier is.
    """

    q: Linear  # E → G * D_i
    k: Linear  # E → D_i
    q_norm: Norm
    k_norm: Norm
    rope: Rope
    size: int
    n_chosen: int
    n_local: int

    @property
    def reach(self) -> int:
        return self.n_chosen * self.size

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        return (("cache_type_k", 1, self.k.n_out),)

    def choose(self, build: Builder, made: Sequence[Value], cache: int) -> PositionChoice:
        steps = tuple(Preparation(norm=norm, rope=self.rope) for norm in (self.q_norm, self.k_norm))
        q, _ = build.prepare_heads(made, (self.k.n_out,) * 2, steps, (None, cache))
        n_heads = self.q.n_out // self.k.n_out
        return build.add(ChooseByHead, q, cache, self.n_chosen, self.n_local, PositionChoice(n_heads, size=self.size))


def indexer(decoder: Decoder, layer: int, rope: Rope, eps: float = _EPS) -> Indexer:
    """The indexer of a layer, whose queries have the same input as attention's."""
    keys, at = decoder.keys, f"blk.{layer}.indexer"
    n_heads, size = decoder.indexer_sizes()
    return Indexer(
        q=decoder.matrix(f"{at}.attn_q_b", keys.count("attention.q_lora_rank"), n_heads * size),
        k=decoder.matrix(f"{at}.attn_k", decoder.n_embd, size),
        k_norm=decoder.check(Norm(f"{at}.k_norm.weight", size, eps, f"{at}.k_norm.bias", NormKind.LAYER)),
        weights=decoder.matrix(f"{at}.proj", decoder.n_embd, n_heads, factor=1.0 / math.sqrt(size * n_heads)),
        rope=rope,
        n_chosen=keys.count("attention.indexer.top_k"),
    )


class DeepSeek32(Mistral4):
    """DeepSeek 3.2: every layer has an indexer, whose pairs lie as NeoX has them; its multiplier is as that of Mistral 4."""

    name = "deepseek32"
    experts = {"has_weights_scale": True, "has_scales": True}
    ffn_args = {"has_scales": True}

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        return {"indexer": indexer(decoder, layer, attrs.evolve(cls.rope(decoder), is_interleaved=False))}


class GlmDsa(DeepSeek2):
    """GLM 5: some layers use the choice of the one before."""

    name = "glm-dsa"
    experts = {"has_weights_scale": True, "fallback": Gating.SIGMOID, "has_scales": True}
    ffn_args = {"has_scales": True}

    @classmethod
    def multiplier(cls, decoder: Decoder) -> float:  # noqa: ARG003 - as DeepSeek's
        return 0.0

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        is_shared = decoder.n_ctx_train >= _N_CTX_SHARED
        default = [not is_shared or each < 2 or (each - 2) % 4 == 0 for each in range(decoder.n_layers)]
        is_mtp, has_indexer = layer >= decoder.n_layers, f"blk.{layer}.indexer.proj.weight" in decoder.file.tensors
        if has_indexer if is_mtp else chooses(decoder, default)[layer]:
            return {"indexer": indexer(decoder, layer, cls.rope(decoder))}
        return {"reuses_choice": int(not is_mtp)}


def chooses(decoder: Decoder, default: list[bool] | None, first: int = 0) -> list[bool]:
    """By layer whether it has an indexer, or uses the choice of the one before.

    Args:
        decoder: Of the file.
        default: Where the file says nothing; None: it has to.
        first: The first layer that attends.
    """
    keys, key = decoder.keys, "attention.indexer.types"
    if key not in keys and default is not None:
        found = default
    elif isinstance(decoder.file.metadata.get(keys.full(key)), np.ndarray):
        found = decoder.flags(key, None)
    else:
        found = [bool(keys.count(key, least=0))] * decoder.n_layers
    if not found[first]:
        keys.fail(key, found, f"an indexer in layer {first}")
    return found


class Dots3Note(DeepSeek2):
    """dots3.note: layers with a window have other sizes, layers without one an indexer; all gate heads' outputs."""

    name = "dots3note"
    experts = {"has_weights_scale": True, "has_scales": True}
    ffn_args = {"has_scales": True}
    mtp_hidden = None

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        assert rope is not None
        norm = decoder.norm(f"blk.{layer}.attn_k_norm", decoder.n_rot)
        gate = decoder.matrix(f"blk.{layer}.attn_gate", decoder.n_embd, decoder.n_heads[layer])
        window = decoder.windows(None, is_required=True)[layer]
        if window is not None:
            local = decoder.rope(is_interleaved=True, base=local_base(decoder))
            attention = attrs.evolve(latent_attention(decoder, layer, local, suffix="_swa"), window=window)
        else:
            own = indexer(decoder, layer, attrs.evolve(rope, is_interleaved=False))
            attention = attrs.evolve(latent_attention(decoder, layer, rope), indexer=own)
        return Layer(attrs.evolve(attention, turned_norm=norm, gate=gate), cls.feed_forward(decoder, layer))

    @classmethod
    def rope(cls, decoder: Decoder) -> Rope:
        return decoder.rope(is_interleaved=True)


class MinimaxM3(Transformer):
    """Layers with experts attend to chosen blocks of positions; the choice differs by KV head."""

    name = "minimax-m3"
    experts = {"activation": Activation.SWIGLU_OAI, "has_weights_scale": True}
    ffn_args = {"activation": Activation.SWIGLU_OAI, "has_biases": False}
    attention_args = {"has_head_norms": True, "has_output_bias": False}

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        if not has_experts(decoder, layer):
            return {}
        keys, at = decoder.keys, f"blk.{layer}.indexer"
        n_heads, size = decoder.indexer_sizes()
        if n_heads != decoder.n_kv_heads[layer]:
            keys.fail("attention.indexer.head_count", n_heads, f"the number of KV heads, {decoder.n_kv_heads[layer]}")
        own = BlockIndexer(
            q=decoder.matrix(f"{at}.q_proj", decoder.n_embd, n_heads * size),
            k=decoder.matrix(f"{at}.k_proj", decoder.n_embd, size),
            q_norm=decoder.norm(f"{at}.q_norm", size),
            k_norm=decoder.norm(f"{at}.k_norm", size),
            rope=decoder.rope(),
            size=keys.count("attention.indexer.block_size"),
            n_chosen=keys.count("attention.indexer.top_k"),
            n_local=keys.count("attention.indexer.local_blocks", least=0),
        )
        return {"indexer": own}
