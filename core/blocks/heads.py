"""Steps that prepare heads of attention, and pooling, which makes one row of several positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.parts import HasParts

if TYPE_CHECKING:
    from augury.blocks.parts import Linear, Norm, Rope, Temperature, Vector

__all__ = ["Pooling", "Preparation"]


@frozen
class Preparation:
    """Steps on the values of a head, in this order, or with the rope before the norm."""

    clamp: float | None = None  # to [-clamp, clamp]
    norm: Norm | None = None
    rope: Rope | None = None
    temperature: Temperature | None = None
    is_rope_first: bool = False

    @property
    def is_nothing(self) -> bool:
        """Whether heads stay as they are."""
        return self.clamp is None and self.norm is None and self.rope is None and self.temperature is None


@frozen
class Pooling(HasParts):
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
