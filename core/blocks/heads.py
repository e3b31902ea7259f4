"""Steps that prepare heads of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from augury.blocks.parts import Norm, Rope, Temperature

__all__ = ["Preparation"]


@frozen
class Preparation:
    """Steps on the values of a head, in this order, or with the rope before the norm."""

    clamp: float | None = None  # to [-clamp, clamp]
    norm: Norm | None = None
    rope: Rope | None = None
    temperature: Temperature | None = None
    is_rope_first: bool = False
    lag: int = 0  # positions by which heads are turned less than their token's, which is 0 at least

    @property
    def is_nothing(self) -> bool:
        """Whether heads stay as they are."""
        return self.clamp is None and self.norm is None and self.rope is None and self.temperature is None
