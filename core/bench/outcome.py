"""All pairs of one drafter, and what they came to by category."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.bench.figures import Figures

if TYPE_CHECKING:
    from augury.bench.contest import Pair

__all__ = ["Outcome"]


@frozen(eq=False)
class Outcome:
    """What a drafter did on a workload."""

    spec_type: str  # with the options that differ from their defaults
    state: str  # "cold": it had seen nothing before each run; "warm": it had seen the same prompt answered
    pairs: tuple[Pair, ...]

    @property
    def label(self) -> str:
        """The drafter, as tables name it."""
        return self.spec_type if self.state == "cold" else f"{self.spec_type} ({self.state})"

    @property
    def figures(self) -> Figures:
        """Of all pairs."""
        return Figures.of(self.pairs)

    @property
    def by_category(self) -> dict[str, Figures]:
        """Of each category, in the order of the workload."""
        categories = dict.fromkeys(pair.item.category for pair in self.pairs)
        return {name: Figures.of(pair for pair in self.pairs if pair.item.category == name) for name in categories}

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        categories = {name: figures.told() for name, figures in self.by_category.items()}
        return {"spec_type": self.spec_type, "state": self.state} | self.figures.told() | {"categories": categories}
