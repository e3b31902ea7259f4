"""All mixers, by their type, and the blocks that have a function here."""

from __future__ import annotations

from augury.backends.reference import blocks, latent, recurrent
from augury.blocks import (
    Block,
    Embedding,
    Injection,
    LayerInput,
    MixtureOfExperts,
    NextnInput,
    Output,
)

CACHES = {**blocks.CACHES, **latent.CACHES, **dict.fromkeys(recurrent.MIXERS, recurrent.LayerStates)}
"""What a mixer keeps of its slots."""
MIXERS = {**blocks.MIXERS, **latent.MIXERS, **recurrent.MIXERS}
"""What a mixer that keeps something adds to x."""
KNOWN = frozenset({Embedding, Injection, LayerInput, MixtureOfExperts, NextnInput, Output, *blocks.STATELESS, *CACHES})
"""Blocks that have a function, which computes all that they may have; of others the operations are computed."""


def has_function(block: Block) -> bool:
    """Whether a block has a function, which knows no choice of positions."""
    return type(block) in KNOWN and not (getattr(block, "indexer", None) or getattr(block, "reuses_choice", 0))
