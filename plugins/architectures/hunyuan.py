"""Hunyuan, its dense models."""

from __future__ import annotations

from augury.blocks import Rope
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import base_of
from augury.plugins.architectures.transformer import Transformer


class HunyuanDense(Transformer):
    """Heads are normed after rope, whose base grows by a factor that files may state."""

    name = "hunyuan-dense"
    mixing = {"has_head_norms": True, "is_rope_first": True}
    feeding = {"has_scales": False}

    @classmethod
    def rope(cls, decoder: Decoder) -> Rope:
        """The rotary positions of all layers."""
        keys, base, head_dim = decoder.keys, base_of(decoder), decoder.head_dim
        if (alpha := keys.number("rope.scaling.alpha", 0.0, most=1e6)) and head_dim > 2:
            base *= alpha ** (head_dim / (head_dim - 2))
        sections = keys.counts("rope.dimension_sections", 4, (0, 0, 0, 0), least=0)
        return decoder.rope(base=base, has_factors=True, sections="blocks" if sections[0] and sections[1] else None)


class HunyuanVL(HunyuanDense):
    """The language model of Hunyuan-VL."""

    name = "hunyuan_vl"


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `hunyuan-dense` and `hunyuan_vl`."""
    return (HunyuanDense, HunyuanVL)
