"""Qwen3, its dense models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from augury.blocks import Layer, ModelPlan
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile


class Qwen3(Architecture):
    """Pre-norm attention with normed query and key heads, gated feed-forward."""

    name = "qwen3"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file)
        rope = decoder.rope()
        layers = (
            Layer(decoder.attention(layer, rope, has_head_norms=True), decoder.feed_forward(layer))
            for layer in range(decoder.n_layers)
        )
        return {"main": decoder.plan(layers)}


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `qwen3`."""
    return (Qwen3,)
