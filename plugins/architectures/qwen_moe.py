"""Qwen's models with mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.blocks import Gating, Layer
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import mixture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import ModelPlan
    from augury.files.gguf import ModelFile


class Qwen2Moe(Architecture):
    """As Qwen2, with experts, and one that is shared and has a gate."""

    name = "qwen2moe"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file, may_have_experts=True)
        rope = decoder.rope()
        layers = (
            Layer(
                decoder.attention(layer, rope),
                mixture(decoder, layer, gating=Gating.SOFTMAX, is_normalised=False, has_scales=False),
            )
            for layer in range(decoder.n_layers)
        )
        return {"main": decoder.plan(layers)}


class Qwen3Moe(Architecture):
    """As Qwen3, with experts, whose weights sum to 1."""

    name = "qwen3moe"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file, may_have_experts=True)
        rope = decoder.rope()
        layers = (
            Layer(
                decoder.attention(layer, rope, has_head_norms=True),
                mixture(decoder, layer, gating=Gating.SOFTMAX, is_normalised=True),
            )
            for layer in range(decoder.n_layers)
        )
        return {"main": decoder.plan(layers)}


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `qwen2moe` and `qwen3moe`."""
    return (Qwen2Moe, Qwen3Moe)
