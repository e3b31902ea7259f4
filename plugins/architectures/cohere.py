"""Command R and its successors, the dense models of Cohere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.blocks import Layer, ModelPlan, NormKind, Output
from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.transformer import Transformer

_N_LAYERS_NORMED = 64  # from so many on, heads are normed; files do not say so


class CommandR(Transformer):
    """Attention and feed-forward see one layer norm of the same input; logits are scaled."""

    name = "command-r"
    reading = {"norm": NormKind.LAYER}
    rotary = {"is_interleaved": True}
    feeding = {"norm": "attn_norm", "has_scales": False}
    is_parallel = True

    @classmethod
    def mixing_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        """The norms of heads, each with weights of its own."""
        if decoder.n_layers < _N_LAYERS_NORMED:
            return {}
        heads = {"q": decoder.n_heads[layer], "k": decoder.n_kv_heads[layer]}
        return {
            f"{part}_norm": decoder.norm(f"blk.{layer}.attn_{part}_norm", decoder.head_dim, shape=(n, decoder.head_dim))
            for part, n in heads.items()
        }

    @classmethod
    def output(cls, decoder: Decoder) -> Output:
        """The last block."""
        return decoder.output(is_tied=True, scale=decoder.keys.number("logit_scale", 0.0) or 1.0)


class Cohere2(Architecture):
    """Three layers of four see a window only, and they alone have rope."""

    name = "cohere2"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file, norm=NormKind.LAYER)
        rope = decoder.rope(is_interleaved=True)
        windows = decoder.windows(4, is_required=True)
        is_local = decoder.flags("attention.sliding_window_pattern", 4)
        layers = []
        for layer in range(decoder.n_layers):
            attention = decoder.attention(layer, rope if is_local[layer] else None, window=windows[layer])
            layers.append(Layer(attention, decoder.feed_forward(layer, norm="attn_norm"), is_parallel=True))
        output = decoder.output(is_tied=True, scale=decoder.keys.number("logit_scale") or 1.0)
        return {"main": decoder.plan(layers, output=output)}


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `command-r` and `cohere2`."""
    return (CommandR, Cohere2)
