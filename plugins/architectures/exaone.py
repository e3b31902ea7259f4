"""EXAONE 3 and 4, their dense models."""

from __future__ import annotations

from augury.blocks import Layer, Rope
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.transformer import Transformer

_N_LAYERS_32B = 64  # this size alone has windows; files of others may state one, which means nothing


Exaone = Transformer.family("exaone", "As Llama.", rope_args={"has_factors": True})


class Exaone4(Transformer):
    """Norms after attention and feed-forward alone, normed heads; where there are windows, the other layers have no rope."""

    name = "exaone4"
    rope_args = {"has_factors": True}
    attention_args = {"norm": None, "has_head_norms": True, "has_post_norm": True}
    ffn_args = {"norm": None, "has_post_norm": True}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        if decoder.n_layers != _N_LAYERS_32B:
            return super().layer(decoder, layer, rope)
        window = decoder.windows(4, default=4096)[layer]
        attention = decoder.attention(layer, None if window is None else rope, window=window, **cls.attention_args)
        return Layer(attention, cls.feed_forward(decoder, layer))


ExaoneMoe = Transformer.family(
    "exaone-moe",
    "Normed heads; layers with a window have rope, and the others none; experts, one of them shared.",
    rope_args=None,
    local_rotary={"has_factors": True},
    windows={"period": 4, "is_required": True},
    attention_args={"has_head_norms": True},
    experts={"has_weights_scale": True},
)
