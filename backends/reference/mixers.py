"""All mixers, by their type, and the blocks that have a function here."""

from __future__ import annotations

from augury.backends.reference import blocks, latent, recurrent
from augury.blocks import (
    Attention,
    Block,
    BlockIndexer,
    Embedding,
    Indexer,
    Injection,
    LatentAttention,
    LayerInput,
    MixtureOfExperts,
    ModelPlan,
    NextnInput,
    Output,
)

CACHES = {**blocks.CACHES, **latent.CACHES, **dict.fromkeys(recurrent.MIXERS, recurrent.LayerStates)}
"""What a mixer keeps of its slots."""
MIXERS = {**blocks.MIXERS, **latent.MIXERS, **recurrent.MIXERS}
"""What a mixer that keeps something adds to x."""
KNOWN = frozenset({Embedding, Injection, LayerInput, MixtureOfExperts, NextnInput, Output, *blocks.STATELESS, *CACHES})
"""Blocks that have a function, which computes all that they may have; of others the operations are computed."""
INDEXERS: dict[type[Block], type] = {Attention: BlockIndexer, LatentAttention: Indexer}
"""The indexer that a function knows."""


def has_function(block: Block, plan: ModelPlan) -> bool:
    """Whether a block of a plan has a function. One with an indexer of a package has none, nor one that reuses its choice."""
    others = plan.mixers if getattr(block, "reuses_choice", 0) else ()
    indexers = [(type(each), getattr(each, "indexer", None)) for each in (block, *others)]
    return type(block) in KNOWN and all(found is None or type(found) is INDEXERS.get(kind) for kind, found in indexers)
