"""All pairs of one drafter, and what they came to by category."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.plugins.bench.figures import Figures

if TYPE_CHECKING:
    from augury.plugins.bench.contest import Pair

__all__ = ["Outcome", "label_of"]


def label_of(spec_type: str, state: str, *, is_synthetic: bool) -> str:
    """A drafter, as tables name it: with what its figures must not be mistaken without.

    >>> label_of("suffix", "warm", is_synthetic=True)
    'suffix (warm, synthetic)'
    """
    marks = [mark for mark, is_set in ((state, state != "cold"), ("synthetic", is_synthetic)) if is_set]
    return f"{spec_type} ({', '.join(marks)})" if marks else spec_type


@frozen(eq=False)
class Outcome:
    """What a drafter did on a workload."""

    spec_type: str  # with the options that differ from their defaults
    state: str  # "cold": it had seen nothing before each run; "warm": it had seen the same prompt answered
    pairs: tuple[Pair, ...]

    @property
    def label(self) -> str:
        """The drafter, as tables name it."""
        return label_of(self.spec_type, self.state, is_synthetic=bool(self.figures.synthetic))

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
