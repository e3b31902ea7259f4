"""Keys and values in each cache type: values → arrays → the values that are read back.

Every function works on the last axis alone, (..., D). Encoding takes float64; its result is stored as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from augury.types import CACHE_BLOCK

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
