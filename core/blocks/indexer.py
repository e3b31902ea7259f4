"""What chooses the tokens that attention sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from augury.blocks.parts import Linear, Norm, Part, Rope

__all__ = ["BlockIndexer", "Indexer"]


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
        """In contexts of up to so many tokens all are chosen."""
        return self.n_chosen

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
        """In contexts of up to so many tokens all are chosen."""
        return self.n_chosen * self.size

    def tensors(self) -> tuple[Part, ...]:
        """Its matrices and norms."""
        return (self.q, self.k, self.q_norm, self.k_norm)
