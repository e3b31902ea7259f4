"""All mixers, by their type, and the blocks that have a function here."""

from __future__ import annotations

from typing import Any

from augury.backends.reference import recurrent
from augury.backends.reference.blocks import STATELESS, attention
from augury.backends.reference.latent import latent_attention
from augury.blocks import (
    Attention,
    Block,
    Embedding,
    Injection,
    LatentAttention,
    LayerInput,
    MixtureOfExperts,
    NextnInput,
    Output,
)

MIXERS: dict[type, Any] = {Attention: attention, LatentAttention: latent_attention, **recurrent.MIXERS}
"""The addition to x of mixers with caches or states, by type."""
KNOWN = frozenset({Embedding, Injection, LayerInput, MixtureOfExperts, NextnInput, Output, *STATELESS, *MIXERS})
"""Blocks that have a function, which computes all that they may have; of others the operations are computed."""


def has_function(block: Block) -> bool:
    """Whether a block has a function, which knows no choice of positions."""
    return type(block) in KNOWN and not (getattr(block, "indexer", None) or getattr(block, "reuses_choice", 0))
