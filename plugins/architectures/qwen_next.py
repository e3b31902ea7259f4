"""Qwen3-Next and Qwen3.5: three layers of four are gated delta nets, the others gated attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from augury import blocks
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.state_space import convolution
from augury.plugins.architectures.transformer import Transformer

_PERIOD = 4  # one layer in four attends, where the file does not say otherwise


class Qwen35(Transformer):
    """Gated delta nets, and attention with normed heads that is gated by value; the dense models.

    Attributes:
        is_tiled: How heads of the recurrence share keys; see `LinearRecurrence`.
        marks: Arguments of `Decoder.linear` for the matrices around it.
    """

    name = "qwen35"
    decoder_args = {"least": 0, "may_have_experts": True}
    rope_args = {"sections": "turns"}
    ffn_args = {"norm": "post_attention_norm", "has_biases": False, "has_scales": True}
    mtp_hidden = "output"
    is_tiled: ClassVar[bool] = True
    marks: ClassVar[Mapping[str, Any]] = {"has_bias": False}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: blocks.Rope | None) -> blocks.Layer:
        norm, delta_net = decoder.norm(f"blk.{layer}.attn_norm"), None
        if cls.is_recurrent(decoder, layer):
            delta_net = cls.delta_net(decoder, layer, norm)
        return blocks.Layer(delta_net or gated_attention(decoder, layer, rope, norm), cls.feed_forward(decoder, layer))

    @classmethod
    def is_recurrent(cls, decoder: Decoder, layer: int) -> bool:
        """Whether a layer has a delta net; layers that predict further tokens attend."""
        period = decoder.keys.count("full_attention_interval", _PERIOD)
        return layer < decoder.n_layers and decoder.flags("attention.recurrent_layers", period)[layer]

    @classmethod
    def alpha_and_beta(
        cls, decoder: Decoder, layer: int, heads: blocks.LinearRecurrence
    ) -> tuple[blocks.Linear, blocks.Linear]:
        """The inputs of decays and betas."""
        alpha, beta = (
            decoder.linear(f"blk.{layer}.ssm_{name}", decoder.n_embd, heads.n_heads, **cls.marks) for name in ("alpha", "beta")
        )
        return alpha, beta

    @classmethod
    def delta_net(cls, decoder: Decoder, layer: int, norm: blocks.Norm | None) -> blocks.GatedDeltaNet:
        """The delta net of a layer, with a norm of its input."""
        keys, at, n_embd = decoder.keys, f"blk.{layer}", decoder.n_embd
        n_heads, n_keys, size = keys.count("ssm.time_step_rank"), keys.count("ssm.group_count"), keys.count("ssm.state_size")
        if n_heads % n_keys:
            keys.fail("ssm.group_count", n_keys, f"a divisor of the {n_heads} heads")
        heads = blocks.LinearRecurrence(n_heads, n_keys, size, size, has_delta=True, is_tiled=cls.is_tiled)
        n_values, n_inputs = n_heads * size, (2 * n_keys + n_heads) * size
        alpha, beta = cls.alpha_and_beta(decoder, layer, heads)
        decoder.norm(f"{at}.ssm_norm", size)
        return blocks.GatedDeltaNet(
            norm=norm,
            inputs=decoder.linear(f"{at}.attn_qkv", n_embd, n_inputs, **cls.marks),
            conv=convolution(decoder, layer, n_inputs, has_bias=False),
            gate=decoder.linear(f"{at}.attn_gate", n_embd, n_values, **cls.marks),
            alpha=alpha,
            beta=beta,
            dt=decoder.vector(f"{at}.ssm_dt.bias", n_heads),
            a=decoder.vector(f"{at}.ssm_a", n_heads),
            recurrence=heads,
            eps=decoder.eps,
            out_norm=blocks.Norm(f"{at}.ssm_norm.weight", size, decoder.eps),
            o=decoder.linear(f"{at}.ssm_out", n_values, n_embd, **cls.marks),
        )


class Qwen35Moe(Qwen35):
    """The mixtures of experts."""

    name = "qwen35moe"
    experts = {"gating": blocks.Gating.SOFTMAX, "is_normalised": True, "norm": "post_attention_norm", "has_scales": True}


class Qwen3Next(Qwen35Moe):
    """Mixtures, whose alphas and betas are rows of one matrix, in turns by key."""

    name = "qwen3next"
    rope_args = {}
    is_tiled = False
    marks = {"has_bias": False, "has_scale": False}

    @classmethod
    def alpha_and_beta(
        cls, decoder: Decoder, layer: int, heads: blocks.LinearRecurrence
    ) -> tuple[blocks.Linear, blocks.Linear]:
        n, size = heads.n_heads, heads.n_heads // heads.n_key_heads
        alpha, beta = (
            decoder.linear(
                f"blk.{layer}.ssm_ba", decoder.n_embd, n, rows=blocks.RowSelection(first, size, 2 * size, 2 * n), **cls.marks
            )
            for first in (size, 0)
        )
        return alpha, beta


def gated_attention(decoder: Decoder, layer: int, rope: blocks.Rope | None, norm: blocks.Norm | None) -> blocks.Attention:
    """Attention whose queries and gates are rows of one matrix, in turns by head."""
    n_embd, size, at = decoder.n_embd, decoder.head_dim, f"blk.{layer}"
    n_heads, n_kv_heads = decoder.n_heads[layer], decoder.n_kv_heads[layer]
    n = n_heads * size
    q, gate = (
        decoder.linear(f"{at}.attn_q", n_embd, n, rows=blocks.RowSelection(first, size, 2 * size, 2 * n)) for first in (0, size)
    )
    return blocks.Attention(
        norm=norm,
        q=q,
        k=decoder.linear(f"{at}.attn_k", n_embd, n_kv_heads * size),
        v=decoder.linear(f"{at}.attn_v", n_embd, n_kv_heads * size),
        o=decoder.linear(f"{at}.attn_output", n, n_embd, has_bias=False),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=size,
        value_dim=size,
        scale=decoder.keys.number("attention.scale", 0.0) or 1.0 / math.sqrt(size),
        rope=rope,
        q_norm=decoder.norm(f"{at}.attn_q_norm", size),
        k_norm=decoder.norm(f"{at}.attn_k_norm", size),
        gate=gate,
    )
