"""Qwen2 and Qwen2.5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.blocks import ModelPlan
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder

if TYPE_CHECKING:
    from augury.blocks import Block
    from augury.files.gguf import ModelFile


class Qwen2(Architecture):
    """Pre-norm attention with biased q, k and v, gated feed-forward."""

    name = "qwen2"

    @classmethod
    def plan(cls, file: ModelFile) -> ModelPlan:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file)
        rope = decoder.rope()
        blocks: list[Block] = [decoder.embedding()]
        for layer in range(decoder.n_layers):
            blocks += [decoder.attention(layer, rope), decoder.feed_forward(layer, has_scales=False)]
        return ModelPlan(cls.name, (*blocks, decoder.output()), decoder.n_ctx_train)


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `qwen2`."""
    return (Qwen2,)
