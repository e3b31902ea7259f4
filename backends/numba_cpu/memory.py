"""Memory that kernels work on, an account of it, and slots': caches of positions, states of sequences and their updates."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np

from augury.backends.numba.lowering import SequenceStates
from augury.backends.numba_cpu.kernels import cache_type, convolution, recurrence
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.struct import dtype, table, values
from augury.backends.numba_cpu.kernels.team import SequenceUpdate
from augury.batch import Batch, StateUpdate, StateUpdates
from augury.blocks import SequenceState
from augury.types import Allocation, ModelOptions

_LINE = 64
_SLACK = 64  # a kernel may read (never use) up to one vector beyond an array


def memory_at(address: int, n_bytes: int) -> np.ndarray:
    """A view of bytes that an arena holds, (n_bytes,) uint8."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address))


class Arena:
    """Holds arrays that kernels know by address, and counts their bytes by purpose."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._n_bytes: dict[str, int] = {}
        self._shared: dict[Hashable, int] = {}

    def zeros(self, n_bytes: int, purpose: str) -> int:
        """Allocate bytes that are zero; the system finds memory for the bytes that are used. Returns their address."""
        array = np.zeros(n_bytes + _LINE + _SLACK, np.uint8)
        self._arrays.append(array)
        self.count(purpose, array.nbytes)
        address = array.ctypes.data
        return int(address + -address % _LINE)

    def keep(self, array: np.ndarray, purpose: str) -> int:
        """Hold an array, and return its address."""
        array = np.ascontiguousarray(array)
        self._arrays.append(array)
        self.count(purpose, array.nbytes)
        return int(array.ctypes.data)

    def shared(self, key: Hashable, make: Callable[[], np.ndarray], purpose: str) -> int:
        """The address of the array that callers share by one key, made when it is first wanted."""
        if key not in self._shared:
            self._shared[key] = self.keep(make(), purpose)
        return self._shared[key]

    def count(self, purpose: str, n_bytes: int) -> None:
        """Add to the account bytes that are held elsewhere."""
        self._n_bytes[purpose] = self._n_bytes.get(purpose, 0) + n_bytes

    def table(self) -> tuple[Allocation, ...]:
        """The bytes, by purpose."""
        return tuple(Allocation(purpose, n_bytes) for purpose, n_bytes in self._n_bytes.items())


def up(size: int, multiple: int) -> int:
    """The next multiple that is not less than `size`."""
    return -(-size // multiple) * multiple


_NO_PLACES = np.empty(0, np.int64)
_BLOCK = 64  # positions that a slot's memory is padded to: at least as many as attention scores at once


class Cache:
    """A row of each head in every cell of every slot, of numbers as a cache type keeps them."""

    address: int  # where they lie, once they have a place

    def __init__(self, kind: str, n_heads: int, size: int, options: ModelOptions) -> None:
        self.kind: str = getattr(options, kind, kind)  # the cache type
        self.n_heads, self.size, self._n_slots = n_heads, size, options.n_slots  # of a cell, numbers of a row
        self.is_of_keys = False  # whether rows lie 16 by 16, number by number, as attention reads keys
        self.length = self.n_rows = up(options.n_ctx, _BLOCK)  # cells of a slot, rows from one head of a slot to the next
        self.first = 0  # the row of the first cell
        self._before: Cache | None = None

    def follow(self, other: Cache) -> None:
        """Lie after the rows of another cache, slot by slot: a list of cells can name both."""
        self._before, self.first = other, self.length
        self.n_rows = other.n_rows = 2 * self.length

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.size * BYTES[self.kind] // LANES if self.is_of_keys else up(self.size, LANES) // LANES * BYTES[self.kind]

    @property
    def bytes_per_position(self) -> int:
        """Bytes of a cell."""
        return self.n_heads * self.row_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes of all slots."""
        return self._n_slots * self.length * self.bytes_per_position

    @property
    def rows(self) -> cache_type.CachedRows:
        """Its rows, of one head, as kernels find them."""
        return cache_type.CachedRows(address=self.address, row_bytes=self.row_bytes, n_rows=self.n_rows)

    @property
    def put(self) -> Any:
        """The kernel that keeps a row."""
        return cache_type.put_key_kernel(self.kind) if self.is_of_keys else cache_type.put_row_kernel(self.kind)

    @property
    def move(self) -> Any:
        """The kernel that copies cells of caches of its kind, see `MovedCache`."""
        return cache_type.move_keys_kernel(self.kind) if self.is_of_keys else cache_type.move_rows_kernel()

    def place(self, arena: Arena) -> None:
        """Allocate it."""
        n_bytes = self._n_slots * self.n_rows * self.bytes_per_position
        self.address = arena.zeros(n_bytes, "KV cache") if self._before is None else self._before.address

    def slot_memory(self, slot: int, head: int, n: int, start: int = 0) -> np.ndarray:
        """A view of a head's rows of the first n cells, or of those from `start` on; keys lie in blocks of 16."""
        n = up(n, LANES) if self.is_of_keys else n
        first = (slot * self.n_heads + head) * self.n_rows + self.first + start
        return memory_at(self.address + first * self.row_bytes, (n - start) * self.row_bytes)


def to_move(caches: Iterable[Cache]) -> list[tuple[Any, np.ndarray]]:
    """The kernels that copy cells, and the caches of each."""
    by_kernel: dict[Any, list[cache_type.MovedCache]] = {}
    for each in caches:
        size = each.size if each.is_of_keys else each.row_bytes
        moved = cache_type.MovedCache(
            address=each.address, size=size, n_heads=each.n_heads, n_rows=each.n_rows, first=each.first
        )
        by_kernel.setdefault(each.move, []).append(moved)
    return [(kernel, table(moved)) for kernel, moved in by_kernel.items()]


class State(SequenceStates[int]):
    """A state of every slot, in rows of whole vectors.

    To bring it up to date, each thread needs `scratch_bytes` for itself.
    """

    def __init__(self, state: SequenceState, options: ModelOptions) -> None:
        if len(state.shape) == 2:  # a convolution's inputs
            n_rows, width = state.shape
            super().__init__(options, 4 * n_rows * up(width, 16), (4 * up(state.n_fed, 16), 0))
            self.scratch_bytes = convolution.scratch_bytes(n_rows + 1, self.n_aside)
        else:
            n_heads, key_dim, width = state.shape
            n_bytes = n_heads * -(-width // recurrence.BLOCK_COLUMNS) * recurrence.block_bytes(key_dim)
            n_added = 4 * n_heads * up(width, recurrence.BLOCK_COLUMNS)
            super().__init__(options, n_bytes, (4 * up(state.n_fed - n_heads * width, 16), n_added))
            self.scratch_bytes = recurrence.scratch_bytes(key_dim, self.n_aside)

    def slot_memory(self, slot: int) -> np.ndarray:
        """A view of a slot's state."""
        return memory_at(self.values + slot * self.n_bytes, self.n_bytes)


class SequenceUpdates:
    """Writes the updates of sequences' states in a pass, run by run, as `kernels/team.py` reads them."""

    def __init__(self, n_aside: int) -> None:
        self.records = np.zeros(MAX_TOKENS, dtype(SequenceUpdate))  # of the runs of a pass
        self._n_aside = n_aside
        self._taken: list[np.ndarray] = []  # targets of records' pointers

    def begin(self, batch: Batch, is_drafted: np.ndarray | None) -> np.ndarray | None:
        """Take up a batch; `is_drafted` is its own, sorted by slot.

        Returns:
            Runs (m, 4) of no tokens that go through all layers before the batch, with their records; None if there are none.
        """
        self._updates, self._is_drafted = StateUpdates(batch), is_drafted
        self._before: dict[int, np.ndarray] = {}  # by slot: places aside of drafted tokens of this batch
        if not (first := self._updates.before()):
            return None
        self._taken.clear()
        for index, (_, update) in enumerate(first):
            self._write(index, update, _NO_PLACES, 0)
        return np.array([(0, 0, slot, 0) for slot, _ in first], np.int64)

    def write(self, runs: np.ndarray, start: int, cells: np.ndarray) -> None:
        """Write the records of a pass of runs (m, 4), see `runs_of`, and cells (n,), that begins at `start` of the batch."""
        self._taken.clear()
        for index, (first, n, slot, _) in enumerate(runs.tolist()):
            n_drafted = 0
            if self._is_drafted is not None:
                n_drafted = int(self._is_drafted[start + first : start + first + n].sum())
            n_certain, before = n - n_drafted, self._before.get(slot, _NO_PLACES)
            self._write(index, self._updates.take(slot, n_certain), before, n_certain)
            if n_drafted:
                self._before[slot] = np.concatenate([before, cells[first + n_certain : first + n] % self._n_aside])

    def _write(self, index: int, update: StateUpdate, before: np.ndarray, n_certain: int) -> None:
        taken = np.concatenate([np.array(update.accepted, np.int64) % self._n_aside, before.astype(np.int64)])
        self._taken.append(taken)
        self.records[index] = values(
            SequenceUpdate(
                n_certain=n_certain,
                is_start=update.is_start,
                is_restored=update.is_restored,
                save=update.save,
                taken=taken.ctypes.data,
                n_accepted=len(update.accepted),
                n_before=len(before),
            )
        )
