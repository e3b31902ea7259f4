"""LFM2, its dense models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.blocks import Convolution, Layer, ShortConvolution
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import Mixer, ModelPlan
    from augury.files.gguf import ModelFile


class Lfm2(Architecture):
    """Gated short convolutions, and attention with normed heads in layers that have key heads; gated feed-forward."""

    name = "lfm2"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file, least=0)
        rope = decoder.rope()
        window = decoder.keys.count("attention.sliding_window", 0, least=0) or None
        layers = []
        for layer, n_kv_heads in enumerate(decoder.n_kv_heads):
            mixer: Mixer = (
                decoder.attention(layer, rope, has_head_norms=True, window=window)
                if n_kv_heads
                else _short_convolution(decoder, layer)
            )
            layers.append(Layer(mixer, decoder.feed_forward(layer, has_scales=False)))
        return {"main": decoder.plan(layers, output=decoder.output(norm="token_embd_norm"))}  # as converters have misnamed it


def _short_convolution(decoder: Decoder, layer: int) -> ShortConvolution:
    at, n_embd = f"blk.{layer}", decoder.n_embd
    conv = Convolution(f"{at}.shortconv.conv.weight", n_embd, decoder.keys.count("shortconv.l_cache", least=2))
    decoder.check(conv)
    return ShortConvolution(
        norm=decoder.norm(f"{at}.attn_norm"),
        inputs=decoder.linear(f"{at}.shortconv.in_proj", n_embd, 3 * n_embd, has_scale=False),
        conv=conv,
        o=decoder.linear(f"{at}.shortconv.out_proj", n_embd, n_embd, has_scale=False),
    )


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `lfm2`."""
    return (Lfm2,)
