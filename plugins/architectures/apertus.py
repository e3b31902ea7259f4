"""Apertus: normed heads, and a feed-forward without a gate whose activation has constants."""

from __future__ import annotations

import math
from typing import Any

import attrs

from augury.blocks import Activation, FeedForward
from augury.errors import ModelFileError
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.transformer import Transformer

_MOST = 1e6


class Apertus(Transformer):
    """xIELU has constants for each layer, two of which are stored before their softplus."""

    name = "apertus"
    rope_args = {"has_factors": True}

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> dict[str, Any]:
        names = ("q_norm", "k_norm")
        return {name: attrs.evolve(decoder.norm(f"blk.{layer}.attn_{name}", decoder.head_dim), bias=None) for name in names}

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> FeedForward:
        below, above, slope, eps = (_number(decoder.file, name, layer) for name in ("alpha_n", "alpha_p", "beta", "eps"))
        constants = (slope + _softplus(below), _softplus(above), slope, eps)
        return decoder.feed_forward(layer, Activation.XIELU, constants=constants, gate=None, has_biases=False)


def _softplus(x: float) -> float:
    return x if x > 20.0 else math.log1p(math.exp(x))


def _number(file: ModelFile, name: str, layer: int) -> float:
    """A constant of a layer: files state a number for all of them, or one for each."""
    key = f"xielu.{name}"
    stored = file.metadata.get(key)
    values = [file.get(key, float)] * (layer + 1) if isinstance(stored, float) else file.get(key, list[float])
    if layer >= len(values) or not abs(values[layer]) <= _MOST:
        raise ModelFileError(f"{file.path}: metadata key {key!r} has no finite number for layer {layer}")
    return values[layer]
