"""EXAONE 3 and 4, their dense models."""

from __future__ import annotations

from collections.abc import Mapping

from augury.blocks import Layer, ModelPlan
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, mixture
from augury.plugins.architectures.transformer import Transformer

_N_LAYERS_32B = 64  # this size alone has windows; files of others may state one, which means nothing


class Exaone(Transformer):
    """As Llama."""

    name = "exaone"
    rotary = {"has_factors": True}
    feeding = {"has_scales": False}


class Exaone4(Architecture):
    """Norms after attention and feed-forward alone, normed heads; where there are windows, the other layers have no rope."""

    name = "exaone4"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file)
        rope, is_32b = decoder.rope(has_factors=True), decoder.n_layers == _N_LAYERS_32B
        windows = decoder.windows(4, default=4096) if is_32b else (None,) * decoder.n_layers
        layers = []
        for layer, window in enumerate(windows):
            turned = None if is_32b and window is None else rope
            common = {"has_head_norms": True, "has_post_norm": True}
            attention = decoder.attention(layer, turned, norm=None, window=window, **common)
            layers.append(Layer(attention, decoder.feed_forward(layer, norm=None, has_post_norm=True, has_scales=False)))
        return {"main": decoder.plan(layers)}


class ExaoneMoe(Architecture):
    """Normed heads; where there are windows, the other layers have no rope; experts, one of them shared."""

    name = "exaone-moe"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, may_have_experts=True)
        rope = decoder.rope(has_factors=True)
        layers = []
        for layer, window in enumerate(decoder.windows(4, is_required=True)):
            attention = decoder.attention(layer, None if window is None else rope, has_head_norms=True, window=window)
            if has_experts(decoder, layer):
                layers.append(Layer(attention, mixture(decoder, layer, has_weights_scale=True, has_scales=False)))
            else:
                layers.append(Layer(attention, decoder.feed_forward(layer, has_scales=False)))
        return {"main": decoder.plan(layers)}
