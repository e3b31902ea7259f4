"""States of sequences: the memory of slots from token to token, see `Block.states`."""

from __future__ import annotations

from augury.backends.numba_cuda.device import Device, Part, Pointer
from augury.backends.numba_cuda.kernels import recurrence
from augury.backends.numba_cuda.kernels.convolution import MAX_SIZE
from augury.blocks import SequenceState
from augury.errors import UnsupportedError
from augury.types import ModelOptions


class State:
    """A state of all slots, of float32: as it is, as it was saved, and the inputs kept aside to be taken in.

    Attributes:
        values: The states.
        saved: As they were saved.
        aside: The inputs kept aside of drafted tokens.
        added: Of a matrix, the updates of its columns are apart from the inputs that all of them share.
        n_bytes: Bytes of a slot.
        n_slots: How many slots there are.
        n_aside: Drafted tokens of a slot that there is room for.
    """

    values: Pointer
    saved: Pointer
    aside: Pointer
    added: Pointer

    def __init__(self, state: SequenceState, options: ModelOptions) -> None:
        self._state, self.n_bytes = state, 4 * state.size
        self.n_slots, self.n_aside = options.n_slots, max(options.draft_max, 1)
        is_matrix = len(state.shape) == 3
        if is_matrix and (state.shape[1] > recurrence.MAX_ROWS or state.shape[2] % recurrence.COLUMNS):
            expected = f"keys of {recurrence.MAX_ROWS} at most and values in fours"
            raise UnsupportedError(f"a state of {state.shape}, backend numba-cuda computes {expected}; choose another one")
        if not is_matrix and not 0 < state.shape[0] < MAX_SIZE:
            found = f"a convolution of {state.shape[0] + 1} inputs"
            raise UnsupportedError(f"{found}, backend numba-cuda computes 2 to {MAX_SIZE}; choose another one")

    def place(self, device: Device) -> None:
        """Allocate it."""
        state, n_slots = self._state, self.n_slots
        n_added = 0 if len(state.shape) == 2 else state.shape[0] * state.shape[2]
        self.values, self.saved = (
            device.allocate(n_slots * self.n_bytes, purpose).at(0) for purpose in ("states", "saved states")
        )
        self.aside, self.added = (
            device.allocate(4 * n_slots * self.n_aside * n, "drafted tokens kept aside").at(0) if n else self.values
            for n in (state.n_fed - n_added, n_added)
        )

    def slot_memory(self, slot: int) -> Part:
        """A slot's state."""
        return self.values.at(slot * self.n_bytes), self.n_bytes
