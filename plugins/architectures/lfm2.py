"""LFM2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from augury.blocks import Block, Convolution, FeedForward, Layer, MixtureOfExperts, ModelPlan, ShortConvolution
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import mixture
from augury.plugins.architectures.rope import local_size

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile


class Lfm2(Architecture):
    """Gated short convolutions, and attention with normed heads in layers that have key heads; the dense models."""

    name = "lfm2"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, least=0, may_have_experts=True)
        window = cls.window(decoder)
        rope = decoder.rope(n_rot=None if window is None else local_size(decoder))
        layers = []
        for layer, n_kv_heads in enumerate(decoder.n_kv_heads):
            mixer: Block = (
                decoder.attention(layer, rope, has_head_norms=True, window=window)
                if n_kv_heads
                else _short_convolution(decoder, layer)
            )
            layers.append(Layer(mixer, cls.feed_forward(decoder, layer)))
        return {"main": decoder.plan(layers, output=decoder.output(norm="token_embd_norm"))}  # as converters have misnamed it

    @classmethod
    def window(cls, decoder: Decoder) -> int | None:
        """How many positions attention sees."""
        return decoder.keys.count("attention.sliding_window", 0, least=0) or None

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> FeedForward | MixtureOfExperts:
        """The feed-forward of a layer."""
        return decoder.feed_forward(layer, has_scales=False, has_biases=False)


class Lfm2Moe(Lfm2):
    """The mixtures of experts, whose first layers are dense."""

    name = "lfm2moe"

    @classmethod
    def window(cls, decoder: Decoder) -> int | None:  # noqa: ARG003 - as its parent's
        return None

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> FeedForward | MixtureOfExperts:
        if layer < decoder.keys.count("leading_dense_block_count", 0, least=0):
            return super().feed_forward(decoder, layer)
        return mixture(decoder, layer, is_normalised=True, has_scales=False)


def _short_convolution(decoder: Decoder, layer: int) -> ShortConvolution:
    at, n_embd = f"blk.{layer}", decoder.n_embd
    n_taps = decoder.keys.count("shortconv.l_cache", least=2)
    return ShortConvolution(
        norm=decoder.norm(f"{at}.attn_norm"),
        inputs=decoder.linear(f"{at}.shortconv.in_proj", n_embd, 3 * n_embd, has_scale=False),
        conv=decoder.check(Convolution(f"{at}.shortconv.conv.weight", n_embd, n_taps)),
        o=decoder.linear(f"{at}.shortconv.out_proj", n_embd, n_embd, has_scale=False),
    )
