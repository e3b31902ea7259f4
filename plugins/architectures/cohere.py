"""Command R and its successors, the models of Cohere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.blocks import Gating, Layer, ModelPlan, NormKind, Output
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, mixture
from augury.plugins.architectures.rope import local_size
from augury.plugins.architectures.transformer import Transformer

_PERIOD = 4  # one layer in four sees everything, where files do not say otherwise
_N_LAYERS_NORMED = 64  # from so many on, heads are normed; files do not say so


class CommandR(Transformer):
    """Attention and feed-forward see one layer norm of the same input; logits are scaled."""

    name = "command-r"
    reading = {"norm": NormKind.LAYER}
    rotary = {"is_interleaved": True}
    feeding = {"norm": "attn_norm", "has_scales": False, "is_parallel": True}

    @classmethod
    def mixing_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        if decoder.n_layers < _N_LAYERS_NORMED:
            return {}
        heads = {"q": decoder.n_heads[layer], "k": decoder.n_kv_heads[layer]}
        return {
            f"{part}_norm": decoder.norm(f"blk.{layer}.attn_{part}_norm", decoder.head_dim, shape=(n, decoder.head_dim))
            for part, n in heads.items()
        }

    @classmethod
    def output(cls, decoder: Decoder) -> Output:
        return decoder.output(is_tied=True, scale=decoder.keys.number("logit_scale", 0.0) or 1.0)


class Cohere2(Architecture):
    """Three layers of four see a window only, and they alone have rope."""

    name = "cohere2"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, norm=NormKind.LAYER)
        rope = decoder.rope(is_interleaved=True, n_rot=local_size(decoder))
        windows = decoder.windows(_PERIOD, is_required=True)
        is_local = decoder.flags("attention.sliding_window_pattern", _PERIOD)
        layers = []
        for layer in range(decoder.n_layers):
            attention = decoder.attention(layer, rope if is_local[layer] else None, window=windows[layer])
            layers.append(Layer(attention, decoder.feed_forward(layer, norm="attn_norm", is_parallel=True)))
        output = decoder.output(is_tied=True, scale=decoder.keys.number("logit_scale") or 1.0)
        return {"main": decoder.plan(layers, output=output)}


class Cohere2Moe(Architecture):
    """As Cohere2 with experts, whose mean with a shared one counts; the first layers have none, and always rope."""

    name = "cohere2moe"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        is_rms = file.get(f"{cls.name}.attention.layer_norm_rms_epsilon", float, 0.0) != 0.0
        decoder = Decoder(file, norm=NormKind.RMS if is_rms else NormKind.LAYER, may_have_experts=True)
        keys, wide_rope = decoder.keys, decoder.rope(is_interleaved=True, has_factors=True)
        windows = decoder.windows(_PERIOD, is_required=True, is_first=True, has_nextn=True)
        is_local = decoder.flags("attention.sliding_window_pattern", _PERIOD, is_first=True, has_nextn=True)
        n_dense = keys.count("leading_dense_block_count", least=0)

        def layer_of(layer: int) -> Layer:
            rope = wide_rope if is_local[layer] or layer < n_dense else None
            attention = decoder.attention(layer, rope, window=windows[layer])
            if not has_experts(decoder, layer):
                return Layer(attention, decoder.feed_forward(layer, norm="attn_norm", is_parallel=True))
            factor = 0.5 if f"blk.{layer}.ffn_up_shexp.weight" in file.tensors else 1.0
            experts = mixture(
                decoder,
                layer,
                fallback=Gating.SIGMOID,
                has_weights_scale=True,
                norm="attn_norm",
                factor=factor,
                is_parallel=True,
            )
            return Layer(attention, experts)

        output = decoder.output(scale=keys.number("logit_scale") or 1.0)
        return {"main": decoder.plan(map(layer_of, range(decoder.n_layers)), output=output, nextn=layer_of)}
