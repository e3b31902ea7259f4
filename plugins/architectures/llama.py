"""Llama 1 to 3, and models built like it: Mistral, SmolLM2 and others that say `llama`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.blocks import Gating, Layer
from augury.errors import ModelFileError
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, mixture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import FeedForward, MixtureOfExperts, ModelPlan
    from augury.files.gguf import ModelFile

_FACTORS = "rope_freqs.weight"  # llama 3.1 and later: divisors of the rope's frequencies


class Llama(Architecture):
    """Pre-norm attention with interleaved rope, gated feed-forward."""

    name = "llama"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file, may_have_experts=True)
        factors = None
        if _FACTORS in file.tensors:
            factors = decoder.values(_FACTORS, decoder.n_rot // 2)
            if not factors.all():
                raise ModelFileError(f"{file.path}: tensor {_FACTORS!r} holds a 0, expected divisors")
        rope = decoder.rope(is_interleaved=True, factors=factors)  # converters permute q and k into this order
        window = decoder.keys.count("attention.sliding_window", 0, least=0) or None  # the first Mistral
        layers = (
            Layer(decoder.attention(layer, rope, window=window), _feed_forward(decoder, layer))
            for layer in range(decoder.n_layers)
        )
        return {"main": decoder.plan(layers)}


def _feed_forward(decoder: Decoder, layer: int) -> FeedForward | MixtureOfExperts:
    """A mixture in Mixtral's layers."""
    if not has_experts(decoder, layer):
        return decoder.feed_forward(layer)
    return mixture(decoder, layer, gating=Gating.SOFTMAX, is_normalised=True)


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `llama`."""
    return (Llama,)
