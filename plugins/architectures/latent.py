"""Latent attention, and attention to the positions that an indexer chooses: DeepSeek 2 to 3.2, GLM 5, MiniMax-M3 and others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from attrs import frozen

from augury import blocks
from augury.lowering import Builder, Choose, ChooseByHead, PositionChoice, Value
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts
from augury.plugins.architectures.rope import MAX_POSITIONS, local_base
from augury.plugins.architectures.transformer import Transformer, of_file

_EPS = 1e-6  # of the norm of the indexer's keys; files do not state it
_N_CTX_SHARED = 1 << 20  # a GLM for so many positions is 5.2, where layers share choices; its first files do not say which


def latent_attention(
    decoder: Decoder,
    layer: int,
    rope: blocks.Rope | None,
    *,
    factor: float = 1.0,
    has_output_scale: bool = True,
    suffix: str = "",
    n_turned: int | None = None,
    **others: Any,
) -> blocks.LatentAttention:
    """The latent attention of a layer.

    Args:
        rope: Of a part of queries, and of the keys' part that all heads share, if any.
        has_output_scale: Whether the family takes note of a scale tensor of o.
        suffix: Of the keys that say how large heads and latents are.
        n_turned: R, where it is not the number of values that rope turns.
    """
    keys, at, tensors, n_heads = decoder.keys, f"blk.{layer}", decoder.file.tensors, decoder.n_heads[layer]
    n_embd, n_latent = decoder.n_embd, keys.count(f"attention.kv_lora_rank{suffix}")
    n_turned = decoder.n_rot if n_turned is None else n_turned
    is_split = f"{at}.attn_k_b.weight" in tensors
    key_dim = keys.count(f"attention.key_length_mla{suffix}", 0, least=0) or decoder.head_dim
    value_dim = keys.count(f"attention.value_length_mla{suffix}", 0, least=0) or decoder.value_dim
    n_plain = key_dim - n_turned
    if n_plain < 0:
        keys.fail(f"attention.key_length_mla{suffix}", key_dim, f"at least the {n_turned} values that rope turns")
    if is_split:
        to_latent = blocks.Matrices(f"{at}.attn_k_b.weight", n_heads, n_plain, n_latent)
        from_latent = blocks.Matrices(f"{at}.attn_v_b.weight", n_heads, n_latent, value_dim)
    else:
        common: dict[str, Any] = {"n_stored": n_plain + value_dim, "is_flat": True}
        name = f"{at}.attn_kv_b.weight"
        to_latent = blocks.Matrices(name, n_heads, n_plain, n_latent, is_transposed=True, **common)
        from_latent = blocks.Matrices(name, n_heads, n_latent, value_dim, first=n_plain, **common)
    for part in (to_latent, from_latent):
        decoder.check(part)
    is_low = f"{at}.attn_q_a.weight" in tensors
    n_low = keys.count("attention.q_lora_rank") if is_low else n_embd
    o = decoder.linear(
        f"{at}.attn_output", n_heads * value_dim, n_embd, has_bias=False, has_scale=has_output_scale, factor=factor
    )
    attention = blocks.LatentAttention(
        norm=decoder.norm(f"{at}.attn_norm"),
        q=decoder.matrix(f"{at}.attn_q_b" if is_low else f"{at}.attn_q", n_low, n_heads * key_dim),
        kv=decoder.matrix(f"{at}.attn_kv_a_mqa", n_embd, n_latent + n_turned),
        kv_norm=decoder.norm(f"{at}.attn_kv_a_norm", n_latent),
        keys=to_latent,
        values=from_latent,
        o=o,
        scale=1.0 / math.sqrt(key_dim),
        rope=rope,
        q_down=decoder.matrix(f"{at}.attn_q_a", n_embd, n_low) if is_low else None,
        q_norm=decoder.norm(f"{at}.attn_q_a_norm", n_low) if is_low else None,
    )
    return attrs.evolve(attention, **others)


@frozen
class Indexer(blocks.PositionIndexer):
    """Chooses the `n_chosen` tokens that a token attends to, among the visible ones; all of them while there are no more.

    A token keeps k = rope(k_norm(k(n))). Its q has H_i heads, turned too, and is made of the same values as attention's q. The
    score of a token is the sum of w_h * max(q_h · k, 0) over heads, with w = weights(n); of equal ones the earlier is chosen.

    Source: DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1. Its Hadamard transforms leave products as they are.
    """

    q: blocks.Linear  # → H_i * D_i
    k: blocks.Linear  # E → D_i
    k_norm: blocks.Norm
    weights: blocks.Linear  # E → H_i
    rope: blocks.Rope
    n_chosen: int

    @property
    def reach(self) -> int:
        return self.n_chosen

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        return (("cache_type_k", 1, self.k.n_out),)

    def choose(self, build: Builder, made: Sequence[Value], cache: int) -> PositionChoice:
        q, k, weights = made
        steps = (blocks.Preparation(rope=self.rope), blocks.Preparation(norm=self.k_norm, rope=self.rope))
        q, _ = build.prepare_heads((q, k), (self.k.n_out,) * 2, steps, (None, cache))
        return build.add(Choose, q, weights, cache, self.n_chosen)


@frozen
class BlockIndexer(blocks.PositionIndexer):
    """Chooses the `n_chosen` blocks of `size` positions that a token attends to, for each KV head by itself.

    A token keeps k = rope(k_norm(k(n))), and has a q = rope(q_norm(q(n))) of D_i values for each KV head. The score of a block
    is the largest q · k of the tokens in it that are seen. The last `n_local` blocks, its own the last of them, are chosen
    before all others; of equal ones the earlier is.
    """

    q: blocks.Linear  # E → G * D_i
    k: blocks.Linear  # E → D_i
    q_norm: blocks.Norm
    k_norm: blocks.Norm
    rope: blocks.Rope
    size: int
    n_chosen: int
    n_local: int

    @property
    def reach(self) -> int:
        return self.n_chosen * self.size

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        return (("cache_type_k", 1, self.k.n_out),)

    def choose(self, build: Builder, made: Sequence[Value], cache: int) -> PositionChoice:
        steps = tuple(blocks.Preparation(norm=norm, rope=self.rope) for norm in (self.q_norm, self.k_norm))
        q, _ = build.prepare_heads(made, (self.k.n_out,) * 2, steps, (None, cache))
        n_heads = self.q.n_out // self.k.n_out
        return build.add(ChooseByHead, q, cache, self.n_chosen, self.n_local, PositionChoice(n_heads, size=self.size))


def indexer(decoder: Decoder, layer: int, rope: blocks.Rope, eps: float = _EPS) -> Indexer:
    """The indexer of a layer, whose queries have the same input as attention's."""
    keys, at = decoder.keys, f"blk.{layer}.indexer"
    n_heads, size = decoder.indexer_sizes()
    return Indexer(
        q=decoder.matrix(f"{at}.attn_q_b", keys.count("attention.q_lora_rank"), n_heads * size),
        k=decoder.matrix(f"{at}.attn_k", decoder.n_embd, size),
        k_norm=decoder.check(blocks.Norm(f"{at}.k_norm.weight", size, eps, f"{at}.k_norm.bias", blocks.NormKind.LAYER)),
        weights=decoder.matrix(f"{at}.proj", decoder.n_embd, n_heads, factor=1.0 / math.sqrt(size * n_heads)),
        rope=rope,
        n_chosen=keys.count("attention.indexer.top_k"),
    )


class DeepSeek2(Transformer):
    """DeepSeek 2 and 3: the first layers have no experts, and some experts are shared.

    Where positions are stretched, scores grow; `log_multiplier` says how much, and then rope leaves lengths as they are.
    """

    name = "deepseek2"
    attention_args = {"temperature": lambda decoder, _: _temperature(decoder)}
    experts = {"has_weights_scale": True}
    mtp_hidden = "output"

    @classmethod
    def rope(cls, decoder: Decoder) -> blocks.Rope:
        rope, multiplier = decoder.rope(is_interleaved=True), cls.multiplier(decoder)
        if not multiplier or not _is_yarn(decoder):
            return rope
        return attrs.evolve(rope, magnitude=rope.magnitude / _sharpness(decoder) * cls.stretched(decoder, multiplier))

    @classmethod
    def stretched(cls, decoder: Decoder, multiplier: float) -> float:  # noqa: ARG003 - as those built like it
        """Rope's factor of lengths, given the multiplier."""
        return 1.0

    @classmethod
    def multiplier(cls, decoder: Decoder) -> float:
        """The factor of the logarithm of how much longer the context is; converters write a tenth of it."""
        return decoder.keys.number("rope.scaling.yarn_log_multiplier", 0.0) / 0.1

    @classmethod
    def mixer(cls, decoder: Decoder, layer: int, rope: blocks.Rope | None) -> blocks.LatentAttention:
        assert rope is not None
        growth = rope.magnitude * (1.0 if _is_yarn(decoder) else _sharpness(decoder))
        growth *= 1.0 + cls.multiplier(decoder) * (_sharpness(decoder) - 1.0)
        attention = latent_attention(decoder, layer, rope, **of_file(cls.attention_args, decoder, layer))
        return attrs.evolve(attention, scale=attention.scale * growth**2)


def _is_yarn(decoder: Decoder) -> bool:
    return decoder.keys.text("rope.scaling.type", "linear") == "yarn"


def _sharpness(decoder: Decoder) -> float:
    """YaRN's own factor of lengths."""
    is_scaled = decoder.keys.text("rope.scaling.type", "linear") != "none"
    return 1.0 + 0.1 * math.log(max(decoder.keys.number("rope.scaling.factor", 0.0), 1.0)) if is_scaled else 1.0


def _temperature(decoder: Decoder) -> blocks.Temperature | None:
    keys = decoder.keys
    if not (scale := keys.number("attention.temperature_scale", 0.0)):
        return None
    return blocks.Temperature(scale, keys.count("attention.temperature_length", most=MAX_POSITIONS))


def chooses(decoder: Decoder, default: list[bool] | None, first: int = 0) -> list[bool]:
    """By layer whether it has an indexer, or uses the choice of the one before.

    Args:
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


def _shared_choice(decoder: Decoder, layer: int) -> Mapping[str, Any]:
    is_shared = decoder.n_ctx_train >= _N_CTX_SHARED
    default = [not is_shared or each < 2 or (each - 2) % 4 == 0 for each in range(decoder.n_layers)]
    is_mtp, has_indexer = layer >= decoder.n_layers, f"blk.{layer}.indexer.proj.weight" in decoder.file.tensors
    if has_indexer if is_mtp else chooses(decoder, default)[layer]:
        return {"indexer": indexer(decoder, layer, decoder.rope(is_interleaved=True))}
    return {"reuses_choice": int(not is_mtp)}


def _windowed(decoder: Decoder, layer: int, rope: blocks.Rope) -> blocks.LatentAttention:
    norm = decoder.norm(f"blk.{layer}.attn_k_norm", decoder.n_rot)
    gate = decoder.matrix(f"blk.{layer}.attn_gate", decoder.n_embd, decoder.n_heads[layer])
    if (window := decoder.windows(None, is_required=True)[layer]) is not None:
        local = decoder.rope(is_interleaved=True, base=local_base(decoder))
        return latent_attention(decoder, layer, local, suffix="_swa", window=window, turned_norm=norm, gate=gate)
    own = indexer(decoder, layer, attrs.evolve(rope, is_interleaved=False))
    return latent_attention(decoder, layer, rope, indexer=own, turned_norm=norm, gate=gate)


Mistral4 = DeepSeek2.family(
    "mistral4",
    "DeepSeek's layers; its multiplier is a share of rope's factor of lengths.",
    stretched=lambda decoder, multiplier: _sharpness(decoder) / (1.0 + multiplier * (_sharpness(decoder) - 1.0)),
)
DeepSeek32 = Mistral4.family(
    "deepseek32",
    "DeepSeek 3.2: every layer has an indexer, whose pairs lie as NeoX has them; its multiplier is as that of Mistral 4.",
    attention_args={
        "indexer": lambda decoder, layer: indexer(decoder, layer, attrs.evolve(Mistral4.rope(decoder), is_interleaved=False))
    },
    ffn_args={"has_scales": True},
    experts={"has_weights_scale": True, "has_scales": True},
)
GlmDsa = DeepSeek2.family(
    "glm-dsa",
    "GLM 5: some layers use the choice of the one before.",
    multiplier=lambda _: 0.0,
    attention_args=_shared_choice,
    ffn_args={"has_scales": True},
    experts={"has_weights_scale": True, "fallback": blocks.Gating.SIGMOID, "has_scales": True},
)
Dots3Note = Transformer.family(
    "dots3note",
    "dots3.note: layers with a window have other sizes, layers without one an indexer; all gate heads' outputs.",
    rope_args={"is_interleaved": True},
    mixer=_windowed,
    ffn_args={"has_scales": True},
    experts={"has_weights_scale": True, "has_scales": True},
)
MiniCpm3 = Transformer.family(
    "minicpm3",
    "Dense, with scales that its files do not state.",
    rope_args={"has_factors": True},
    mixer=lambda decoder, layer, rope: latent_attention(decoder, layer, rope, factor=1.4 / math.sqrt(decoder.n_layers)),
    ffn_args={"factor": lambda decoder, _: 1.4 / math.sqrt(decoder.n_layers)},
    embedding_args={"scale": 12.0},
    output_args={"scale": lambda decoder: 256.0 / decoder.n_embd},
)
Plm = Transformer.family(
    "plm",
    "Dense, without gates; the embedding's weights give the logits.",
    rope_args={"is_interleaved": True},
    mixer=latent_attention,
    ffn_args={"activation": blocks.Activation.RELU_SQUARED, "gate": None, "has_biases": False},
    output_args={"is_tied": True, "has_bias": False},
)


def _chosen_blocks(decoder: Decoder, layer: int) -> Mapping[str, Any]:
    marks = {"has_head_norms": True, "has_output_bias": False}
    if not has_experts(decoder, layer):
        return marks
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
    return {**marks, "indexer": own}


MinimaxM3 = Transformer.family(
    "minimax-m3",
    "Layers with experts attend to chosen blocks of positions; the choice differs by KV head.",
    attention_args=_chosen_blocks,
    ffn_args={"activation": blocks.Activation.SWIGLU_OAI, "has_biases": False},
    experts={"activation": blocks.Activation.SWIGLU_OAI, "has_weights_scale": True},
)
