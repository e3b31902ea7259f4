"""The parts of a plan that passes go through, each of which is lowered to a program of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from attrs import frozen

from augury.lowering import PlanEmitters

_Block = TypeVar("_Block", bound=Any)


@frozen
class Parts:
    """The parts of a model that a pass goes through, and its results beside logits; see `Batch`.

    If nobody reads what the last layer makes, the pass only keeps the layer's keys, values and states.
    """

    layers: tuple[int, int]
    features: tuple[str, ...] = ()
    takes_hidden: bool = False
    is_read: bool = True
    is_narrow: bool = False  # whether logits are those of a vocabulary alone; of `numba-cuda`
    name: str = "main"  # see `Batch.part`


class PassEmitters(PlanEmitters[_Block]):
    """The emitters of a plan's blocks, by the passes that they write."""

    def every_part(self) -> Iterator[Parts]:
        """Passes that make use of all weights, those of the whole model first."""
        for name, part in self._parts.items():
            features = () if name not in self.plan.heads or part.output_block.given is None else ("output",)
            yield Parts(part.layers, features, takes_hidden=name != "main", is_read=name != "inject", name=name)

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> list[Any]:
        """The memory of a slot, block by block; see `SlotStates.slot_memory`."""
        return [memory for block in self._blocks for memory in block.slot_memory(slot, n, start)]
