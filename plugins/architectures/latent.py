"""Families whose attention is latent: DeepSeek 2 and 3, and models that are built like them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs

from augury.blocks import Activation, LatentAttention, Layer, Matrices, Rope, Temperature
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import MAX_POSITIONS
from augury.plugins.architectures.transformer import Transformer


class DeepSeek2(Transformer):
    """DeepSeek 2 and 3: the first layers have no experts, and some experts are shared.

    Where positions are stretched, scores grow; `log_multiplier` says how much, and then rope leaves lengths as they are.
    """

    name = "deepseek2"
    experts = {"has_weights_scale": True}
    mtp_hidden: ClassVar[Literal["output", "layer"] | None] = "output"

    @classmethod
    def rope(cls, decoder: Decoder) -> Rope:
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
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        assert rope is not None
        growth = rope.magnitude * (1.0 if _is_yarn(decoder) else _sharpness(decoder))
        growth *= 1.0 + cls.multiplier(decoder) * (_sharpness(decoder) - 1.0)
        attention = latent_attention(decoder, layer, rope)
        attention = attrs.evolve(attention, scale=attention.scale * growth**2, **cls.attention_args_of(decoder, layer))
        return Layer(attention, cls.feed_forward(decoder, layer))

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:  # noqa: ARG003 - as those built like it
        return {"temperature": _temperature(decoder)}


class Mistral4(DeepSeek2):
    """DeepSeek's layers; its multiplier is a share of rope's factor of lengths."""

    name = "mistral4"

    @classmethod
    def stretched(cls, decoder: Decoder, multiplier: float) -> float:
        return _sharpness(decoder) / (1.0 + multiplier * (_sharpness(decoder) - 1.0))


def _is_yarn(decoder: Decoder) -> bool:
    return decoder.keys.text("rope.scaling.type", "linear") == "yarn"


def _sharpness(decoder: Decoder) -> float:
    """YaRN's own factor of lengths."""
    is_scaled = decoder.keys.text("rope.scaling.type", "linear") != "none"
    return 1.0 + 0.1 * math.log(max(decoder.keys.number("rope.scaling.factor", 0.0), 1.0)) if is_scaled else 1.0


def _temperature(decoder: Decoder) -> Temperature | None:
    keys = decoder.keys
    if not (scale := keys.number("attention.temperature_scale", 0.0)):
        return None
    return Temperature(scale, keys.count("attention.temperature_length", most=MAX_POSITIONS))


def latent_attention(
    decoder: Decoder, layer: int, rope: Rope | None, *, factor: float = 1.0, suffix: str = "", n_turned: int | None = None
) -> LatentAttention:
    """The latent attention of a layer.

    Args:
        decoder: Of the file.
        layer: From 0.
        rope: Of a part of queries, and of the keys' part that all heads share, if any.
        factor: The factor of the block's output.
        suffix: Of the keys that say how large heads and latents are.
        n_turned: R, where it is not the number of values that rope turns.
    """
    keys, at, tensors, n_heads = decoder.keys, f"blk.{layer}", decoder.file.tensors, decoder.n_heads[layer]
    n_latent, n_turned = keys.count(f"attention.kv_lora_rank{suffix}"), decoder.n_rot if n_turned is None else n_turned
    is_split = f"{at}.attn_k_b.weight" in tensors
    key_dim = keys.count(f"attention.key_length_mla{suffix}", 0, least=0) or decoder.head_dim
    value_dim = keys.count(f"attention.value_length_mla{suffix}", 0, least=0) or decoder.value_dim
    n_plain = key_dim - n_turned
    if n_plain < 0:
        keys.fail(f"attention.key_length_mla{suffix}", key_dim, f"at least the {n_turned} values that rope turns")
    if is_split:
        to_latent = Matrices(f"{at}.attn_k_b.weight", n_heads, n_plain, n_latent)
        from_latent = Matrices(f"{at}.attn_v_b.weight", n_heads, n_latent, value_dim)
    else:
        common: dict[str, Any] = {"n_stored": n_plain + value_dim, "is_flat": True}
        name = f"{at}.attn_kv_b.weight"
        to_latent = Matrices(name, n_heads, n_plain, n_latent, is_transposed=True, **common)
        from_latent = Matrices(name, n_heads, n_latent, value_dim, first=n_plain, **common)
    for part in (to_latent, from_latent):
        decoder.check(part)
    is_low = f"{at}.attn_q_a.weight" in tensors
    n_low = keys.count("attention.q_lora_rank") if is_low else decoder.n_embd
    return LatentAttention(
        norm=decoder.norm(f"{at}.attn_norm"),
        q=decoder.matrix(f"{at}.attn_q_b" if is_low else f"{at}.attn_q", n_low, n_heads * key_dim),
        kv=decoder.matrix(f"{at}.attn_kv_a_mqa", decoder.n_embd, n_latent + n_turned),
        kv_norm=decoder.norm(f"{at}.attn_kv_a_norm", n_latent),
        keys=to_latent,
        values=from_latent,
        o=decoder.linear(f"{at}.attn_output", n_heads * value_dim, decoder.n_embd, has_bias=False, factor=factor),
        scale=1.0 / math.sqrt(key_dim),
        rope=rope,
        q_down=decoder.matrix(f"{at}.attn_q_a", decoder.n_embd, n_low) if is_low else None,
        q_norm=decoder.norm(f"{at}.attn_q_a_norm", n_low) if is_low else None,
    )


class MiniCpm3(Transformer):
    """Dense, with scales that its files do not state."""

    name = "minicpm3"
    rope_args = {"has_factors": True}
    embedding_args = {"scale": 12.0}
    output_args = {"scale": lambda decoder: 256.0 / decoder.n_embd}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        factor = 1.4 / math.sqrt(decoder.n_layers)
        feed_forward = decoder.feed_forward(layer, factor=factor)
        return Layer(latent_attention(decoder, layer, rope, factor=factor), feed_forward)


class Plm(Transformer):
    """Dense, without gates; the embedding's weights give the logits."""

    name = "plm"
    rope_args = {"is_interleaved": True}
    ffn_args = {"activation": Activation.RELU_SQUARED, "gate": None, "has_biases": False}
    output_args = {"is_tied": True, "has_bias": False}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        return Layer(latent_attention(decoder, layer, rope), cls.feed_forward(decoder, layer))
