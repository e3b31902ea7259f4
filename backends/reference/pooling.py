"""Rows that are pooled of several positions, and the choice of what they stand for: see `augury.blocks.Pooling`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from augury.backends.reference.formula import rotate, softmax
from augury.backends.reference.weights import each_normed
from augury.blocks import PoolIndexer, Pooling

if TYPE_CHECKING:
    from augury.backends.reference.weights import Weights

__all__ = ["best_blocks", "best_of", "chosen_cells", "given_to_pool", "kept_to_pool", "pooled_row"]


def kept_to_pool(pooling: Pooling, weights: Weights, normed: np.ndarray, positions: list[int]) -> np.ndarray:
    """What tokens keep to be pooled, (n, n_kept): values, then weights."""
    return given_to_pool(pooling, weights, [weights.product(linear, normed) for linear in pooling.linears], positions)


def given_to_pool(pooling: Pooling, weights: Weights, products: list[np.ndarray], positions: list[int]) -> np.ndarray:
    """Likewise, of the products (n, D) or (n, 2 D) with its matrices."""
    values = each_normed(products[0], pooling.value_norm, weights)
    if pooling.weights is None:
        return values
    shares = products[1]
    if pooling.places is not None:
        shares = shares + weights.vector(pooling.places.weight).reshape(pooling.size, -1)[np.array(positions) % pooling.size]
    return np.hstack([values, shares])


def pooled_row(pooling: Pooling, weights: Weights, kept: np.ndarray, position: int) -> np.ndarray:
    """The row (D,) of the block that a token ends, of what is kept (T, n_kept) up to it; zeros where it ends none."""
    size, width = pooling.size, pooling.width
    if (position + 1) % size:
        return np.zeros(width)
    parts = kept[-size:].reshape(size, -1, pooling.values.n_out)[:, :, -width:]  # values, and weights where there are such
    if pooling.overlaps and position >= size:
        before = kept[-2 * size : -size].reshape(size, -1, pooling.values.n_out)[:, :, :width]
        parts = np.concatenate([before, parts])
    values = parts[:, 0]
    shares = np.full(values.shape, 1.0 / size)
    if pooling.weights is not None:
        shares = softmax(np.ascontiguousarray(parts[:, 1].T)).T
    row = each_normed((shares * values).sum(axis=0)[None], pooling.norm, weights)
    return row[0] if pooling.rope is None else rotate(row, position + 1 - size, pooling.rope)[0]


def best_blocks(
    indexer: PoolIndexer, weights: Weights, keys: np.ndarray, asking: np.ndarray, normed: np.ndarray, position: int
) -> np.ndarray:
    """The blocks that a token attends to, rising, of those with keys (b, D_i).

    Args:
        indexer: Chooses.
        weights: Of the plan.
        keys: Of the whole blocks that the token sees.
        asking: What attention's queries are made of.
        normed: The token's norm (E,).
        position: Of the token.
    """
    queries = each_normed(weights.product(indexer.q, asking[None]).reshape(1, -1, indexer.keys.width), indexer.q_norm, weights)[
        0
    ]
    queries = queries if indexer.rope is None else rotate(queries, position, indexer.rope)
    shares = None if indexer.weights is None else weights.product(indexer.weights, normed[None])[0]
    return best_of(queries, shares, keys, indexer.n_chosen)


def best_of(queries: np.ndarray, shares: np.ndarray | None, keys: np.ndarray, n_chosen: int) -> np.ndarray:
    """The places, rising, of the keys (b, D_i) with the highest scores of queries (H_i, D_i) and their weights (H_i,)."""
    if len(keys) <= n_chosen:
        return np.arange(len(keys))
    shares = np.full(len(queries), 1.0 / math.sqrt(queries.shape[1])) if shares is None else shares
    scores = sum(share * np.maximum(keys @ query, 0.0) for share, query in zip(shares, queries, strict=True))
    return np.sort(np.argsort(-np.asarray(scores), kind="stable")[:n_chosen])


def chosen_cells(blocks: np.ndarray, size: int, seen: np.ndarray) -> np.ndarray:
    """Of the cells that a token sees those of some blocks, and those after the last whole one."""
    is_chosen = np.isin(np.arange(len(seen)) // size, [*blocks, len(seen) // size])
    return seen[is_chosen]
