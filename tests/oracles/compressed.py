"""Attention to the last tokens, and to rows that stand for blocks of tokens, token by token: see `CompressedAttention`."""

import attrs
import numpy as np

from augury.backends.reference.formula import rotate, softmax
from augury.backends.reference.pooling import best_blocks, kept_to_pool, pooled_row
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
        given = [each for part in kept for each in (part[token][None], None)]
        cache.store(slot, cell, rotate(rows[token][None], position, block.rope), *given)
        for i, pooling in enumerate(poolings):
            row = pooled_row(pooling, weights, cache.seen(slot, path)[1 + 2 * i][0], position)
            cache.store(slot, cell, *[None] * (2 + 2 * i), row[None], *[None] * (2 * (len(poolings) - i - 1)))
    sinks, mixed = weights.vector(block.sinks.weight), np.empty((len(x), block.n_heads, block.head_dim))
    for token, (slot, position, path) in enumerate(zip(slots, positions, paths, strict=True)):
        seen = cache.seen(slot, path[-block.window :])[0][0]
        if block.pooling is not None:
            ends = path[block.pooling.size - 1 :: block.pooling.size]
            if indexer is not None:
                keys = cache.seen(slot, ends)[4][0]
                ends = ends[best_blocks(indexer, weights, keys, asking[token], normed[token], position)]
            seen = np.concatenate([seen, cache.seen(slot, ends)[2][0]])
        for head, query in enumerate(rotate(queries[token], position, block.rope)):
            mixed[token, head] = softmax(block.scale * (seen @ query), sinks[head]) @ seen
        mixed[token] = rotate(mixed[token], position, attrs.evolve(block.rope, frequencies=-block.rope.frequencies))
    groups = mixed.reshape(len(x), block.groups.n, -1)
    made = [np.concatenate([weights.product_of(block.groups, i, each) for i, each in enumerate(token)]) for token in groups]
    return weights.product(block.o, np.array(made).reshape(len(x), -1))
