"""The memory of slots that both compiled backends allocate alike: states of sequences, see `Block.states`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from augury.types import ModelOptions

_Place = TypeVar("_Place")  # an address, or a pointer of a device


class SequenceStates(Generic[_Place]):
    """A state of every slot, of float32: as it is, as it was saved, and drafted tokens' inputs kept aside to be taken in.

    Of a matrix, the part of a drafted token that is added to columns lies apart from the part that all columns share.

    Attributes:
        values: Where states are, once they have a place, as the following.
        saved: Where they are as they were saved.
        aside: Where the inputs of drafted tokens are kept.
        added: Where the part is that is added to columns, if there is one.
        n_bytes: The bytes of one slot.
        n_slots: How many slots there are.
        n_aside: Drafted tokens of a slot that there is room for.
    """

    values: _Place
    saved: _Place
    aside: _Place
    added: _Place

    def __init__(self, options: ModelOptions, n_bytes: int, kept_aside: tuple[int, int]) -> None:
        """Size them; `kept_aside` has the bytes of a drafted token's shared part, and of its part by columns or 0."""
        self.n_slots, self.n_aside = options.n_slots, max(options.draft_max, 1)
        self.n_bytes, self._kept_aside = n_bytes, kept_aside

    @property
    def n_bytes_of_all(self) -> int:
        """Bytes of all slots: states as they are and as they were saved, and drafted tokens aside."""
        return self.n_slots * (2 * self.n_bytes + self.n_aside * sum(self._kept_aside))

    def allocate(self, allocate: Callable[[int, str], _Place]) -> None:
        """Allocate them by `allocate`(bytes, purpose)."""
        self.values, self.saved = (allocate(self.n_slots * self.n_bytes, each) for each in ("states", "saved states"))
        self.aside, self.added = (
            allocate(self.n_slots * self.n_aside * n, "drafted tokens kept aside") if n else self.values
            for n in self._kept_aside
        )
