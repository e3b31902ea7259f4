"""Keys and values that the slots keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.errors import CapacityError, UnsupportedError

if TYPE_CHECKING:
    from augury.blocks import Attention
    from augury.types import ModelOptions

_TYPES: dict[str, np.dtype[np.floating]] = {"f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}


class LayerCache:
    """Keys (S, G, T, D) and values (S, G, T, D_v) of one attention layer, for S slots of T positions each.

    What is stored is rounded to the cache's types, and read back rounded by every token, the one that stored it included.
    """

    def __init__(self, layer: Attention, options: ModelOptions) -> None:
        shape = (options.n_slots, layer.n_kv_heads, options.n_ctx)
        try:
            self.keys = np.zeros((*shape, layer.head_dim), _type(options.cache_type_k))
            self.values = np.zeros((*shape, layer.value_dim), _type(options.cache_type_v))
        except (MemoryError, ValueError) as error:  # ValueError: more than an address can name
            size = f"{options.n_slots} slots with {options.n_ctx} positions"
            raise CapacityError(f"no memory for a KV cache of {size}; ask for a smaller context") from error

    @property
    def n_bytes(self) -> int:
        """Bytes of both arrays."""
        return self.keys.nbytes + self.values.nbytes

    def store(self, slot: int, cell: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Keep the keys (G, D) and values (G, D_v) of one token."""
        self.keys[slot, :, cell] = keys
        self.values[slot, :, cell] = values

    def move(self, moves: np.ndarray) -> None:
        """Copy what cells hold to others, one after the other: (m, 3) int32 of slot, from, to."""
        for slot, source, target in moves.tolist():
            self.keys[slot, :, target] = self.keys[slot, :, source]
            self.values[slot, :, target] = self.values[slot, :, source]

    def seen(self, slot: int, cells: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys (G, t, D) and values (G, t, D_v), float64, of t cells."""
        keys, values = (array[slot][:, cells].astype(np.float64, order="C") for array in (self.keys, self.values))
        return keys, values


def _type(name: str) -> np.dtype[np.floating]:
    if name not in _TYPES:
        raise UnsupportedError(f"cache type {name!r} is not supported by this backend; expected one of {', '.join(_TYPES)}")
    return _TYPES[name]
