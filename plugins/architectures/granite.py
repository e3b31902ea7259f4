"""Granite 3 and 4, their models without experts, and MiniCPM, which scales like them."""

from __future__ import annotations

import math

import numpy as np

from augury.blocks import Gating, Rope
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.mamba import mamba2
from augury.plugins.architectures.transformer import Transformer, sinks, stated


def _factor(decoder: Decoder, _layer: int) -> float:
    """The factor of layers' outputs; the first files of MiniCPM do not state it."""
    is_minicpm = decoder.file.architecture == MiniCPM.name
    return decoder.keys.number("residual_scale", 1.4 / math.sqrt(decoder.n_layers) if is_minicpm else 0.0) or 1.0


class GraniteMoe(Transformer):
    """Llama, with scales of the embedding, of layers' outputs, of scores and of logits, and with experts."""

    name = "granitemoe"
    rope_args = {"is_interleaved": True, "has_factors": True}
    attention_args = {"factor": _factor, "scale": stated("attention.scale")}
    ffn_args = {"factor": _factor}
    experts = {**ffn_args, "gating": Gating.SOFTMAX, "is_normalised": True}
    embedding_args = {"scale": stated("embedding_scale", 0.0, 1.0)}
    output_args = {"scale": lambda decoder: 1.0 / (decoder.keys.number("logit_scale") or 1.0)}


def _rope(decoder: Decoder) -> Rope | None:
    return GraniteMoe.rope(decoder) if decoder.keys.flag("rope.scaling.finetuned", default=True) else None


Granite = GraniteMoe.family("granite", "The dense models, whose files may say that there is no rope.", rope=_rope)
GraniteHybrid = Granite.family(
    "granitehybrid",
    "Mamba-2 in layers that have no key heads.",
    decoder_args={"least": 0},
    without_heads=lambda decoder, layer: mamba2(decoder, layer, factor=_factor(decoder, layer)),
    output_args={"scale": lambda decoder: 1.0 / (decoder.keys.number("logit_scale", 0.0) or 1.0)},
)


def _turns(decoder: Decoder, layer: int) -> bool:
    key = "attention.rope_pattern"  # llama.cpp takes note of an array alone
    has_pattern = isinstance(decoder.file.metadata.get(decoder.keys.full(key)), np.ndarray)
    return not has_pattern or decoder.flags(key, 0)[layer]


GraniteSwa = GraniteMoe.family(
    "granite_swa",
    "Some layers see a window only, some have no rope, and all have sinks.",
    windows={"period": None, "is_required": True},
    turns=_turns,
    attention_args={**GraniteMoe.attention_args, "sinks": sinks},
)
MiniCPM = GraniteMoe.family(
    "minicpm",
    "Scales that the first files do not state, and none of scores.",
    attention_args={"factor": _factor},
    embedding_args={"scale": stated("embedding_scale", 12.0, 1.0)},
    output_args={"scale": lambda decoder: 1.0 / (decoder.keys.number("logit_scale", 256.0 / decoder.n_embd) or 1.0)},
)
