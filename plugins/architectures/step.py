"""Step 3.5: layers with a window have heads and a rope of their own; heads are gated, and hidden values are limited."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import attrs

from augury.blocks import Gating, Layer, ModelPlan, Rope
from augury.errors import ModelFileError
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import limited_feed_forward
from augury.plugins.architectures.rope import local_size, own_local_base

_FACTORS, _LEAST = "rope_freqs.weight", 1e-3


class Step35(Architecture):
    """Layers without a window turn half of the dimensions that the file states."""

    name = "step35"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, may_have_experts=True)
        wide_rope, local_rope = cls._ropes(decoder)
        windows, tensors = decoder.windows(None, is_required=True, has_nextn=True), file.tensors

        def layer_of(layer: int) -> Layer:
            at, others = f"blk.{layer}", dict[str, Any]()
            for part in ("q_norm", "k_norm"):
                if f"{at}.attn_{part}.weight" in tensors:
                    others[part] = attrs.evolve(decoder.norm(f"{at}.attn_{part}", decoder.head_dim), bias=None)
            if f"{at}.attn_gate.weight" in tensors:
                n_heads = decoder.n_heads[layer]
                others["gate"] = decoder.matrix(f"{at}.attn_gate", decoder.n_embd, n_heads)
            rope = wide_rope if windows[layer] is None else local_rope
            attention = decoder.attention(layer, rope, window=windows[layer], has_output_bias=False, **others)
            return Layer(attention, limited_feed_forward(decoder, layer, fallback=Gating.SIGMOID, has_weights_scale=True))

        return {"main": decoder.plan(map(layer_of, range(decoder.n_layers)), nextn=layer_of, nextn_hidden="layer")}

    @classmethod
    def _ropes(cls, decoder: Decoder) -> tuple[Rope, Rope]:
        """Those of layers that see everything, and of layers with a window."""
        wide, local = copy.copy(decoder), copy.copy(decoder)
        wide.n_rot = decoder.n_rot // 2
        local.n_rot = local_size(decoder)
        if wide.n_rot % 2:
            decoder.keys.fail("rope.dimension_count", decoder.n_rot, "a multiple of 4")
        rope = wide.rope()
        if _FACTORS in decoder.file.tensors:
            factors = decoder.values(_FACTORS, max(wide.n_rot, local.n_rot) // 2)[: wide.n_rot // 2]
            if not (factors > _LEAST).all():
                raise ModelFileError(
                    f"{decoder.file.path}: tensor {_FACTORS!r} holds {factors.min()}, expected more than {_LEAST}"
                )
            rope = attrs.evolve(rope, frequencies=rope.frequencies / factors)
        return rope, local.rope(base=own_local_base(decoder), is_scaled=False)
