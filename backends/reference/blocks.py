"""What every block computes: one function each, over all tokens of a pass.

A function works on all rows, but computes each as if it were alone (`formula`), so rows do not depend on each other to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.reference.cache import LayerCache
from augury.backends.reference.formula import activate, attend, norm, rotate
from augury.blocks import Attention, FeedForward

if TYPE_CHECKING:
    from augury.backends.reference.weights import Weights
    from augury.batch import Batch, Tree
    from augury.blocks import Embedding, Norm, Output

__all__ = ["FEED_FORWARDS", "MIXERS", "each_normed", "embed", "output"]


def embed(block: Embedding, weights: Weights, tokens: np.ndarray) -> np.ndarray:
    """Look up x = scale * W[token]: (n,) tokens → (n, E)."""
    return block.scale * weights.rows(block.weight, tokens)


def attention(
    block: Attention, weights: Weights, cache: LayerCache, batch: Batch, tree: Tree | None, x: np.ndarray
) -> np.ndarray:
    """What attention adds to x (n, E): post_norm(o(softmax(scale * q k^T) v)).

    Keys and values of all tokens are stored first; then each token reads its slot up to its own position, of a tree what
    lies on its path.
    """
    normed = each_normed(x, block.norm, weights)
    queries = weights.product(block.q, normed).reshape(-1, block.n_heads, block.head_dim)
    keys = weights.product(block.k, normed).reshape(-1, block.n_kv_heads, block.head_dim)
    values = weights.product(block.v, normed).reshape(-1, block.n_kv_heads, block.value_dim)
    queries, keys = each_normed(queries, block.q_norm, weights), each_normed(keys, block.k_norm, weights)
    cells = batch.positions if tree is None else tree.cells
    places = list(zip(batch.slots.tolist(), batch.positions.tolist(), cells.tolist(), strict=True))
    for token, (slot, position, cell) in enumerate(places):
        cache.store(slot, cell, rotate(keys[token], position, block.rope), values[token])
    mixed = np.empty((len(x), block.o.n_in))
    for token, (slot, position, _) in enumerate(places):
        first = 0 if block.window is None else max(0, position + 1 - block.window)
        seen = slice(first, position + 1) if tree is None else tree.seen(token)[first:]
        query = rotate(queries[token], position, block.rope)
        mixed[token] = attend(query, *cache.seen(slot, seen), block.scale).reshape(-1)
    return each_normed(weights.product(block.o, mixed), block.post_norm, weights)


def feed_forward(block: FeedForward, weights: Weights, x: np.ndarray) -> np.ndarray:
    """What a feed-forward adds to x (n, E): post_norm(down(activation(gate(n)) * up(n))) with n = norm(x)."""
    normed = each_normed(x, block.norm, weights)
    gates, ups = weights.product(block.gate, normed), weights.product(block.up, normed)
    hidden = np.empty_like(gates)
    for token, gate in enumerate(gates):
        hidden[token] = activate(gate, block.activation) * ups[token]
    return each_normed(weights.product(block.down, hidden), block.post_norm, weights)


def output(block: Output, weights: Weights, normed: np.ndarray) -> np.ndarray:
    """Logits (r, V) float32 = W norm(x), of the normed rows (r, E) that are asked for."""
    return weights.product(block.weight, normed).astype(np.float32)


def each_normed(x: np.ndarray, block: Norm | None, weights: Weights) -> np.ndarray:
    """Norm every token of x (n, …, size) by itself; where the plan has no such norm, x."""
    if block is None:
        return x
    weight = weights.vector(block.weight)
    normed = np.empty_like(x)
    for token, row in enumerate(x):
        normed[token] = norm(row, weight, block.eps)
    return normed


MIXERS = {Attention: (LayerCache, attention)}
"""What a mixer keeps of its slots, and what it adds to x, by its type."""
FEED_FORWARDS = {FeedForward: feed_forward}
