"""A tensor's blocks, as GGUF has them, → words that kernels read: planes of tiles, see `kernels.formats`, or steps of halves.

Planes are exact; `kernels.halves` says what is rounded to halves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from attrs import frozen

from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS, TILE_UNITS, UNIT, Format
from augury.backends.numba_cuda.kernels.halves import GROUP, HEADER, MATRIX_ROWS, STEP, n_numbers, step_words
from augury.errors import UnsupportedError
from augury.files.tensor_type import TensorType

MOST_WORDS = 1 << 32  # of a quantised type or of halves, which kernels count in 32 bits
_PART_BYTES = 1 << 18  # of a matrix that are repacked at once, so that intermediate values stay in a core's cache
_STEP_UNITS = STEP // UNIT
_TOP = 15  # the largest weight becomes less than two to this
_LARGEST = {"Q8_0": 128, "IQ4_NL": 127, "IQ4_XS": 127, "MXFP4": 12}  # integers; of others all of their bits may be set


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
    if not fmt.is_float:
        _check_size(kind, n_rows, n_cols, n_words, "take a file of fewer bits per weight, or --backend numba-cpu")
    words = np.empty(n_words, np.uint32)
    step = max(1, _PART_BYTES // max(1, rows.shape[1] * TILE_ROWS)) * TILE_ROWS

    def part(start: int) -> None:
        _repack_rows(kind, rows[start : start + step], n_cols, words, start, n)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(0, n_rows, step)))
    return words


def _check_size(kind: TensorType, n_rows: int, n_cols: int, n_words: int, advice: str) -> None:
    if n_words > MOST_WORDS:
        raise UnsupportedError(
            f"a matrix of {n_rows} x {n_cols} {kind.name} weights takes {4 * n_words / 2**30:.1f} GiB; expected "
            f"{4 * MOST_WORDS >> 30} GiB at most; {advice}"
        )


def _padded(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Values (rows, columns, …) with zeros below and beside them."""
    if values.shape[:2] == shape:
        return values
    full = np.zeros((*shape, *values.shape[2:]), values.dtype)
    full[: values.shape[0], : values.shape[1]] = values
    return full


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
        padded = (n_tiles[0] * TILE_ROWS, n_tiles[1] * TILE_UNITS // per)
        full = _padded(values.reshape(n_rows, -1, wide), padded)
        tiles = full.reshape(n_tiles[0], TILE_ROWS, n_tiles[1], -1, wide).transpose(0, 2, 3, 1, 4)
        first = at + wide * start * padded[1]
        to[first : first + tiles.size].reshape(tiles.shape)[...] = tiles
        return at + wide * (n // per)

    at, halves = 0, words.view(np.uint16)
    for plane in _planes_of(fmt.n_main, fmt.n_high, units.weights):
        at = put(words, at, plane)
    at *= 2
    if units.scales is not None:
        at = put(halves, at, units.scales)
    if units.factors is not None:
        at = put(halves, at, units.factors, TILE_UNITS if fmt.has_shared_factor else 1)
    halves[at:] = 0


def _planes_of(n_main: int, n_high: int, weights: np.ndarray) -> list[np.ndarray]:
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


# Steps of halves


def n_words_of(fmt: Format, n_rows: int, n_cols: int) -> int:
    """Words of a matrix."""
    return HEADER + -(-n_rows // MATRIX_ROWS) * -(-n_cols // STEP) * step_words(fmt)


def repack_halves(kind: TensorType, data: np.ndarray, n_rows: int, n_cols: int, threads: int = 1) -> np.ndarray:
    """The words (w,) uint32 of a matrix as steps of halves; arguments and errors are those of `repack`."""
    rows, fmt = data.reshape(n_rows, -1), FORMATS[kind.name]
    n_words, n_steps = n_words_of(fmt, n_rows, n_cols), -(-n_cols // STEP)
    _check_size(kind, n_rows, n_cols, n_words, "take option products=bytes")
    words = np.zeros(n_words, np.uint32)
    steps = words[HEADER:].reshape(-1, n_steps, step_words(fmt))
    n_halves = 0 if fmt.is_float else n_numbers(fmt)
    numbers = np.zeros((len(steps), MATRIX_ROWS, n_steps * _STEP_UNITS, n_halves), np.float32)
    size = max(1, _PART_BYTES // max(1, rows.shape[1] * MATRIX_ROWS))  # of a part in tiles
    starts, exponent = range(0, len(steps), size), 0
    if fmt.is_float:
        parts = (_floats(kind, rows[first * MATRIX_ROWS : (first + size) * MATRIX_ROWS]) for first in starts)
        exponent = _TOP - _exponent_of(max(float(np.abs(each).max(initial=0)) for each in parts))

    def part(first: int) -> None:
        tiles, some = steps[first : first + size], rows[first * MATRIX_ROWS : (first + size) * MATRIX_ROWS]
        if fmt.is_float:
            halves = np.ldexp(_floats(kind, some), exponent).astype(np.float16)
            _put_halves(tiles, _padded(halves, (len(tiles) * MATRIX_ROWS, n_steps * STEP)))
            return
        units = READERS[kind.name](some.reshape(-1, kind.block_bytes))
        at, shape = 0, (len(some), -1)
        for plane in _planes_of(fmt.n_main, fmt.n_high, units.weights):
            at = _put(tiles, at, plane.reshape(*shape, plane.shape[-1]), by_lane=plane.shape[-1] == 4)
        found = _numbers(fmt, units).reshape(*shape, n_halves)
        to = numbers[first : first + size].reshape(-1, *numbers.shape[2:])
        to[: len(found), : found.shape[1]] = found

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, starts))
    if not fmt.is_float:
        exponent = _TOP - _exponent_of(_largest(fmt, numbers))
        halves = np.ldexp(numbers, exponent, out=numbers).astype(np.float16)
        n_pair = min(n_halves, 2)
        of_steps = halves.reshape(len(steps), 2, GROUP, n_steps, _STEP_UNITS, -1, n_pair).transpose(0, 3, 5, 2, 1, 4, 6)
        steps.view(np.float16)[..., -MATRIX_ROWS * _STEP_UNITS * n_halves :] = of_steps.reshape(len(steps), n_steps, -1)
    words[:1] = np.ldexp(np.float32(1), -exponent).view(np.uint32)
    return words


def _exponent_of(largest: float) -> int:
    """The exponent of the power of two above a number, of 0 and of what is not finite 0; so that its inverse is a float32."""
    return min(max(math.frexp(largest)[1], -100), 100) if math.isfinite(largest) else 0


def _floats(kind: TensorType, rows: np.ndarray) -> np.ndarray:
    """Rows of F16 or BF16 as float32."""
    if kind is TensorType.F16:
        return rows.view(np.float16).astype(np.float32)
    return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _largest(fmt: Format, numbers: np.ndarray) -> float:
    """No weight is larger than this; numbers (..., scales with their least ones)."""
    most = max(fmt.offset, _LARGEST.get(fmt.name, (1 << fmt.n_main + fmt.n_high) - 1 - fmt.offset))
    by = np.abs(numbers.reshape(-1, 1 + fmt.has_least) if fmt.has_least else numbers.reshape(-1, 1)).max(axis=0, initial=0)
    return float(most * by[0] + (by[1] if fmt.has_least else 0))


def _put(tiles: np.ndarray, at: int, plane: np.ndarray, *, by_lane: bool) -> int:
    """Write a plane (rows, units, m) of words: four are a word each of four lanes, others are of all; returns the end."""
    n_tiles, n_steps, _ = tiles.shape
    full = _padded(plane, (n_tiles * MATRIX_ROWS, n_steps * _STEP_UNITS)).reshape(n_tiles, 2, GROUP, n_steps, _STEP_UNITS, -1)
    order = (0, 3, 2, 5, 1, 4) if by_lane else (0, 3, 5, 2, 1, 4)
    words = full.transpose(order).reshape(n_tiles, n_steps, -1)
    tiles[:, :, at : at + words.shape[2]] = words
    return at + words.shape[2]


def _put_halves(tiles: np.ndarray, halves: np.ndarray) -> None:
    """Write halves (rows, columns) in whole steps."""
    n_tiles, n_steps, _ = tiles.shape
    # of a unit: half, lane, one of a pair, pair
    full = halves.reshape(n_tiles, 2, GROUP, n_steps, _STEP_UNITS, 2, 4, 2, 2).transpose(0, 3, 5, 8, 2, 6, 1, 4, 7)
    tiles.view(np.float16).reshape(-1)[...] = full.reshape(-1)


def _numbers(fmt: Format, units: Units) -> np.ndarray:
    """Scales, each with its least one if there are such, (n, `n_numbers`) float32."""
    assert units.factors is not None
    if fmt.name == "MXFP4":
        factors = (units.factors.astype(np.uint32) << 16).view(np.float32)
    else:
        factors = units.factors.view(np.float16).astype(np.float32)
    if units.scales is None:
        return factors
    factors = factors.repeat(8, axis=0)
    if not fmt.has_least:
        scales = units.scales.view(np.int8).astype(np.float32)
        return factors * (scales if fmt.has_two_scales else scales[:, :1])
    factor, least = factors[:, :1], -factors[:, 1:]
    if not fmt.has_two_scales:
        return np.concatenate([factor * (units.scales & 255), least * (units.scales >> 8)], axis=1).astype(np.float32)
    parts = [(units.scales >> shift & 15) * by for shift, by in ((0, factor), (8, least), (4, factor), (12, least))]
    return np.concatenate(parts, axis=1).astype(np.float32)
