"""How weights lie in planes, by type, and what they are.

A matrix is one array of words. Its unit is 32 neighbouring weights of a row. Units lie in tiles of 4 rows x 8 units, tile after
tile along the rows: the 32 lanes of a warp that read one unit each read neighbouring words. Plane after plane holds, of every
unit, 16 bytes of its weights; then of every unit what else it has: high bits, two scales, a factor. Where GGUF has factors per
256 weights, that is per 8 units of a row, so are they here.

A weight is `factor * scale * (integer - offset)`, less `least * scale` where a type has minima: products of integers are exact.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from augury.backends.numba_cuda.kernels.dialect import (
    float_of,
    float_of_half,
    lane,
    load8,
    prmt,
    stream16,
)

UNIT, TILE_ROWS, TILE_UNITS = 32, 4, 8
TILE = TILE_ROWS * TILE_UNITS  # units


@frozen(eq=False)
class Format:
    """One type's planes. Words per unit: `n_main` of weights, `n_high` of high bits, `n_scales` halves of scales.

    Attributes:
        name: As `TensorType` calls it.
        weights: Lane function (array, units, unit) → eight words of signed bytes, in order; of floats None.
        numbers: Lane function (array, units, unit) → factor, two scales, least, two scales of it.
        offset: What is taken off the bytes.
        has_least: Whether there are minima.
        has_shared_factor: Whether eight units of a row have one factor, and minimum.
    """

    name: str
    n_main: int
    n_high: int = 0
    n_scales: int = 0
    weights: object = None
    numbers: object = None
    offset: int = 0
    has_least: bool = False
    has_shared_factor: bool = False

    @property
    def n_factors(self):
        """Halves of a factor and its minimum."""
        return 0 if self.is_float else 2 if self.has_least else 1

    @property
    def is_float(self):
        """Whether weights are multiplied as floats."""
        return self.weights is None

    def n_words(self, n_units: int) -> int:
        """Words of a matrix of so many units."""
        factors = self.n_factors * n_units // (TILE_UNITS if self.has_shared_factor else 1)
        return (self.n_main + self.n_high) * n_units + (self.n_scales * n_units + factors + 1) // 2


@lane
def half_at(words, start, i):
    """The i-th 16 bits of the words from `start` on."""
    return np.uint32(words[start + (i >> 1)] >> np.uint32((i & 1) * 16)) & np.uint32(0xFFFF)


@lane
def signed_byte(bits):
    """The lower eight bits as a signed integer."""
    return np.int32(np.int32(bits & 0xFF) ^ 0x80) - np.int32(0x80)


# Weights


@lane
def _bytes(w, n, u):
    a, b, c, d = stream16(w, 4 * u)
    e, f, g, h = stream16(w, 4 * (n + u))
    return a, b, c, d, e, f, g, h


@lane
def _nibbles(w, n, u):
    a, b, c, d = stream16(w, 4 * u)
    low = np.uint32(0x0F0F0F0F)
    four = np.uint32(4)
    return (a & low, b & low, c & low, d & low, a >> four & low, b >> four & low, c >> four & low, d >> four & low)


def _with_high_bits(n_bits, to):
    """Nibbles, or two bits, with one or two higher bits of other planes: bits 8 j + i, of n = 2 in two words, of word i."""
    mask = np.uint32((1 << n_bits) - 1) * np.uint32(0x01010101)
    shift = np.uint32(to)

    @lane
    def spread(word, i):
        return (word >> np.uint32(n_bits * i) & mask) << shift

    return spread


_fifth_bit, _high_pair, _third_bit = (_with_high_bits(*how) for how in ((1, 4), (2, 4), (1, 2)))


@lane
def _five_bits(w, n, u):
    a, b, c, d, e, f, g, h = _nibbles(w, n, u)
    high = w[4 * n + u]
    return (
        a | _fifth_bit(high, 0),
        b | _fifth_bit(high, 1),
        c | _fifth_bit(high, 2),
        d | _fifth_bit(high, 3),
        e | _fifth_bit(high, 4),
        f | _fifth_bit(high, 5),
        g | _fifth_bit(high, 6),
        h | _fifth_bit(high, 7),
    )


@lane
def _six_bits(w, n, u):
    a, b, c, d, e, f, g, h = _nibbles(w, n, u)
    low, high = load8(w, 4 * n + 2 * u)
    return (
        a | _high_pair(low, 0),
        b | _high_pair(low, 1),
        c | _high_pair(low, 2),
        d | _high_pair(low, 3),
        e | _high_pair(high, 0),
        f | _high_pair(high, 1),
        g | _high_pair(high, 2),
        h | _high_pair(high, 3),
    )


_pair = _with_high_bits(2, 0)


@lane
def _two_bits(w, n, u):
    low, high = load8(w, 2 * u)
    return (
        _pair(low, 0),
        _pair(low, 1),
        _pair(low, 2),
        _pair(low, 3),
        _pair(high, 0),
        _pair(high, 1),
        _pair(high, 2),
        _pair(high, 3),
    )


@lane
def _three_bits(w, n, u):
    a, b, c, d, e, f, g, h = _two_bits(w, n, u)
    high = w[2 * n + u]
    return (
        a | _third_bit(high, 0),
        b | _third_bit(high, 1),
        c | _third_bit(high, 2),
        d | _third_bit(high, 3),
        e | _third_bit(high, 4),
        f | _third_bit(high, 5),
        g | _third_bit(high, 6),
        h | _third_bit(high, 7),
    )


def _codebook(values):
    """Nibbles that stand for one of 16 signed bytes each."""
    first, second, third, fourth = (np.uint32(word) for word in np.array(values, np.int8).view(np.uint32))

    @lane
    def look_up(nibbles):
        pairs = nibbles | nibbles >> np.uint32(4)
        chosen = prmt(pairs, np.uint32(0), np.uint32(0x4420))  # the nibbles as a selector's
        lower = chosen & np.uint32(0x7777)
        which = np.uint32(0x3210) | (chosen & np.uint32(0x8888)) >> np.uint32(1)
        return prmt(prmt(first, second, lower), prmt(third, fourth, lower), which)

    @lane
    def weights(w, n, u):
        a, b, c, d, e, f, g, h = _nibbles(w, n, u)
        return look_up(a), look_up(b), look_up(c), look_up(d), look_up(e), look_up(f), look_up(g), look_up(h)

    return weights


IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


# Numbers


def _factor_alone(words_before, is_power):
    """A factor of every unit: a half, or the upper half of a float32."""

    @lane
    def numbers(w, n, u):
        bits = half_at(w, words_before * n, u)
        factor = float_of(bits << np.uint32(16)) if is_power else float_of_half(bits)
        return factor, np.int32(1), np.int32(1), np.float32(0), np.int32(0), np.int32(0)

    return numbers


def _factor_and_least(words_before):
    """Both of every unit."""

    @lane
    def numbers(w, n, u):
        both = w[words_before * n + u]
        one = np.int32(1)
        return float_of_half(both & np.uint32(0xFFFF)), one, one, float_of_half(both >> np.uint32(16)), one, one

    return numbers


def _scales_and_factor(words_before):
    """Two signed scales of every unit, a factor of eight."""

    @lane
    def numbers(w, n, u):
        scales = half_at(w, words_before * n, u)
        factor = float_of_half(half_at(w, words_before * n + n // 2, u // 8))
        return factor, signed_byte(scales), signed_byte(scales >> np.uint32(8)), np.float32(0), np.int32(0), np.int32(0)

    return numbers


def _scales_factor_and_least(words_before, is_pair):
    """A scale and one of the minimum of every unit, or two of four bits each; a factor and a minimum of eight."""

    @lane
    def numbers(w, n, u):
        scales = half_at(w, words_before * n, u)
        both = w[words_before * n + n // 2 + u // 8]
        factor, least = float_of_half(both & np.uint32(0xFFFF)), float_of_half(both >> np.uint32(16))
        if is_pair:
            first, second = np.int32(scales & 15), np.int32(scales >> np.uint32(4) & 15)
            third, fourth = np.int32(scales >> np.uint32(8) & 15), np.int32(scales >> np.uint32(12))
        else:
            first, third = np.int32(scales & 0xFF), np.int32(scales >> np.uint32(8))
            second, fourth = first, third
        return factor, first, second, -least, third, fourth

    return numbers


FORMATS = {
    each.name: each
    for each in (
        Format("F32", 32),
        Format("F16", 16),
        Format("BF16", 16),
        Format("Q8_0", 8, weights=_bytes, numbers=_factor_alone(8, is_power=False)),
        Format("Q4_0", 4, weights=_nibbles, numbers=_factor_alone(4, is_power=False), offset=8),
        Format("Q4_1", 4, weights=_nibbles, numbers=_factor_and_least(4), has_least=True),
        Format("Q5_0", 4, 1, weights=_five_bits, numbers=_factor_alone(5, is_power=False), offset=16),
        Format("Q5_1", 4, 1, weights=_five_bits, numbers=_factor_and_least(5), has_least=True),
        Format(
            *("Q2_K", 2, 0, 1),
            weights=_two_bits,
            numbers=_scales_factor_and_least(2, is_pair=True),
            has_least=True,
            has_shared_factor=True,
        ),
        Format("Q3_K", 2, 1, 1, weights=_three_bits, numbers=_scales_and_factor(3), offset=4, has_shared_factor=True),
        Format(
            *("Q4_K", 4, 0, 1),
            weights=_nibbles,
            numbers=_scales_factor_and_least(4, is_pair=False),
            has_least=True,
            has_shared_factor=True,
        ),
        Format(
            *("Q5_K", 4, 1, 1),
            weights=_five_bits,
            numbers=_scales_factor_and_least(5, is_pair=False),
            has_least=True,
            has_shared_factor=True,
        ),
        Format("Q6_K", 4, 2, 1, weights=_six_bits, numbers=_scales_and_factor(6), offset=32, has_shared_factor=True),
        Format("IQ4_NL", 4, weights=_codebook(IQ4_VALUES), numbers=_factor_alone(4, is_power=False)),
        Format("IQ4_XS", 4, 0, 1, weights=_codebook(IQ4_VALUES), numbers=_scales_and_factor(4), has_shared_factor=True),
        Format("MXFP4", 4, weights=_codebook(MXFP4_VALUES), numbers=_factor_alone(4, is_power=True)),
    )
}


def floats_of(name):
    """The lane function (array, units, unit, i) → weights 4 i … 4 i + 3 of a unit, as float32, of a type of floats."""
    is_brain = name == "BF16"

    @lane
    def four(w, n, u, i):
        a, b, c, d = stream16(w, 4 * (i * n + u))
        return float_of(a), float_of(b), float_of(c), float_of(d)

    @lane
    def value(bits):
        return float_of(bits << np.uint32(16)) if is_brain else float_of_half(bits)

    @lane
    def four_halves(w, n, u, i):
        low, high = load8(w, 4 * ((i >> 1) * n + u) + 2 * (i & 1))
        mask, up = np.uint32(0xFFFF), np.uint32(16)
        return value(low & mask), value(low >> up), value(high & mask), value(high >> up)

    return four if name == "F32" else four_halves
