"""The memory of slots: caches for positions, see `Block.cached`, and states for sequences, see `Block.states`."""

from __future__ import annotations

from collections.abc import Sequence

from augury.backends.numba.slot_memory import SequenceStates
from augury.backends.numba_cuda.device import Device, Launch, Pointer, Region
from augury.backends.numba_cuda.kernels import recurrence
from augury.backends.numba_cuda.kernels.cells import F32, TYPES, halves_of, move_cells
from augury.backends.numba_cuda.kernels.convolution import MAX_SIZE
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.blocks import SequenceState
from augury.errors import UnsupportedError
from augury.types import ModelOptions


class Cache:
    """Heads of `dim` values of every position, in cells that `Batch` names: planes (slots, heads, n_ctx, halves).

    They are kept as an option says, or as "f32".

    Attributes:
        n_heads: How many heads a cell has.
        dim: Values of each.
        kept_as: The cache type.
        number: Its number in kernels.
        codes: The plane that has codes, or all there is.
        halves: The plane of codes' scales, or of all values.
    """

    codes: Pointer
    halves: Pointer

    def __init__(self, option: str, n_heads: int, dim: int, options: ModelOptions) -> None:
        self.kept_as: str = getattr(options, option, option)
        if self.kept_as not in TYPES and option != "f32":
            known = ", ".join(TYPES)
            raise UnsupportedError(
                f"{option} is {self.kept_as!r}, which backend numba-cuda does not keep; choose one of {known}"
            )
        self.number = TYPES.get(self.kept_as, F32)
        self.n_heads, self.dim, self._n_ctx, self._n_slots = n_heads, dim, options.n_ctx, options.n_slots
        self._n_halves = halves_of(self.kept_as, dim)
        self._planes: list[tuple[Pointer, int]] = []

    @property
    def bytes_per_position(self) -> int:
        """Bytes of one position of one slot."""
        return 2 * self.n_heads * sum(self._n_halves)

    def place(self, device: Device) -> None:
        """Allocate it."""
        n_cells = self._n_slots * self.n_heads * self._n_ctx
        self._planes = [(device.allocate(2 * n_cells * n, "KV cache"), n) for n in self._n_halves]
        self.codes, self.halves = self._planes[0][0], self._planes[-1][0]

    def slot_memory(self, slot: int, n: int, start: int = 0) -> Sequence[Region]:
        """The memory of a slot's first n positions, or of those from `start` on."""
        return [
            (plane.at(2 * n_halves * (self._n_ctx * (slot * self.n_heads + head) + start)), 2 * n_halves * (n - start))
            for plane, n_halves in self._planes
            for head in range(self.n_heads)
        ]

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """The launches that copy cells: n moves (n, 3) of slot, from, to."""
        given = {"moves": moves, "n_moves": n, "n_heads": self.n_heads, "length": self._n_ctx}
        return [
            Launch.of(move_cells, (-(-self.n_heads * size // WARP),), WARP, plane, n_halves=size, **given)
            for plane, size in self._planes
        ]


class State(SequenceStates[Pointer]):
    """A state of every slot, of the shapes that kernels compute."""

    def __init__(self, state: SequenceState, options: ModelOptions) -> None:
        is_matrix = len(state.shape) == 3
        n_added = state.shape[0] * state.shape[2] if is_matrix else 0
        super().__init__(options, 4 * state.size, (4 * (state.n_fed - n_added), 4 * n_added))
        if is_matrix and (state.shape[1] > recurrence.MAX_ROWS or state.shape[2] % recurrence.COLUMNS):
            expected = f"keys of {recurrence.MAX_ROWS} at most and values in fours"
            raise UnsupportedError(f"a state of {state.shape}, backend numba-cuda computes {expected}; choose another one")
        if not is_matrix and not 0 < state.shape[0] < MAX_SIZE:
            found = f"a convolution of {state.shape[0] + 1} inputs"
            raise UnsupportedError(f"{found}, backend numba-cuda computes 2 to {MAX_SIZE}; choose another one")

    def slot_memory(self, slot: int) -> Region:
        """A slot's state."""
        return self.values.at(slot * self.n_bytes), self.n_bytes
