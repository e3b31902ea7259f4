"""Indexers, which choose the tokens that attention sees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.heads import Preparation
from augury.blocks.parts import HasParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.blocks.parts import Linear, Norm, Rope
    from augury.lowering.attention import Choice
    from augury.lowering.builder import Builder
    from augury.lowering.operations import Value

__all__ = ["BlockIndexer", "Indexer", "PositionIndexer"]


@frozen
class PositionIndexer(HasParts, ABC):
    """Chooses the positions that a token attends to, of those that it sees.

    It writes operations as blocks do (`Block.lower`), on the products of its `linears`: the first multiplies the values that
    attention's queries are made of, the others norm(x).
    """

    @property
    @abstractmethod
    def reach(self) -> int:
        """Context length up to which everything is chosen."""

    @abstractmethod
    def cached(self) -> tuple[tuple[str, int, int], ...]:
        """Its caches, see `Block.cached`."""

    @abstractmethod
    def choose(self, build: Builder, made: Sequence[Value], cache: int) -> Choice:
        """Write operations that choose, on the products; its caches are those of the block from place `cache` on."""


@frozen
class Indexer(PositionIndexer):
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
        return self.n_chosen

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        return (("cache_type_k", 1, self.k.n_out),)

    def choose(self, build: Builder, made: Sequence[Value], cache: int) -> Choice:
        q, k, weights = made
        steps = (Preparation(rope=self.rope), Preparation(norm=self.k_norm, rope=self.rope))
        q, _ = build.prepare_heads((q, k), (self.k.n_out,) * 2, steps, (None, cache))
        return build.choose(q, weights, cache, self.n_chosen)


@frozen
class BlockIndexer(PositionIndexer):
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
        return self.n_chosen * self.size

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        return (("cache_type_k", 1, self.k.n_out),)

    def choose(self, build: Builder, made: Sequence[Value], cache: int) -> Choice:
        steps = tuple(Preparation(norm=norm, rope=self.rope) for norm in (self.q_norm, self.k_norm))
        q, _ = build.prepare_heads(made, (self.k.n_out,) * 2, steps, (None, cache))
        n_heads = self.q.n_out // self.k.n_out
        return build.choose_by_head(q, n_heads, cache, self.n_chosen, self.n_local, self.size)
