"""Indexers, which choose the tokens that attention sees.

They write operations as blocks do (`Block.lower`), on the products of their `linears`: the first multiplies the values that
attention's queries are made of, the others norm(x).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.heads import Pooling, Preparation
from augury.blocks.parts import HasParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.blocks.parts import Linear, Norm, Rope
    from augury.lowering.attention import Choice
    from augury.lowering.builder import Builder
    from augury.lowering.operations import Value

__all__ = ["BlockIndexer", "Indexer", "PoolIndexer"]


@frozen
class Indexer(HasParts):
    """Chooses the `n_chosen` tokens that a token attends to, of those that it sees; all of them while there are no more.

    A token keeps k = rope(k_norm(k(n))). Its q has H_i heads, turned too, and is made of the same values as attention's q. The
    score of a token is the sum of w_h * max(q_h · k, 0) over heads, with w = weights(n); of equal ones the earlier is chosen.

    Source: DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1. Its Hadamard transforms leave products as they are.
    """

    q: Linear  # → H_i * D_i
    k: Linear  # E → D_i
    k_norm: Norm
    weights: Linear  # E → H_i
    rope: Rope
    n_chosen: int

    @property
    def reach(self) -> int:
        """Context length up to which everything is chosen."""
        return self.n_chosen

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        """See `Block.cached`: keys."""
        return (("cache_type_k", 1, self.k.n_out),)

    def choose(self, build: Builder, made: Sequence[Value], cache: int) -> Choice:
        """Write operations that choose; its caches are those of the block from place `cache` on."""
        q, k, weights = made
        steps = (Preparation(rope=self.rope), Preparation(norm=self.k_norm, rope=self.rope))
        q, _ = build.prepare_heads((q, k), (self.k.n_out,) * 2, steps, (None, cache))
        return build.choose(q, weights, cache, self.n_chosen)


@frozen
class BlockIndexer(HasParts):
    """Chooses the `n_chosen` blocks of `size` positions that a token attends to, for each KV head by itself.

    A token keeps k = rope(k_norm(k(n))), and has a q = rope(q_norm(q(n))) of D_i values for each KV head. The score of a block
    is the largest q · k of the tokens in it that are seen. The last `n_local` blocks, its own the last of them, are chosen
    before all others; of equal ones the earlier is.
    """

    q: Linear  # E → G * D_i
    k: Linear  # E → D_i
    q_norm: Norm
    k_norm: Norm
    rope: Rope
    size: int
    n_chosen: int
    n_local: int

    @property
    def reach(self) -> int:
        """Context length up to which everything is chosen."""
        return self.n_chosen * self.size

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        """See `Block.cached`: keys."""
        return (("cache_type_k", 1, self.k.n_out),)

    def choose(self, build: Builder, made: Sequence[Value], cache: int) -> Choice:
        """See `Indexer.choose`."""
        steps = tuple(Preparation(norm=norm, rope=self.rope) for norm in (self.q_norm, self.k_norm))
        q, _ = build.prepare_heads(made, (self.k.n_out,) * 2, steps, (None, cache))
        n_heads = self.q.n_out // self.k.n_out
        return build.choose_by_head(q, n_heads, cache, self.n_chosen, self.n_local, self.size)


@frozen
class PoolIndexer(HasParts):
    """Chooses `n_chosen` blocks of positions by pooled keys; positions after the last whole block always take part.

    The score of a block is the sum of w_h * max(q_h · key, 0) over heads; of equal ones the earlier is chosen. Its
    q = rope(q_norm(q)) is made of the same values as attention's q; w is weights(n), or 1 / sqrt(D_i).
    """

    q: Linear  # → H_i * D_i
    keys: Pooling  # rows of D_i
    rope: Rope | None
    n_chosen: int
    q_norm: Norm | None = None
    weights: Linear | None = None  # E → H_i

    @property
    def reach(self) -> int:
        """Context length up to which everything is chosen."""
        return (self.n_chosen + 1) * self.keys.size - 1

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        """See `Block.cached`: what tokens keep to be pooled, and pooled keys, by the last of their tokens."""
        return (("f32", 1, self.keys.n_kept), ("f32", 1, self.keys.width))

    def choose(self, build: Builder, made: Sequence[Value], cache: int, *, window: int | None = None) -> Choice:
        """See `Indexer.choose`; with a window the choice has the last so many positions, and blocks' pooled rows."""
        q, *others = made
        n_pooled = len(self.keys.linears)
        build.pool(others[:n_pooled], self.keys, cache, cache + 1)
        (q,) = build.prepare_heads([q], [self.keys.width], [Preparation(norm=self.q_norm, rope=self.rope)])
        weights = others[n_pooled] if self.weights is not None else None
        return build.choose(q, weights, cache + 1, self.n_chosen, size=self.keys.size, window=window)
