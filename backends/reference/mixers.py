"""All mixers, by their type, and the blocks that have a function here."""

from __future__ import annotations

from typing import get_args

from augury.backends.reference import blocks, latent, recurrent
from augury.blocks import Connection, Embedding, Injection, LayerInput, MixtureOfExperts, NextnInput, Output

CACHES = {**blocks.CACHES, **latent.CACHES, **dict.fromkeys(recurrent.MIXERS, recurrent.LayerStates)}
"""What a mixer keeps of its slots."""
MIXERS = {**blocks.MIXERS, **latent.MIXERS, **recurrent.MIXERS}
"""What a mixer that keeps something adds to x."""
KNOWN = frozenset(
    {Embedding, Injection, LayerInput, MixtureOfExperts, NextnInput, Output, *blocks.STATELESS, *CACHES, *get_args(Connection)}
)
"""Blocks and connections that have a function, which computes all that they may have; of others the operations are computed."""
