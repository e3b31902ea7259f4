"""Attention to the last tokens, and to rows that stand for blocks of tokens, token by token: see `CompressedAttention`."""

import math

import attrs
import numpy as np

from augury.backends.reference.formula import rotate, softmax
from augury.backends.reference.weights import each_normed


def compressed_attention(block, weights, cache, batch, tree, x):
    """What compressed attention adds to x (n, E)."""
    normed, positions, indexer = each_normed(x, block.norm, weights), batch.positions.tolist(), block.indexer
    asking = each_normed(weights.product(block.q_down, normed), block.q_norm, weights)
    queries = each_normed(weights.product(block.q, asking).reshape(len(x), -1, block.head_dim), block.head_norm, weights)
    rows = each_normed(weights.product(block.kv, normed), block.kv_norm, weights)
    poolings = [] if block.pooling is None else [block.pooling, *([] if indexer is None else [indexer.keys])]
    kept = [kept_to_pool(pooling, weights, normed, positions) for pooling in poolings]
    slots, cells = batch.slots.tolist(), (batch.positions if tree is None else tree.cells).tolist()
    paths = [np.arange(p + 1) if tree is None else np.asarray(tree.seen(i)) for i, p in enumerate(positions)]
    for token, (slot, position, cell, path) in enumerate(zip(slots, positions, cells, paths, strict=True)):
        cache.store(0, slot, cell, rotate(rows[token][None], position, block.rope))
        for i, pooling in enumerate(poolings):
            cache.store(1 + 2 * i, slot, cell, kept[i][token][None])
            row = pooled_row(pooling, weights, cache.seen(1 + 2 * i, slot, path)[0], position)
            cache.store(2 + 2 * i, slot, cell, row[None])
    sinks, mixed = weights.vector(block.sinks.weight), np.empty((len(x), block.n_heads, block.head_dim))
    for token, (slot, position, path) in enumerate(zip(slots, positions, paths, strict=True)):
        seen = cache.seen(0, slot, path[-block.window :])[0]
        if block.pooling is not None:
            ends = path[block.pooling.size - 1 :: block.pooling.size]
            if indexer is not None:
                keys = cache.seen(4, slot, ends)[0]
                ends = ends[best_blocks(indexer, weights, keys, asking[token], normed[token], position)]
            seen = np.concatenate([seen, cache.seen(2, slot, ends)[0]])
        for head, query in enumerate(rotate(queries[token], position, block.rope)):
            mixed[token, head] = softmax(block.scale * (seen @ query), sinks[head]) @ seen
        mixed[token] = rotate(mixed[token], position, attrs.evolve(block.rope, frequencies=-block.rope.frequencies))
    groups = mixed.reshape(len(x), block.groups.n, -1)
    made = [np.concatenate([weights.product_of(block.groups, i, each) for i, each in enumerate(token)]) for token in groups]
    return weights.product(block.o, np.array(made).reshape(len(x), -1))


def kept_to_pool(pooling, weights, normed, positions):
    """What tokens keep to be pooled, (n, D) or twice as many values: values, then weights."""
    values = each_normed(weights.product(pooling.values, normed), pooling.value_norm, weights)
    if pooling.weights is None:
        return values
    shares = weights.product(pooling.weights, normed)
    if pooling.places is not None:
        shares = shares + weights.vector(pooling.places.weight).reshape(pooling.size, -1)[np.array(positions) % pooling.size]
    return np.hstack([values, shares])


def pooled_row(pooling, weights, kept, position):
    """The row (D,) of the block that a token ends, of what is kept (T, …) up to it; zeros where it ends none."""
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


def best_blocks(indexer, weights, keys, asking, normed, position):
    """The blocks that a token attends to, rising, of the whole blocks that it sees, with keys (b, D_i).

    `asking` (R,) is what attention's queries are made of, `normed` (E,) the token's norm.
    """
    queries = each_normed(weights.product(indexer.q, asking[None]).reshape(1, -1, indexer.keys.width), indexer.q_norm, weights)[
        0
    ]
    queries = queries if indexer.rope is None else rotate(queries, position, indexer.rope)
    shares = None if indexer.weights is None else weights.product(indexer.weights, normed[None])[0]
    return best_of(queries, shares, keys, indexer.n_chosen)


def best_of(queries, shares, keys, n_chosen):
    """The places, rising, of the keys (b, D_i) with the highest scores of queries (H_i, D_i) and their weights (H_i,)."""
    if len(keys) <= n_chosen:
        return np.arange(len(keys))
    shares = np.full(len(queries), 1.0 / math.sqrt(queries.shape[1])) if shares is None else shares
    scores = sum(share * np.maximum(keys @ query, 0.0) for share, query in zip(shares, queries, strict=True))
    return np.sort(np.argsort(-np.asarray(scores), kind="stable")[:n_chosen])
