"""Gemma 1 to 4, their text models."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from augury.blocks import Activation, Attention, FeedForward, Gating, Layer, MixtureOfExperts, ModelPlan, Norm, Output, Rope
from augury.errors import UnsupportedError
from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, mixture
from augury.plugins.architectures.rope import base_of, local_base
from augury.plugins.architectures.transformer import Transformer

_N_LAYERS_27B = {"gemma2": 46, "gemma3": 62}  # this size alone scales by E / H instead of D, and files do not say so


class Gemma(Transformer):
    """Embeddings scaled by sqrt(E), GELU gates; its norms multiply by 1 + w, and files hold the sum."""

    name = "gemma"
    feeding = {"activation": Activation.GELU_HALF, "has_scales": False}

    @classmethod
    def mixing_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:  # noqa: ARG003 - as its parent's
        """The scale of its scores."""
        return {"scale": 1.0 / math.sqrt(decoder.value_dim)}

    @classmethod
    def embedding(cls, decoder: Decoder) -> Mapping[str, Any]:
        """What the embedding has beside its weight."""
        return {"scale": math.sqrt(decoder.n_embd)}

    @classmethod
    def output(cls, decoder: Decoder) -> Output:
        """The last block."""
        return decoder.output(is_tied=True)


class Gemma2(Gemma):
    """Norms before and after attention and feed-forward, soft caps; every other layer sees a window only."""

    name = "gemma2"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file)
        wide_rope = decoder.rope()
        local_rope = decoder.rope(base=local_base(decoder))
        softcap = decoder.keys.positive("attn_logit_softcapping", 50.0)
        layers = []
        for layer, window in enumerate(decoder.windows(2, default=4096)):
            rope = wide_rope if window is None else local_rope
            common: dict[str, Any] = {"scale": _scale(decoder), "window": window, "softcap": softcap}
            attention = decoder.attention(layer, rope, has_post_norm=True, **common)
            layers.append(Layer(attention, decoder.feed_forward(layer, has_post_norm=True, **cls.feeding)))
        output = decoder.output(is_tied=True, softcap=decoder.keys.positive("final_logit_softcapping", 30.0))
        return {"main": decoder.plan(layers, output=output, **cls.embedding(decoder))}


class Gemma3(Gemma):
    """Normed heads; five layers of six see a window only, with a rope of their own."""

    name = "gemma3"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file)
        keys = decoder.keys
        scale = keys.number("attention.scale", 0.0) or _scale(decoder)
        wide_rope = decoder.rope()
        local_rope = decoder.rope(base=base_of(decoder, "rope.freq_base_swa"), is_scaled=False)
        layers = []
        for layer, window in enumerate(decoder.windows(6)):
            rope = wide_rope if window is None else local_rope
            attention = decoder.attention(layer, rope, scale=scale, has_head_norms=True, has_post_norm=True, window=window)
            layers.append(Layer(attention, decoder.feed_forward(layer, has_post_norm=True, **cls.feeding)))
        output = decoder.output(softcap=keys.number("final_logit_softcapping", 0.0) or None)
        return {"main": decoder.plan(layers, output=output, **cls.embedding(decoder))}


class Gemma4(Gemma):
    """Layers with a window have heads of another size; values are normed; a mixture stands beside the feed-forward."""

    name = "gemma4"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file, may_have_experts=True)
        keys, local = decoder.keys, copy.copy(decoder)
        for key in ("embedding_length_per_layer_input", "attention.shared_kv_layers"):
            if keys.count(key, 0, least=0):
                raise UnsupportedError(
                    f"{file.path}: {keys.full(key)!r} is not 0, which is not supported; use a larger Gemma 4"
                )
        local.n_rot = keys.count("rope.dimension_count_swa", decoder.n_rot, least=2)
        local.head_dim, local.value_dim = (keys.count(f"attention.{part}_length_swa") for part in ("key", "value"))
        local_rope = local.rope(base=base_of(decoder, "rope.freq_base_swa"), is_scaled=False)
        wide_rope = decoder.rope(has_factors=True)
        layers = []
        for layer, window in enumerate(decoder.windows(None, is_required=True)):
            sizes, rope = (decoder, wide_rope) if window is None else (local, local_rope)
            scale = f"blk.{layer}.layer_output_scale.weight"
            factor = float(decoder.values(scale, 1)[0]) if scale in file.tensors else 1.0
            attention = cls._attention(sizes, layer, rope, window)
            layers.append(Layer(attention, cls.feed_forward(decoder, layer), scale=factor))
        output = decoder.output(softcap=keys.number("final_logit_softcapping", 0.0) or None)
        return {"main": decoder.plan(layers, output=output, **cls.embedding(decoder))}

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> FeedForward | MixtureOfExperts:
        """The feed-forward of a layer; of one with experts it is the shared one."""
        dense: dict[str, Any] = {"activation": Activation.GELU_HALF, "has_biases": False}
        if not has_experts(decoder, layer):
            return decoder.feed_forward(layer, has_post_norm=True, **dense)
        after_dense, after_experts = (decoder.norm(f"blk.{layer}.post_ffw_norm_{i}") for i in (1, 2))
        return mixture(
            decoder,
            layer,
            gating=Gating.SOFTMAX,
            activation=Activation.GELU_HALF,
            is_normalised=True,
            norm="pre_ffw_norm_2",
            has_router_norm=True,
            sum_norm=after_experts,
            shared=decoder.feed_forward(layer, post_norm=after_dense, **dense),
            has_post_norm=True,
        )

    @classmethod
    def _attention(cls, decoder: Decoder, layer: int, rope: Rope, window: int | None) -> Attention:
        """The attention of a layer, whose values may be its keys as they are before norm and rope."""
        at, n_embd, size = f"blk.{layer}", decoder.n_embd, decoder.head_dim
        if decoder.value_dim != size:
            decoder.keys.fail("attention.value_length", decoder.value_dim, f"{size}, as keys")
        n_heads, n_kv_heads = decoder.n_heads[layer], decoder.n_kv_heads[layer]
        sizes = (n_heads * size, n_kv_heads * size, n_kv_heads * size)
        has_values = any(f"{at}.{name}.weight" in decoder.file.tensors for name in ("attn_v", "attn_qkv"))
        names = ("attn_q", "attn_k", "attn_v" if has_values else "attn_k")
        q, k, v = decoder.fused(at, names, "attn_qkv", sizes, has_bias=False)
        return Attention(
            norm=decoder.norm(f"{at}.attn_norm"),
            q=q,
            k=k,
            v=v,
            o=decoder.linear(f"{at}.attn_output", n_heads * size, n_embd, has_bias=False),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=size,
            value_dim=size,
            scale=1.0,
            rope=rope,
            q_norm=decoder.norm(f"{at}.attn_q_norm", size),
            k_norm=decoder.norm(f"{at}.attn_k_norm", size),
            v_norm=Norm(None, size, decoder.eps),
            post_norm=decoder.norm(f"{at}.post_attention_norm"),
            window=window,
        )


def _scale(decoder: Decoder) -> float:
    """What q · k is multiplied by."""
    is_27b = decoder.n_layers == _N_LAYERS_27B[decoder.file.architecture]
    return 1.0 / math.sqrt(decoder.n_embd // decoder.n_heads[0] if is_27b else decoder.head_dim)


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer the architectures of this page."""
    return (Gemma, Gemma2, Gemma3, Gemma4)
