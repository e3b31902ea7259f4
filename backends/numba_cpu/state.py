"""States: the memory of slots for sequences, see `Block.states`."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cpu.kernels import convolution, recurrence
from augury.backends.numba_cpu.memory import Arena, memory_at, up
from augury.blocks import SequenceState
from augury.types import ModelOptions


class State:
    """A state of every slot, of float32, in rows of whole vectors.

    Of a drafted token, the part that is added to columns of a matrix lies apart from the part that all columns share.

    Attributes:
        values: Where states are, once they have a place, as the following.
        saved: Where they are as they were saved.
        aside: Where the inputs of drafted tokens are kept, to be taken in.
        added: Where the part is that is added to columns.
        n_bytes: The bytes of one slot.
        scratch_bytes: Bytes that each thread needs for itself while it brings the state up to date.
    """

    values: int
    saved: int
    aside: int
    added: int

    def __init__(self, state: SequenceState, options: ModelOptions) -> None:
        self._n_slots, self._n_aside = options.n_slots, max(options.draft_max, 1)
        if len(state.shape) == 2:  # a convolution's inputs
            n_rows, width = state.shape
            self.n_bytes, self._aside = 4 * n_rows * up(width, 16), (4 * up(state.n_fed, 16), 0)
            self.scratch_bytes = convolution.scratch_bytes(n_rows + 1, self._n_aside)
        else:
            n_heads, key_dim, width = state.shape
            self.n_bytes = n_heads * -(-width // recurrence.BLOCK_COLUMNS) * recurrence.block_bytes(key_dim)
            self._aside = (4 * up(state.n_fed - n_heads * width, 16), 4 * n_heads * up(width, recurrence.BLOCK_COLUMNS))
            self.scratch_bytes = recurrence.scratch_bytes(key_dim, self._n_aside)

    @property
    def n_bytes_of_all(self) -> int:
        """Bytes of all slots: states as they are and as they were saved, and drafted tokens aside."""
        return self._n_slots * (2 * self.n_bytes + self._n_aside * sum(self._aside))

    def place(self, arena: Arena) -> None:
        """Allocate it."""
        self.values, self.saved = (arena.zeros(self._n_slots * self.n_bytes, each) for each in ("states", "saved states"))
        self.aside, self.added = (
            arena.zeros(self._n_slots * self._n_aside * n, "drafted tokens kept aside") if n else 0 for n in self._aside
        )

    def slot_memory(self, slot: int) -> np.ndarray:
        """A view of a slot's state."""
        return memory_at(self.values + slot * self.n_bytes, self.n_bytes)
