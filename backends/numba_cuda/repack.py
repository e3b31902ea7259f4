"""A tensor's blocks, as GGUF has them, → the planes that kernels read, see `kernels/formats`; exact."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from attrs import frozen

from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS, TILE_UNITS, UNIT
from augury.errors import UnsupportedError
from augury.files.tensor_type import TensorType

MOST_WORDS = 1 << 32  # of a quantised type, which kernels count in 32 bits
PART_BYTES = 1 << 18  # of a matrix that are repacked at once, so that intermediate values stay in a core's cache


@frozen(eq=False)
class Units:
    """The contents of units (n, …) of a matrix: signed or unsigned integers below 256, and their factors."""

    weights: np.ndarray  # (n, 32) uint8, or of floats uint16 or uint32
    factors: np.ndarray | None = None  # (n or n / 8, 1 or 2) uint16
    scales: np.ndarray | None = None  # (n, 1) uint16


def n_units(n_rows: int, n_cols: int) -> int:
    """Units of a matrix in whole tiles."""
    return -(-n_rows // TILE_ROWS) * TILE_ROWS * (-(-n_cols // (UNIT * TILE_UNITS)) * TILE_UNITS)


def repack(kind: TensorType, data: np.ndarray, n_rows: int, n_cols: int, threads: int = 1) -> np.ndarray:
    """The words (w,) uint32 of a matrix.

    Args:
        kind: Of the tensor; one of `FORMATS`.
        data: Its bytes.
        n_rows: The number of rows of the matrix.
        n_cols: The number of columns of a row; of types other than floats a multiple of 32.
        threads: That share the work.

    Raises:
        UnsupportedError: It is too large.
    """
    rows, fmt = data.reshape(n_rows, -1), FORMATS[kind.name]
    n = n_units(n_rows, n_cols)
    n_words = fmt.n_words(n)
    if n_words > MOST_WORDS and not fmt.is_float:
        raise UnsupportedError(
            f"a matrix of {n_rows} x {n_cols} {kind.name} weights takes {4 * n_words / 2**30:.1f} GiB; expected "
            f"{4 * MOST_WORDS >> 30} GiB at most; take a file of fewer bits per weight, or --backend numba-cpu"
        )
    words = np.empty(n_words, np.uint32)
    step = max(1, PART_BYTES // max(1, rows.shape[1] * TILE_ROWS)) * TILE_ROWS
    starts = range(0, n_rows, step)

    def part(start: int) -> None:
        _repack_rows(kind, rows[start : start + step], n_cols, words, start, n)

    if threads == 1 or len(starts) == 1:
        for start in starts:
            part(start)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(part, starts))
    return words


def _repack_rows(kind: TensorType, rows: np.ndarray, n_cols: int, words: np.ndarray, start: int, n: int) -> None:
    """Repack the rows of a matrix of n units from `start`, a multiple of TILE_ROWS, on."""
    fmt, n_rows, columns = FORMATS[kind.name], len(rows), -(-n_cols // UNIT)
    if fmt.is_float:
        width = np.uint32 if kind.name == "F32" else np.uint16
        values = np.zeros((n_rows, columns * UNIT), width)
        values[:, :n_cols] = rows.view(width)
        units = Units(values.reshape(-1, UNIT))
    else:
        units = READERS[kind.name](rows.reshape(-1, kind.block_bytes))
    n_tiles = (-(-n_rows // TILE_ROWS), -(-columns // TILE_UNITS))

    def put(to: np.ndarray, at: int, values: np.ndarray, per: int = 1) -> int:
        """Write the words of units (rows * columns, m), or `per` of a row together, in the order of tiles; returns the end."""
        wide = values.shape[1]
        full = values.reshape(n_rows, -1, wide)
        padded = (n_tiles[0] * TILE_ROWS, n_tiles[1] * TILE_UNITS // per)
        if full.shape[:2] != padded:
            full = np.zeros((*padded, wide), values.dtype)
            full[:n_rows, : len(values) // n_rows] = values.reshape(n_rows, -1, wide)
        tiles = full.reshape(n_tiles[0], TILE_ROWS, n_tiles[1], -1, wide).transpose(0, 2, 3, 1, 4)
        first = at + wide * start * padded[1]
        to[first : first + tiles.size].reshape(tiles.shape)[...] = tiles
        return at + wide * (n // per)

    at, halves = 0, words.view(np.uint16)
    for plane in planes_of(fmt.n_main, fmt.n_high, units.weights):
        at = put(words, at, plane)
    at *= 2
    if units.scales is not None:
        at = put(halves, at, units.scales)
    if units.factors is not None:
        at = put(halves, at, units.factors, TILE_UNITS if fmt.has_shared_factor else 1)
    halves[at:] = 0


def planes_of(n_main: int, n_high: int, weights: np.ndarray) -> list[np.ndarray]:
    """Weights (n, 32) as planes of four words, or of two, per unit, and one of their higher bits."""
    n = len(weights)
    if n_main >= 8:
        words = np.ascontiguousarray(weights).view(np.uint32).reshape(n, -1, 4)
        return [words[:, i] for i in range(words.shape[1])]
    by_word = weights.reshape(n, 8, 4)  # the bytes of eight words
    if n_main == 4:
        nibbles = by_word & 15
        main = np.ascontiguousarray(nibbles[:, :4] | nibbles[:, 4:] << 4).view(np.uint32).reshape(n, 4)
        above = by_word >> 4
    else:
        main, above = _bits(by_word & 3, 2), by_word >> 2
    return [main, _bits(above & 1, 1) if n_high == 1 else _bits(above & 3, 2)] if n_high else [main]


def _bits(values: np.ndarray, n_bits: int) -> np.ndarray:
    """Small numbers (n, 8, 4) as words: byte j of a word has those j of as many of the eight as fit."""
    n, per = len(values), 8 // n_bits
    groups = values.reshape(n, 8 // per, per, 4).astype(np.uint8)
    packed = np.bitwise_or.reduce(groups << (n_bits * np.arange(per, dtype=np.uint8))[:, None], axis=2)
    return np.ascontiguousarray(packed).view(np.uint32).reshape(n, -1)


def _halves(blocks: np.ndarray, *places: int) -> np.ndarray:
    """16 bits at some places of blocks (n, bytes): (n, places) uint16."""
    return np.concatenate([np.ascontiguousarray(blocks[:, place : place + 2]).view(np.uint16) for place in places], axis=1)


def _split_nibbles(data: np.ndarray) -> np.ndarray:
    """The lower nibbles, then the upper ones, of (…, m) bytes: (…, 2 m)."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _fifth_bits(blocks: np.ndarray, start: int) -> np.ndarray:
    """16 where the bits of four bytes are set: (n, 32) uint8."""
    return np.unpackbits(np.ascontiguousarray(blocks[:, start : start + 4]), axis=1, bitorder="little") << 4


def _unit_rows(data: np.ndarray, width: int, n_bits: int) -> np.ndarray:
    """Numbers of so many bits, those of a place side by side in `width` bytes, the first in the lowest bits; units (m, 32)."""
    rows = data.reshape(len(data), -1, 1, width)
    if n_bits == 4:
        return _split_nibbles(rows).reshape(-1, UNIT)
    return (rows >> np.arange(0, 8, n_bits, dtype=np.uint8)[:, None] & (1 << n_bits) - 1).reshape(-1, UNIT)


def _q2_k(blocks: np.ndarray) -> Units:
    scales = blocks[:, :16].reshape(-1, 2).astype(np.uint16)  # of 16 weights each: a scale, and one of the minimum
    first, second = scales[:, :1], scales[:, 1:]
    packed = first & 15 | (second & 15) << 4 | first >> 4 << 8 | second >> 4 << 12
    return Units(_unit_rows(blocks[:, 16:80], 32, 2), _halves(blocks, 80, 82), packed)


def _q3_k(blocks: np.ndarray) -> Units:
    weights = _unit_rows(blocks[:, 32:96], 32, 2) | _unit_rows(blocks[:, :32], 32, 1) << 2
    packed = blocks[:, 96:108]
    upper = packed[:, 8:, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3  # of scale 4 i + j the bits i of byte j
    lower = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    scales = (lower | upper.swapaxes(1, 2).reshape(-1, 16) << 4).astype(np.int8) - np.int8(32)
    return Units(weights, _halves(blocks, 108), _pairs(scales))


def _pairs(scales: np.ndarray) -> np.ndarray:
    """Signed bytes (n, 16), two of each unit: (8 n, 1) uint16."""
    return np.ascontiguousarray(scales).view(np.uint16).reshape(-1, 1)


def _six_bit_scales(packed: np.ndarray) -> np.ndarray:
    """Of 12 bytes eight scales and eight of minima, a byte each: (8 n, 1) uint16."""
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=1)
    least = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=1)
    return np.stack([scales, least], axis=2).view(np.uint16).reshape(-1, 1)


def _q4_k(blocks: np.ndarray) -> Units:
    return Units(_unit_rows(blocks[:, 16:], 32, 4), _halves(blocks, 0, 2), _six_bit_scales(blocks[:, 4:16]))


def _q5_k(blocks: np.ndarray) -> Units:
    weights = _unit_rows(blocks[:, 48:], 32, 4) | _unit_rows(blocks[:, 16:48], 32, 1) << 4
    return Units(weights, _halves(blocks, 0, 2), _six_bit_scales(blocks[:, 4:16]))


def _q6_k(blocks: np.ndarray) -> Units:
    weights = _unit_rows(blocks[:, :128], 64, 4) | _unit_rows(blocks[:, 128:192], 32, 2) << 4
    return Units(weights, _halves(blocks, 208), _pairs(blocks[:, 192:208]))


def _iq4_xs(blocks: np.ndarray) -> Units:
    low = _split_nibbles(blocks[:, 4:8, None]).reshape(-1, 8)  # scale 2 i and 2 i + 1 in byte i
    high = _halves(blocks, 2) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high.astype(np.uint8) << 4).astype(np.int8) - np.int8(32)
    return Units(_unit_rows(blocks[:, 8:], 16, 4), _halves(blocks, 0), _pairs(scales.repeat(2, axis=1)))


def _mxfp4(blocks: np.ndarray) -> Units:
    exponents = blocks[:, :1].astype(np.uint16)  # 2^(e - 128), of the smallest two a denormal: the upper half of a float32
    factors = np.where(exponents < 2, np.uint16(0x20) << exponents, (exponents - np.uint16(1)) << 7).astype(np.uint16)
    return Units(_split_nibbles(blocks[:, 1:]), factors)


READERS: dict[str, Callable[[np.ndarray], Units]] = {
    "Q8_0": lambda blocks: Units(blocks[:, 2:], _halves(blocks, 0)),
    "Q4_0": lambda blocks: Units(_split_nibbles(blocks[:, 2:]), _halves(blocks, 0)),
    "Q4_1": lambda blocks: Units(_split_nibbles(blocks[:, 4:]), _halves(blocks, 0, 2)),
    "Q5_0": lambda blocks: Units(_split_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), _halves(blocks, 0)),
    "Q5_1": lambda blocks: Units(_split_nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4), _halves(blocks, 0, 2)),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": lambda blocks: Units(_split_nibbles(blocks[:, 2:]), _halves(blocks, 0)),
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
"""The function that reads the blocks of a type, (n, block_bytes) uint8."""
