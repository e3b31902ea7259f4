"""Latent attention, see `augury.blocks.LatentAttention`."""

from __future__ import annotations

import numpy as np

from augury.backends.reference.blocks import sharpness
from augury.backends.reference.cache import LayerCache
from augury.backends.reference.formula import rotate, sigmoid, softmax
from augury.backends.reference.weights import Weights, each_normed
from augury.batch import Batch, Tree
from augury.blocks import LatentAttention, Rope


def latent_attention(
    block: LatentAttention, weights: Weights, cache: LayerCache, batch: Batch, tree: Tree | None, x: np.ndarray
) -> np.ndarray:
    """Latent attention's addition to x (n, E)."""
    normed, n_latent, n_plain = each_normed(x, block.norm, weights), block.latent_dim, block.keys.n_in
    asking = normed if block.q_down is None else each_normed(weights.product(block.q_down, normed), block.q_norm, weights)
    queries = weights.product(block.q, asking).reshape(len(x), block.n_heads, -1)
    kept = weights.product(block.kv, normed)
    latents = each_normed(kept[:, :n_latent], block.kv_norm, weights)
    to_turn = each_normed(kept[:, n_latent:], block.turned_norm, weights)
    cells = batch.positions if tree is None else tree.cells
    places = list(zip(batch.slots.tolist(), batch.positions.tolist(), cells.tolist(), strict=True))
    for token, (slot, position, cell) in enumerate(places):
        turned = _turned(to_turn[token : token + 1], position, block.rope)[0]
        cache.store(slot, cell, np.concatenate([latents[token], turned])[None])
    given = np.empty((len(x), block.o.n_in))
    sinks = [None] * block.n_heads if block.sinks is None else weights.vector(block.sinks.weight).tolist()
    for token, (slot, position, _) in enumerate(places):
        first = 0 if block.window is None else max(0, position + 1 - block.window)
        seen = cache.seen(slot, slice(first, position + 1) if tree is None else tree.seen(token)[first:])[0][0]
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
