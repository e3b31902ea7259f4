"""Indexers, which choose the tokens that attention sees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.parts import HasParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.lowering.attention import Choice
    from augury.lowering.builder import Builder
    from augury.lowering.operation import Value

__all__ = ["PositionIndexer"]


@frozen
class PositionIndexer(HasParts, ABC):
    """Chooses the positions that a token attends to, of all positions that it sees.

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
