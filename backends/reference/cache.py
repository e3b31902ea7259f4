"""Keys and values that the slots keep, and each cache type: values → arrays → the values that are read back.

Functions of types work on the last axis alone, (..., D). Encoding takes float64; its result is stored as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from augury.batch import Batch
from augury.blocks import Block
from augury.errors import CapacityError
from augury.types import CACHE_BLOCK, ModelOptions

if TYPE_CHECKING:
    Arrays = tuple[np.ndarray, ...]


def _from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _to_bf16(x: np.ndarray) -> Arrays:
    """The upper half of float32, rounded to the nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16),)


def _blocks(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).reshape(*x.shape[:-1], -1, CACHE_BLOCK)


def _inverse(x: np.ndarray) -> np.ndarray:
    return np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)


def _to_q8_0(x: np.ndarray) -> Arrays:
    """Blocks of 32: a float16 scale (..., D / 32), largest magnitude / 127, and multiples of it (..., D) int8."""
    blocks = _blocks(x)
    largest = np.abs(blocks).max(axis=-1)
    codes = np.rint(blocks * (np.float32(127) * _inverse(largest))[..., None]).astype(np.int8)
    return (largest / np.float32(127)).astype(np.float16), codes.reshape(x.shape)


def _from_q8_0(scales: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), CACHE_BLOCK, axis=-1)


def _to_q4_0(x: np.ndarray) -> Arrays:
    """Blocks of 32: a float16 scale (..., D / 32), the number of largest magnitude / -8, and codes, 0 to 15 for -8 to 7.

    Codes of a block lie as in a model file, (..., D / 2) uint8: the first 16 in the lower halves of bytes.
    """
    blocks = _blocks(x)
    top, bottom = blocks.max(axis=-1), blocks.min(axis=-1)
    scales = np.where(top >= -bottom, top, bottom) / np.float32(-8)
    codes = np.minimum(blocks * _inverse(scales)[..., None] + np.float32(8.5), np.float32(15)).astype(np.uint8)
    packed = codes[..., : CACHE_BLOCK // 2] | codes[..., CACHE_BLOCK // 2 :] << 4
    return scales.astype(np.float16), packed.reshape(*x.shape[:-1], -1)


def _from_q4_0(scales: np.ndarray, packed: np.ndarray) -> np.ndarray:
    halves = packed.reshape(*scales.shape, CACHE_BLOCK // 2)
    codes = np.concatenate([halves & 15, halves >> 4], axis=-1).astype(np.float64) - 8
    return (codes * scales.astype(np.float64)[..., None]).reshape(*scales.shape[:-1], -1)


TYPES: dict[str, tuple[Callable[[np.ndarray], Arrays], Callable[..., np.ndarray]]] = {
    "f16": (lambda x: (x.astype(np.float16),), lambda x: x.astype(np.float64)),
    "f32": (lambda x: (x.astype(np.float32),), lambda x: x.astype(np.float64)),
    "bf16": (_to_bf16, _from_bf16),
    "q8_0": (_to_q8_0, _from_q8_0),
    "q4_0": (_to_q4_0, _from_q4_0),
}
"""Cache type → its encoder and its decoder."""


class LayerCache:
    """A layer's cache of every token, as `Block.cached` says: keys (S, G, T, D) and values (S, G, T, D_v), or latents.

    Values are rounded to the cache's types, and read back rounded by every token, the one that stored them included.
    """

    def __init__(self, layer: Block, options: ModelOptions) -> None:
        self._types = [TYPES[getattr(options, kind, kind)] for kind, _, _ in layer.cached()]
        n_slots, n_ctx = options.n_slots, options.n_ctx
        try:
            self._parts = [  # of each what its type keeps, (S, G, T, ...)
                [np.zeros((n_slots, n, n_ctx, *array.shape), array.dtype) for array in encode(np.zeros(size))]
                for (encode, _), (_, n, size) in zip(self._types, layer.cached(), strict=True)
            ]
        except (MemoryError, ValueError) as error:  # ValueError: more than an address can name
            raise CapacityError(f"no memory for {options.slots_in_words}; ask for a smaller context or fewer slots") from error

    @staticmethod
    def bytes_per_position(layer: Block, options: ModelOptions) -> int:
        """Bytes of one position of one slot."""
        rows = [(n, TYPES[getattr(options, kind, kind)][0](np.zeros(size))) for kind, n, size in layer.cached()]
        return sum(n * array.nbytes for n, arrays in rows for array in arrays)

    @property
    def n_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(array.nbytes for part in self._parts for array in part)

    def store(self, part: int, slot: int, cell: int, row: np.ndarray) -> None:
        """Keep one of the rows of one token."""
        encode, _ = self._types[part]
        for array, kept in zip(self._parts[part], encode(row), strict=True):
            array[slot, :, cell] = kept

    def seen(self, part: int, slot: int, cells: np.ndarray) -> np.ndarray:
        """Rows (G, t, D), float64, of t cells."""
        _, decode = self._types[part]
        return np.ascontiguousarray(decode(*(array[slot][:, cells] for array in self._parts[part])))

    def begin(self, batch: Batch) -> None:
        """Copy accepted cells to their positions, one after the other."""
        for slot, source, target in batch.accepted.tolist() if batch.accepted is not None else ():
            for array in chain(*self._parts):
                array[slot, :, target] = array[slot, :, source]

    def slot_memory(self, slot: int, n: int, start: int = 0) -> list[np.ndarray]:
        """Views of the first n cells of a slot, or of those from `start` on."""
        return [array[slot, :, start:n] for array in chain(*self._parts)]
