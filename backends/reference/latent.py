"""Latent attention and the choice of what it sees: see `augury.blocks.LatentAttention` and `augury.blocks.Indexer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from augury.backends.reference.blocks import best_of, sharpness
from augury.backends.reference.cache import LayerCache
from augury.backends.reference.formula import rotate, sigmoid, softmax
from augury.backends.reference.weights import Weights, each_normed
from augury.batch import Batch, Tree
from augury.blocks import Indexer, LatentAttention, Rope
from augury.types import ModelOptions


class LatentCache(LayerCache):
    """Latents, and what an indexer compares.

    Attributes:
        chosen: Of each token of the pass the cells that it attends to.
        reuses_choice: Whether an earlier layer fills `chosen`.
    """

    def __init__(self, layer: LatentAttention, options: ModelOptions, weights: Weights) -> None:
        super().__init__(layer, options, weights)
        self.chosen: list[np.ndarray] = []
        self.reuses_choice = layer.reuses_choice


def share_choices(caches: Iterable[Any]) -> None:
    """Let layers see what the one before them that has an indexer chose."""
    chosen: list[np.ndarray] = []
    for cache in caches:
        if isinstance(cache, LatentCache):
            if cache.reuses_choice:
                cache.chosen = chosen
            chosen = cache.chosen


def latent_attention(
    block: LatentAttention, weights: Weights, cache: LatentCache, batch: Batch, tree: Tree | None, x: np.ndarray
) -> np.ndarray:
    """What latent attention adds to x (n, E)."""
    normed, n_latent, n_plain = each_normed(x, block.norm, weights), block.latent_dim, block.keys.n_in
    asking = normed if block.q_down is None else each_normed(weights.product(block.q_down, normed), block.q_norm, weights)
    queries = weights.product(block.q, asking).reshape(len(x), block.n_heads, -1)
    kept = weights.product(block.kv, normed)
    latents = each_normed(kept[:, :n_latent], block.kv_norm, weights)
    to_turn = each_normed(kept[:, n_latent:], block.turned_norm, weights)
    cells = batch.positions if tree is None else tree.cells
    places = list(zip(batch.slots.tolist(), batch.positions.tolist(), cells.tolist(), strict=True))
    indexer: Any = block.indexer
    compared = _compared(indexer, weights, normed, [position for _, position, _ in places])
    all_seen = [np.arange(p + 1) if tree is None else np.asarray(tree.seen(i)) for i, (_, p, _) in enumerate(places)]
    for token, (slot, position, cell) in enumerate(places):
        turned = _turned(to_turn[token : token + 1], position, block.rope)[0]
        cache.store(slot, cell, np.concatenate([latents[token], turned])[None], *compared[token])
    if not block.reuses_choice:
        cache.chosen.clear()
        for token, (slot, position, _) in enumerate(places):
            seen = all_seen[token] if block.window is None else all_seen[token][-block.window :]
            if indexer is not None:
                seen = _choose(indexer, weights, cache.seen(slot, seen)[1][0], asking[token], normed[token], position, seen)
            cache.chosen.append(seen)
    given = np.empty((len(x), block.o.n_in))
    sinks = [None] * block.n_heads if block.sinks is None else weights.vector(block.sinks.weight).tolist()
    for token, (slot, position, _) in enumerate(places):
        seen = cache.seen(slot, cache.chosen[token])[0][0]
        turned = _turned(queries[token, :, n_plain:], position, block.rope)
        factor = block.scale * (1.0 if block.temperature is None else sharpness(block.temperature, position))
        heads = []
        for head, query in enumerate(queries[token, :, :n_plain]):
            asked = np.concatenate([weights.product_of(block.keys, head, query), turned[head]])
            mixed = softmax(factor * (seen @ asked), sinks[head]) @ np.ascontiguousarray(seen[:, :n_latent])
            heads.append(weights.product_of(block.values, head, mixed))
        given[token] = np.concatenate(heads)
    if block.gate is not None:
        given *= np.repeat(sigmoid(weights.product(block.gate, normed)), block.o.n_in // block.gate.n_out, axis=1)
    return weights.product(block.o, given)


def _turned(heads: np.ndarray, position: int, rope: Rope | None) -> np.ndarray:
    return heads if rope is None else rotate(heads, position, rope)


def _compared(
    indexer: Indexer | None, weights: Weights, normed: np.ndarray, positions: list[int]
) -> list[tuple[np.ndarray | None, ...]]:
    """What an indexer keeps of every token: (1, D_i); nothing where there is none."""
    if indexer is None:
        return [()] * len(positions)
    keys = each_normed(weights.product(indexer.k, normed), indexer.k_norm, weights)
    return [(rotate(key[None], position, indexer.rope),) for key, position in zip(keys, positions, strict=True)]


def _choose(
    indexer: Indexer,
    weights: Weights,
    keys: np.ndarray,
    asking: np.ndarray,
    normed: np.ndarray,
    position: int,
    seen: np.ndarray,
) -> np.ndarray:
    """The cells that a token attends to, of those that it sees, whose keys are (t, D_i)."""
    queries = rotate(weights.product(indexer.q, asking[None]).reshape(-1, indexer.k.n_out), position, indexer.rope)
    shares = weights.product(indexer.weights, normed[None])[0]
    return seen[best_of(queries, shares, keys, indexer.n_chosen)]


CACHES: dict[type, Any] = {LatentAttention: LatentCache}
MIXERS: dict[type, Any] = {LatentAttention: latent_attention}
