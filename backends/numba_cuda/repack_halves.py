"""A tensor's blocks, as GGUF has them, → the steps of 16 rows that `kernels.stream` multiplies, see `kernels.halves`."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from augury.backends.numba_cuda.kernels.formats import FORMATS, UNIT, Format
from augury.backends.numba_cuda.kernels.halves import GROUP, HEADER, MATRIX_ROWS, STEP, n_numbers, step_words
from augury.backends.numba_cuda.repack import MOST_WORDS, PART_BYTES, READERS, Units, planes_of
from augury.errors import UnsupportedError
from augury.files.tensor_type import TensorType

_UNITS = STEP // UNIT
_TOP = 15  # the largest weight becomes less than two to this
_LARGEST = {"Q8_0": 128, "IQ4_NL": 127, "IQ4_XS": 127, "MXFP4": 12}  # integers; of others all of their bits may be set


def n_words_of(fmt: Format, n_rows: int, n_cols: int) -> int:
    """Words of a matrix."""
    return HEADER + -(-n_rows // MATRIX_ROWS) * -(-n_cols // STEP) * step_words(fmt)


def repack_halves(kind: TensorType, data: np.ndarray, n_rows: int, n_cols: int, threads: int = 1) -> np.ndarray:
    """The words (w,) uint32 of a matrix; see `repack.repack`."""
    rows, fmt = data.reshape(n_rows, -1), FORMATS[kind.name]
    n_words, n_steps = n_words_of(fmt, n_rows, n_cols), -(-n_cols // STEP)
    if n_words > MOST_WORDS:
        raise UnsupportedError(
            f"a matrix of {n_rows} x {n_cols} {kind.name} weights takes {4 * n_words / 2**30:.1f} GiB as halves; expected "
            f"{4 * MOST_WORDS >> 30} GiB at most; take option products=bytes"
        )
    words = np.zeros(n_words, np.uint32)
    steps = words[HEADER:].reshape(-1, n_steps, step_words(fmt))
    n_halves = 0 if fmt.is_float else n_numbers(fmt)
    numbers = np.zeros((len(steps), MATRIX_ROWS, n_steps * _UNITS, n_halves), np.float32)
    size = max(1, PART_BYTES // max(1, rows.shape[1] * MATRIX_ROWS))  # of a part in tiles
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
        for plane in planes_of(fmt.n_main, fmt.n_high, units.weights):
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
        of_steps = halves.reshape(len(steps), 2, GROUP, n_steps, _UNITS, -1, n_pair).transpose(0, 3, 5, 2, 1, 4, 6)
        steps.view(np.float16)[..., -MATRIX_ROWS * _UNITS * n_halves :] = of_steps.reshape(len(steps), n_steps, -1)
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


def _padded(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    full = np.zeros((*shape, *values.shape[2:]), values.dtype)
    full[: values.shape[0], : values.shape[1]] = values
    return full


def _put(tiles: np.ndarray, at: int, plane: np.ndarray, *, by_lane: bool) -> int:
    """Write a plane (rows, units, m) of words: four are a word each of four lanes, others are of all; returns the end."""
    n_tiles, n_steps, _ = tiles.shape
    full = _padded(plane, (n_tiles * MATRIX_ROWS, n_steps * _UNITS)).reshape(n_tiles, 2, GROUP, n_steps, _UNITS, -1)
    order = (0, 3, 2, 5, 1, 4) if by_lane else (0, 3, 5, 2, 1, 4)
    words = full.transpose(order).reshape(n_tiles, n_steps, -1)
    tiles[:, :, at : at + words.shape[2]] = words
    return at + words.shape[2]


def _put_halves(tiles: np.ndarray, halves: np.ndarray) -> None:
    """Write halves (rows, columns) in whole steps."""
    n_tiles, n_steps, _ = tiles.shape
    # of a unit: half, lane, one of a pair, pair
    full = halves.reshape(n_tiles, 2, GROUP, n_steps, _UNITS, 2, 4, 2, 2).transpose(0, 3, 5, 8, 2, 6, 1, 4, 7)
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
