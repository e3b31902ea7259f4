"""PLaMo 1 to 3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from augury.blocks import LinearRecurrence, Mamba, Norm, RowSelection
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import own_local_base
from augury.plugins.architectures.state_space import convolution
from augury.plugins.architectures.transformer import Transformer, own_norms

_LEAST_RANK = 64  # of the low-rank steps in PLaMo 2


def _after_mixer(decoder: Decoder, layer: int) -> Norm:
    return decoder.norm(f"blk.{layer}.post_attention_norm", suffix="")


def _after_feed_forward(decoder: Decoder, layer: int) -> Norm:
    return decoder.norm(f"blk.{layer}.post_ffw_norm", suffix="")


def _mamba(decoder: Decoder, layer: int) -> Mamba:
    keys, at, n_embd = decoder.keys, f"blk.{layer}", decoder.n_embd
    n_inner, n_state, n_heads = keys.count("ssm.inner_size"), keys.count("ssm.state_size"), keys.count("ssm.time_step_rank")
    if n_inner % n_heads:
        keys.fail("ssm.time_step_rank", n_heads, f"a divisor of {n_inner}")
    rank, size = max(_LEAST_RANK, n_embd // 16), n_inner // n_heads
    fused = rank + 2 * n_state
    gate, value = (
        decoder.linear(f"{at}.ssm_in", n_embd, n_inner, rows=RowSelection(first, size, 2 * size, 2 * n_inner), has_scale=False)
        for first in (0, size)
    )
    key, query, t = (
        decoder.linear(f"{at}.ssm_x", n_inner, n, rows=RowSelection(first, n, fused, fused), has_scale=False)
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
        post_norm=_after_mixer(decoder, layer),
    )


Plamo = Transformer.family(
    "plamo", "Attention and feed-forward see one norm of the same input.", ffn_args={"norm": "attn_norm", "is_parallel": True}
)


class Plamo2(Transformer):
    """Mamba with decays by head, and attention with normed heads in layers that have key heads; norms before and after."""

    name = "plamo2"
    decoder_args = {"least": 0}
    attention_args = {
        "scale": lambda decoder, _: 1.0 / math.sqrt(decoder.value_dim),
        "has_scales": False,
        "has_output_bias": False,
    }
    without_heads = _mamba
    ffn_args = {"gate": "fused", "has_biases": False, "post_norm": _after_feed_forward}

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        return {**own_norms(decoder, layer), "post_norm": _after_mixer(decoder, layer)}


Plamo3 = Transformer.family(
    "plamo3",
    "Fused matrices, normed heads, norms before and after; seven layers of eight may see a window only.",
    local_rotary={"base": own_local_base, "is_scaled": False},
    windows={"period": 8},
    attention_args={"has_head_norms": True, "has_scales": False, "post_norm": _after_mixer},
    ffn_args={"gate": "fused", "post_norm": _after_feed_forward},
)
