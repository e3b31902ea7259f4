"""PLaMo 1 to 3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from augury.blocks import Block, FeedForward, Layer, LinearRecurrence, Mamba, ModelPlan, Norm, Rows
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import own_local_base
from augury.plugins.architectures.state_space import convolution
from augury.plugins.architectures.transformer import Transformer

_LEAST_RANK = 64  # of the low-rank steps in PLaMo 2


class Plamo(Transformer):
    """Attention and feed-forward see one norm of the same input."""

    name = "plamo"
    feeding = {"norm": "attn_norm", "has_scales": False, "is_parallel": True}


class Plamo2(Architecture):
    """Mamba with decays by head, and attention with normed heads in layers that have key heads; norms before and after."""

    name = "plamo2"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, least=0)
        rope, size, layers = decoder.rope(), decoder.head_dim, []
        for layer, n_kv_heads in enumerate(decoder.n_kv_heads):
            at = f"blk.{layer}"
            post_norm = decoder.norm(f"{at}.post_attention_norm", suffix="")
            mixer: Block
            if n_kv_heads:
                parts: dict[str, Any] = {
                    name: decoder.norm(f"{at}.attn_{name}", size, shape=(n_heads, size))
                    for name, n_heads in (("q_norm", decoder.n_heads[layer]), ("k_norm", n_kv_heads))
                }
                parts |= {"has_scales": False, "has_output_bias": False, "post_norm": post_norm}
                mixer = decoder.attention(layer, rope, scale=1.0 / math.sqrt(decoder.value_dim), **parts)
            else:
                mixer = _mamba(decoder, layer, post_norm)
            marks: dict[str, Any] = {"gate": "fused", "has_scales": False, "has_biases": False}
            after = decoder.norm(f"{at}.post_ffw_norm", suffix="")
            layers.append(Layer(mixer, decoder.feed_forward(layer, post_norm=after, **marks)))
        return {"main": decoder.plan(layers)}


def _mamba(decoder: Decoder, layer: int, post_norm: Norm) -> Mamba:
    keys, at, n_embd = decoder.keys, f"blk.{layer}", decoder.n_embd
    n_inner, n_state, n_heads = keys.count("ssm.inner_size"), keys.count("ssm.state_size"), keys.count("ssm.time_step_rank")
    if n_inner % n_heads:
        keys.fail("ssm.time_step_rank", n_heads, f"a divisor of {n_inner}")
    rank, size = max(_LEAST_RANK, n_embd // 16), n_inner // n_heads
    fused = rank + 2 * n_state
    gate, value = (
        decoder.linear(f"{at}.ssm_in", n_embd, n_inner, rows=Rows(first, size, 2 * size, 2 * n_inner), has_scale=False)
        for first in (0, size)
    )
    key, query, t = (
        decoder.linear(f"{at}.ssm_x", n_inner, n, rows=Rows(first, n, fused, fused), has_scale=False)
        for first, n in ((0, n_state), (n_state, n_state), (2 * n_state, rank))
    )
    return Mamba(
        norm=decoder.norm(f"{at}.attn_norm"),
        value=value,
        gate=gate,
        conv=convolution(decoder, layer, n_inner, has_bias=False),
        t=t,
        key=key,
        query=query,
        dt=decoder.linear(f"{at}.ssm_dt", rank, n_heads, has_scale=False),
        a=decoder.vector(f"{at}.ssm_a", n_heads),
        d=decoder.vector(f"{at}.ssm_d", n_heads),
        recurrence=LinearRecurrence(n_heads, 1, n_state, size, has_delta=False),
        o=decoder.linear(f"{at}.ssm_out", n_inner, n_embd, has_scale=False),
        t_norm=decoder.norm(f"{at}.ssm_dt_norm", rank, suffix=""),
        key_norm=decoder.norm(f"{at}.ssm_b_norm", n_state, suffix=""),
        query_norm=decoder.norm(f"{at}.ssm_c_norm", n_state, suffix=""),
        post_norm=post_norm,
    )


class Plamo3(Transformer):
    """Fused matrices, normed heads, norms before and after; seven layers of eight may see a window only."""

    name = "plamo3"
    local_rotary = {"base": own_local_base, "is_scaled": False}
    windows = {"period": 8}
    mixing = {"has_head_norms": True, "has_scales": False}

    @classmethod
    def mixing_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        return {"post_norm": decoder.norm(f"blk.{layer}.post_attention_norm", suffix="")}

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> FeedForward:
        post_norm = decoder.norm(f"blk.{layer}.post_ffw_norm", suffix="")
        return decoder.feed_forward(layer, gate="fused", has_scales=False, post_norm=post_norm)
