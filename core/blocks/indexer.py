"""What chooses the tokens that attention sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from augury.blocks.parts import Linear, Norm, Part, Rope, Vector

__all__ = ["BlockIndexer", "Indexer", "PoolIndexer", "Pooling"]


@frozen
class Indexer:
    """Chooses the `n_chosen` tokens that a token attends to, of those that it sees; all of them while there are no more.

    A token keeps k = rope(k_norm(k(n))). Its q has H_i heads, turned too, and is made of what attention's q is made of. The
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

    def tensors(self) -> tuple[Part, ...]:
        """Its matrices and its norm."""
        return (self.q, self.k, self.k_norm, self.weights)


@frozen
class BlockIndexer:
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

    def tensors(self) -> tuple[Part, ...]:
        """Its matrices and norms."""
        return (self.q, self.k, self.q_norm, self.k_norm)


@frozen
class Pooling:
    """Makes one row (D,) of every `size` positions, once the last of them is there.

    A token at position p keeps v = value_norm(values(n)) and, where there are weights, w = weights(n) + places[p % size]. A row
    is the norm of the sum of v over its tokens, weighed channel by channel by softmax of w, or of their mean; rope turns it
    like the first of its positions.

    Where it `overlaps`, v and w have 2 D values, and a row is made of twice as many tokens: of the first halves of those in the
    block before, if there is one, and of the second halves of its own.

    Source: DeepSeek-AI 2026, "DeepSeek-V4", for weights and overlaps, as llama.cpp computes them.
    """

    size: int
    values: Linear  # E → D, or 2 D
    value_norm: Norm | None = None
    weights: Linear | None = None  # E → D, or 2 D
    places: Vector | None = None  # (size, D or 2 D)
    norm: Norm | None = None
    rope: Rope | None = None
    overlaps: bool = False

    @property
    def width(self) -> int:
        """D."""
        return self.values.n_out // (1 + self.overlaps)

    @property
    def n_kept(self) -> int:
        """Values that are kept of a token, beside the row that ends with it."""
        return self.values.n_out * (1 + (self.weights is not None))

    def tensors(self) -> tuple[Part, ...]:
        """Its matrices and norms."""
        parts = (self.values, self.value_norm, self.weights, self.places, self.norm)
        return tuple(part for part in parts if part is not None)


@frozen
class PoolIndexer:
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

    def tensors(self) -> tuple[Part, ...]:
        """Its matrices and norms."""
        parts = (self.q, self.q_norm, *self.keys.tensors(), self.weights)
        return tuple(part for part in parts if part is not None)
