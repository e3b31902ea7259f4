"""State spaces: Mamba and Mamba-2, and models with their blocks or with short convolutions in some layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from augury import blocks
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, mixture
from augury.plugins.architectures.rope import local_size, own_local_base
from augury.plugins.architectures.tensors import Keys
from augury.plugins.architectures.transformer import Transformer, own_norms

_LEAST_RANK = 64  # of the low-rank steps in PLaMo 2
_EPS_OF_MTP = "attention.layer_norm_epsilon"  # of the last norm in layers of Nemotron-H that predict further tokens


def mamba2(decoder: Decoder, layer: int, *, factor: float = 1.0) -> blocks.Mamba2:
    """The blocks.Mamba-2 block of a layer; its output is multiplied by `factor`.

    Source: llama.cpp's `build_mamba2_layer` and the keys `ssm.*` as it reads them.
    """
    keys, at, n_embd = decoder.keys, f"blk.{layer}", decoder.n_embd
    n_heads, n_groups = keys.count("ssm.time_step_rank"), keys.count("ssm.group_count")
    n_inner, n_state = keys.count("ssm.inner_size"), keys.count("ssm.state_size")
    if n_inner % n_heads or n_heads % n_groups:
        keys.fail("ssm.time_step_rank", n_heads, f"a divisor of {n_inner}, and a multiple of the {n_groups} groups")
    n_conv, norm = n_inner + 2 * n_groups * n_state, f"{at}.ssm_norm.weight"
    out_norm = None
    if norm in decoder.file.tensors:
        shape = (n_groups, n_inner // n_groups)
        decoder.file.tensor(norm, shape)
        out_norm = blocks.Norm(norm, shape[1], decoder.eps, weight_shape=shape)
    return blocks.Mamba2(
        norm=decoder.norm(f"{at}.attn_norm"),
        inputs=decoder.linear(f"{at}.ssm_in", n_embd, n_inner + n_conv + n_heads),
        conv=convolution(decoder, layer, n_conv),
        dt=decoder.vector(f"{at}.ssm_dt.bias", n_heads),
        a=decoder.vector(f"{at}.ssm_a", n_heads, (n_heads, 1)),
        d=decoder.vector(f"{at}.ssm_d", n_heads, (n_heads, 1)),
        recurrence=blocks.LinearRecurrence(n_heads, n_groups, n_state, n_inner // n_heads, has_delta=False),
        o=decoder.linear(f"{at}.ssm_out", n_inner, n_embd, factor=factor),
        out_norm=out_norm,
    )


def mamba(decoder: Decoder, layer: int) -> blocks.Mamba:
    """The blocks.Mamba block of a layer.

    Source: llama.cpp's `build_mamba_layer` and the keys `ssm.*` as it reads them.
    """
    keys, at, n_embd = decoder.keys, f"blk.{layer}", decoder.n_embd
    n_inner, n_state, rank = keys.count("ssm.inner_size"), keys.count("ssm.state_size"), keys.count("ssm.time_step_rank")
    fused = rank + 2 * n_state
    rows = (
        blocks.RowSelection(0, rank, fused, fused),
        blocks.RowSelection(rank, n_state, fused, fused),
        blocks.RowSelection(rank + n_state, n_state, fused, fused),
    )
    t, key, query = (decoder.linear(f"{at}.ssm_x", n_inner, each.size, rows=each, has_scale=False) for each in rows)
    names = [f"{at}.ssm_{name}_norm" for name in ("dt", "b", "c")]
    norms: list[blocks.Norm | None] = [None] * 3
    if keys.flag("ssm.dt_b_c_rms", default=False) or all(f"{name}.weight" in decoder.file.tensors for name in names):
        norms = [
            decoder.norm(name, each.size)
            if f"{name}.weight" in decoder.file.tensors
            else blocks.Norm(None, each.size, decoder.eps)
            for name, each in zip(names, rows, strict=True)
        ]
    value, gate = decoder.fused(at, (), "ssm_in", (n_inner, n_inner))
    return blocks.Mamba(
        norm=decoder.norm(f"{at}.attn_norm"),
        value=value,
        gate=gate,
        conv=convolution(decoder, layer, n_inner),
        t=t,
        key=key,
        query=query,
        dt=decoder.linear(f"{at}.ssm_dt", rank, n_inner, has_scale=False),
        a=decoder.vector(f"{at}.ssm_a", n_inner * n_state, (n_inner, n_state)),
        d=decoder.vector(f"{at}.ssm_d", n_inner),
        recurrence=blocks.LinearRecurrence(1, 1, n_state, n_inner, has_delta=False, is_by_channel=True),
        o=decoder.linear(f"{at}.ssm_out", n_inner, n_embd),
        t_norm=norms[0],
        key_norm=norms[1],
        query_norm=norms[2],
    )


def convolution(decoder: Decoder, layer: int, n_channels: int, *, has_bias: bool = True) -> blocks.Convolution:
    """The convolution of a layer, with a bias where the file has one and the family takes note of it."""
    name, bias = f"blk.{layer}.ssm_conv1d.weight", f"blk.{layer}.ssm_conv1d.bias"
    size = decoder.keys.count("ssm.conv_kernel", least=2)
    return decoder.check(
        blocks.Convolution(name, n_channels, size, bias if has_bias and bias in decoder.file.tensors else None)
    )


MambaModel = Transformer.family(
    "mamba",
    "Layers of blocks.Mamba alone.",
    decoder_args={"least": 0},
    rope_args=None,
    layer=lambda decoder, layer, _: blocks.Layer(mamba(decoder, layer)),
)
Mamba2Model = MambaModel.family(
    "mamba2", "Layers of blocks.Mamba-2 alone.", layer=lambda decoder, layer, _: blocks.Layer(mamba2(decoder, layer))
)


def _parallel(decoder: Decoder, layer: int, rope: blocks.Rope | None) -> tuple[blocks.Attention, blocks.Mamba2]:
    scale = decoder.keys.number("attention.scale", 0.0) or None
    attention = decoder.attention(layer, rope, scale=scale, has_output_bias=False)
    return attention, attrs.evolve(mamba2(decoder, layer), is_parallel=True)


FalconH1 = Transformer.family(
    "falcon-h1",
    "Attention and blocks.Mamba-2 see the same input in every layer.",
    mixer=_parallel,
    ffn_args={"norm": lambda decoder, layer: decoder.norm(f"blk.{layer}.ffn_norm", suffix="")},
)
Jamba = Transformer.family(
    "jamba",
    "Mamba, with attention without positions in layers that have key heads.",
    decoder_args={"least": 0},
    rope_args=None,
    attention_args={"has_output_bias": False},
    without_heads=mamba,
    ffn_args={"has_biases": False},
    experts={"gating": blocks.Gating.SOFTMAX, "is_normalised": False},
)


class NemotronH(Transformer):
    """Layers of one block each: a feed-forward without a gate, attention without positions, or blocks.Mamba-2."""

    name = "nemotron_h"
    rope_args = None

    @classmethod
    def decoder(cls, file: ModelFile) -> Decoder:
        decoder = Decoder(file, least=0, may_have_experts=True, least_eps=Keys(file).number(_EPS_OF_MTP, 0.0))
        names = {f"blk.{decoder.n_layers}.{each}.weight" for each in ("attn_q", "attn_qkv")}
        decoder.has_mtp &= not names.isdisjoint(file.tensors)  # files without are of llama.cpp's tests
        return decoder

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: blocks.Rope | None) -> blocks.Layer:
        is_mtp = layer >= decoder.n_layers
        if decoder.n_ff[layer] and not is_mtp:
            return blocks.Layer(None, cls.feed_forward(decoder, layer))
        if not (decoder.n_kv_heads[layer] or is_mtp):
            return blocks.Layer(mamba2(decoder, layer))
        attention = decoder.attention(layer, rope, scale=decoder.keys.number("attention.scale", 0.0) or None)
        return blocks.Layer(attention, cls.feed_forward(decoder, layer, norm="post_attention_norm") if is_mtp else None)

    @classmethod
    def mtp_output(cls, decoder: Decoder, at: str, output: blocks.Output) -> blocks.Output:  # noqa: ARG003 - as its parent's
        if (norm := output.norm) is None:
            return output
        eps = decoder.keys.number(_EPS_OF_MTP, 0.0)
        return attrs.evolve(output, norm=attrs.evolve(norm, kind=blocks.NormKind.LAYER, eps=eps))

    @classmethod
    def feed_forward(
        cls, decoder: Decoder, layer: int, norm: str = "attn_norm"
    ) -> blocks.FeedForward | blocks.MixtureOfExperts:
        """The feed-forward of a layer; where it has a router, a mixture of experts, which may work on fewer values."""
        at, keys = f"blk.{layer}", decoder.keys
        if not has_experts(decoder, layer):
            return decoder.feed_forward(layer, blocks.Activation.RELU_SQUARED, gate=None, norm=norm, has_scales=True)
        n_latent = keys.count("moe_latent_size", 0, least=0) or decoder.n_embd
        sizes = {"down": (decoder.n_embd, n_latent), "up": (n_latent, decoder.n_embd)}
        latent: dict[str, Any] = {}
        for part, (n_in, n_out) in sizes.items():
            name = f"{at}.ffn_latent_{part}"
            if n_latent != decoder.n_embd or f"{name}.weight" in decoder.file.tensors:
                latent[f"latent_{part}"] = decoder.matrix(name, n_in, n_out)
        return mixture(
            decoder,
            layer,
            gating=blocks.Gating.SIGMOID,
            activation=blocks.Activation.RELU_SQUARED,
            has_gate=False,
            norm=norm,
            has_weights_scale=True,
            has_scales=True,
            n_latent=n_latent,
            **latent,
        )


NemotronHMoe = NemotronH.family(
    "nemotron_h_moe",
    "The same by another name; a layer that predicts further tokens has attention and experts, and a layer norm at its end.",
    mtp_hidden="output",
)


def _window(decoder: Decoder) -> int | None:
    """How many positions attention sees."""
    return decoder.keys.count("attention.sliding_window", 0, least=0) or None


def _short_convolution(decoder: Decoder, layer: int) -> blocks.ShortConvolution:
    at, n_embd = f"blk.{layer}", decoder.n_embd
    n_taps = decoder.keys.count("shortconv.l_cache", least=2)
    return blocks.ShortConvolution(
        norm=decoder.norm(f"{at}.attn_norm"),
        inputs=decoder.linear(f"{at}.shortconv.in_proj", n_embd, 3 * n_embd, has_scale=False),
        conv=decoder.check(blocks.Convolution(f"{at}.shortconv.conv.weight", n_embd, n_taps)),
        o=decoder.linear(f"{at}.shortconv.out_proj", n_embd, n_embd, has_scale=False),
    )


Lfm2 = Transformer.family(
    "lfm2",
    "Gated short convolutions, and attention with normed heads in layers that have key heads; the dense models.",
    decoder_args={"least": 0, "may_have_experts": True},
    rope_args={"n_rot": lambda decoder: None if _window(decoder) is None else local_size(decoder)},
    attention_args={"has_head_norms": True, "window": lambda decoder, _: _window(decoder)},
    without_heads=_short_convolution,
    ffn_args={"has_biases": False},
    output_args={"norm": "token_embd_norm"},  # as converters have misnamed it
)
Lfm2Moe = Lfm2.family(
    "lfm2moe",
    "The mixtures of experts, whose first layers are dense, without a window.",
    rope_args={},
    attention_args={"has_head_norms": True},
    experts={"is_normalised": True},
)


def _after_mixer(decoder: Decoder, layer: int) -> blocks.Norm:
    return decoder.norm(f"blk.{layer}.post_attention_norm", suffix="")


def _after_feed_forward(decoder: Decoder, layer: int) -> blocks.Norm:
    return decoder.norm(f"blk.{layer}.post_ffw_norm", suffix="")


def _mamba_by_head(decoder: Decoder, layer: int) -> blocks.Mamba:
    keys, at, n_embd = decoder.keys, f"blk.{layer}", decoder.n_embd
    n_inner, n_state, n_heads = keys.count("ssm.inner_size"), keys.count("ssm.state_size"), keys.count("ssm.time_step_rank")
    if n_inner % n_heads:
        keys.fail("ssm.time_step_rank", n_heads, f"a divisor of {n_inner}")
    rank, size = max(_LEAST_RANK, n_embd // 16), n_inner // n_heads
    fused = rank + 2 * n_state
    gate, value = (
        decoder.linear(
            f"{at}.ssm_in", n_embd, n_inner, rows=blocks.RowSelection(first, size, 2 * size, 2 * n_inner), has_scale=False
        )
        for first in (0, size)
    )
    key, query, t = (
        decoder.linear(f"{at}.ssm_x", n_inner, n, rows=blocks.RowSelection(first, n, fused, fused), has_scale=False)
        for first, n in ((0, n_state), (n_state, n_state), (2 * n_state, rank))
    )
    return blocks.Mamba(
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
        recurrence=blocks.LinearRecurrence(n_heads, 1, n_state, size, has_delta=False),
        o=decoder.linear(f"{at}.ssm_out", n_inner, n_embd, has_scale=False),
        t_norm=decoder.norm(f"{at}.ssm_dt_norm", rank, suffix=""),
        key_norm=decoder.norm(f"{at}.ssm_b_norm", n_state, suffix=""),
        query_norm=decoder.norm(f"{at}.ssm_c_norm", n_state, suffix=""),
        post_norm=_after_mixer(decoder, layer),
    )


def _plamo_attention(decoder: Decoder, layer: int) -> Mapping[str, Any]:
    marks = {"has_scales": False, "has_output_bias": False, "scale": 1.0 / math.sqrt(decoder.value_dim)}
    return {**marks, **own_norms(decoder, layer), "post_norm": _after_mixer(decoder, layer)}


Plamo = Transformer.family(
    "plamo", "Attention and feed-forward see one norm of the same input.", ffn_args={"norm": "attn_norm", "is_parallel": True}
)
Plamo2 = Transformer.family(
    "plamo2",
    "Mamba with decays by head, and attention with normed heads in layers that have key heads; norms before and after.",
    decoder_args={"least": 0},
    attention_args=_plamo_attention,
    without_heads=_mamba_by_head,
    ffn_args={"gate": "fused", "has_biases": False, "post_norm": _after_feed_forward},
)
Plamo3 = Transformer.family(
    "plamo3",
    "Fused matrices, normed heads, norms before and after; seven layers of eight may see a window only.",
    local_rotary={"base": own_local_base, "is_scaled": False},
    windows={"period": 8},
    attention_args={"has_head_norms": True, "has_scales": False, "post_norm": _after_mixer},
    ffn_args={"gate": "fused", "post_norm": _after_feed_forward},
)
