"""A model that runs its plan block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.reference.cache import LayerCache
from augury.backends.reference.formula import activate, attend, norm, rotate
from augury.batch import Tree, check_moves
from augury.blocks import Attention, FeedForward
from augury.errors import AuguryError, CapacityError, OptionError
from augury.interfaces import Model
from augury.passes import ArrayPass
from augury.types import Allocation, StateSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.reference.weights import Weights
    from augury.batch import Batch
    from augury.blocks import Embedding, ModelPlan, Norm, Output
    from augury.passes import Pass
    from augury.types import ModelInfo, ModelOptions


class ReferenceModel(Model):
    """Weights, KV cache and the meaning of every block.

    The residual stream x (n, E) float64 holds a row per token of the pass. The blocks below work on all rows, but compute each
    as if it were alone (`formula`), so rows do not depend on each other to the bit.
    """

    def __init__(self, info: ModelInfo, plan: ModelPlan, weights: Weights, options: ModelOptions) -> None:
        self.info = info
        self._plan = plan
        self._weights: Weights | None = weights
        self._caches = [LayerCache(layer, options) for layer in plan.attentions]
        n_bytes = sum(cache.n_bytes for cache in self._caches)
        self.state_spec = StateSpec(options.n_slots, options.n_ctx, n_bytes // (options.n_slots * options.n_ctx))

    def forward(self, batch: Batch) -> Pass:
        """Compute one pass."""
        weights = self._open()
        self._check(batch)
        tree = None if batch.parents is None else Tree(batch, self.state_spec.n_ctx)
        if batch.moves is not None:
            check_moves(batch.moves, self.state_spec)
            for cache in self._caches:
                cache.move(batch.moves)
        caches = iter(self._caches)
        x = self._embed(self._plan.embedding, weights, batch.tokens)
        for block in self._plan.layers(batch.n_layers):
            if isinstance(block, Attention):
                x = x + self._attention(block, weights, next(caches), batch, tree, x)
            else:
                assert isinstance(block, FeedForward)
                x = x + self._feed_forward(block, weights, x)
        return ArrayPass(self._output(self._plan.output, weights, x[batch.rows]))

    def memory_table(self) -> Sequence[Allocation]:
        """What the weights and the KV cache take."""
        return (
            Allocation("weights", self._open().n_bytes),
            Allocation("KV cache", sum(cache.n_bytes for cache in self._caches)),
        )

    def close(self) -> None:
        """Give back the memory."""
        self._weights = None
        self._caches = []

    @staticmethod
    def _embed(block: Embedding, weights: Weights, tokens: np.ndarray) -> np.ndarray:
        """Look up x = scale * W[token]: (n,) tokens → (n, E)."""
        return block.scale * weights.rows(block.weight, tokens)

    @staticmethod
    def _attention(
        block: Attention, weights: Weights, cache: LayerCache, batch: Batch, tree: Tree | None, x: np.ndarray
    ) -> np.ndarray:
        """What attention adds to x (n, E): post_norm(o(softmax(scale * q k^T) v)).

        Keys and values of all tokens are stored first; then each token reads its slot up to its own position, of a tree what
        lies on its path.
        """
        normed = _each(x, block.norm, weights)
        queries = weights.product(block.q, normed).reshape(-1, block.n_heads, block.head_dim)
        keys = weights.product(block.k, normed).reshape(-1, block.n_kv_heads, block.head_dim)
        values = weights.product(block.v, normed).reshape(-1, block.n_kv_heads, block.value_dim)
        queries, keys = _each(queries, block.q_norm, weights), _each(keys, block.k_norm, weights)
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
        return _each(weights.product(block.o, mixed), block.post_norm, weights)

    @staticmethod
    def _feed_forward(block: FeedForward, weights: Weights, x: np.ndarray) -> np.ndarray:
        """What a feed-forward adds to x (n, E): post_norm(down(activation(gate(n)) * up(n))) with n = norm(x)."""
        normed = _each(x, block.norm, weights)
        gates, ups = weights.product(block.gate, normed), weights.product(block.up, normed)
        hidden = np.empty_like(gates)
        for token, gate in enumerate(gates):
            hidden[token] = activate(gate, block.activation) * ups[token]
        return _each(weights.product(block.down, hidden), block.post_norm, weights)

    @staticmethod
    def _output(block: Output, weights: Weights, x: np.ndarray) -> np.ndarray:
        """Logits (r, V) float32 = W norm(x), of the rows (r, E) that are asked for."""
        return weights.product(block.weight, _each(x, block.norm, weights)).astype(np.float32)

    def _open(self) -> Weights:
        if self._weights is None:
            raise AuguryError(f"model {self.info.name!r} is closed")
        return self._weights

    def _check(self, batch: Batch) -> None:
        """Refuse what would be written beside the slots or read beside the embedding."""
        spec, n_vocab = self.state_spec, self._plan.embedding.n_vocab
        if _is_outside(batch.positions, spec.n_ctx):
            raise CapacityError(f"position {batch.positions.max()} does not fit into a slot of {spec.n_ctx} positions")
        if _is_outside(batch.slots, spec.n_slots):
            raise CapacityError(f"slot {batch.slots.max()} does not exist; there are {spec.n_slots}")
        if _is_outside(batch.tokens, n_vocab):
            raise OptionError(f"tokens from {batch.tokens.min()} to {batch.tokens.max()}, expected ids from 0 to {n_vocab - 1}")
        if batch.n_layers is not None and not 1 <= batch.n_layers <= self.info.n_layers:
            raise OptionError(f"a pass through {batch.n_layers} layers, expected 1 to {self.info.n_layers}")


def _each(x: np.ndarray, block: Norm | None, weights: Weights) -> np.ndarray:
    """Norm every token of x (n, …, size) by itself; where the plan has no such norm, x."""
    if block is None:
        return x
    weight = weights.vector(block.weight)
    normed = np.empty_like(x)
    for token, row in enumerate(x):
        normed[token] = norm(row, weight, block.eps)
    return normed


def _is_outside(indices: np.ndarray, n: int) -> bool:
    return bool(len(indices) and (indices.min() < 0 or indices.max() >= n))
