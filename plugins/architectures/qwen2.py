"""Qwen2 and Qwen2.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from augury.blocks import Layer, ModelPlan
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile


class Qwen2(Architecture):
    """Pre-norm attention with biased q, k and v, gated feed-forward."""

    name = "qwen2"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file)
        rope = decoder.rope()
        layers = (
            Layer(decoder.attention(layer, rope), decoder.feed_forward(layer, has_scales=False))
            for layer in range(decoder.n_layers)
        )
        return {"main": decoder.plan(layers)}


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `qwen2`."""
    return (Qwen2,)
