"""Keys and values that the slots keep."""

from __future__ import annotations

import numpy as np

from augury.backends.reference.cache_type import TYPES
from augury.batch import Batch
from augury.blocks import Block
from augury.errors import CapacityError
from augury.types import ModelOptions


class _Rows:
    """Rows of D numbers, (S, G, T, D), as a cache type keeps them."""

    def __init__(self, shape: tuple[int, ...], size: int, name: str) -> None:
        self._encode, self._decode = TYPES[name]
        self._arrays = tuple(np.zeros((*shape, *part.shape), part.dtype) for part in self._encode(np.zeros(size)))

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays)

    def store(self, slot: int, cell: int, rows: np.ndarray) -> None:
        for array, part in zip(self._arrays, self._encode(rows), strict=True):
            array[slot, :, cell] = part

    def move(self, slot: int, source: int, target: int) -> None:
        for array in self._arrays:
            array[slot, :, target] = array[slot, :, source]

    def slot_memory(self, slot: int, n: int, start: int) -> list[np.ndarray]:
        return [array[slot, :, start:n] for array in self._arrays]

    def read(self, slot: int, cells: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self._decode(*(array[slot][:, cells] for array in self._arrays)))


def _row_bytes(size: int, name: str) -> int:
    encode, _ = TYPES[name]
    return sum(part.nbytes for part in encode(np.zeros(size)))


class LayerCache:
    """A layer's cache of every token, as `Block.cached` says: keys (S, G, T, D) and values (S, G, T, D_v), or latents.

    Values are rounded to the cache's types, and read back rounded by every token, the one that stored them included.
    """

    def __init__(self, layer: Block, options: ModelOptions) -> None:
        n_slots, n_ctx = options.n_slots, options.n_ctx
        try:
            self._parts = [_Rows((n_slots, n, n_ctx), size, getattr(options, kind, kind)) for kind, n, size in layer.cached()]
        except (MemoryError, ValueError) as error:  # ValueError: more than an address can name
            raise CapacityError(f"no memory for {options.slots_in_words}; ask for a smaller context or fewer slots") from error

    @staticmethod
    def bytes_per_position(layer: Block, options: ModelOptions) -> int:
        """Bytes of one position of one slot."""
        return sum(n * _row_bytes(size, getattr(options, kind, kind)) for kind, n, size in layer.cached())

    @property
    def n_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(part.n_bytes for part in self._parts)

    def store(self, part: int, slot: int, cell: int, row: np.ndarray) -> None:
        """Keep one of the rows of one token."""
        self._parts[part].store(slot, cell, row)

    def seen(self, part: int, slot: int, cells: np.ndarray) -> np.ndarray:
        """Rows (G, t, D), float64, of t cells."""
        return self._parts[part].read(slot, cells)

    def begin(self, batch: Batch) -> None:
        """Copy accepted cells to their positions, one after the other."""
        for slot, source, target in batch.accepted.tolist() if batch.accepted is not None else ():
            for part in self._parts:
                part.move(slot, source, target)

    def slot_memory(self, slot: int, n: int, start: int = 0) -> list[np.ndarray]:
        """Views of the first n cells of a slot, or of those from `start` on."""
        return [view for part in self._parts for view in part.slot_memory(slot, n, start)]
