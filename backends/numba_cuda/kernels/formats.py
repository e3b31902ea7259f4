"""How weights are stored in planes, by type, and their values.

A matrix is one array of words. Its unit is 32 neighbouring weights of a row. Units lie in tiles of 4 rows x 8 units, tile after
tile along the rows, and in a tile the 4 rows of a unit, then those of the next (`unit_at`): whether a warp reads all units of 4
rows, or one unit of 16 rows, its lanes read neighbouring words. Plane after plane holds 16 bytes of every unit's weights; then
the other parts of a unit: high bits, two scales, a factor. Where GGUF has factors per 256 weights, that is per 8 units of a
row, they are the same here.

A weight is `factor * scale * (integer - offset)`, less `least * scale` where a type has minima: products of integers are exact.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from attrs import frozen

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import lane

UNIT, TILE_ROWS, TILE_UNITS = 32, 4, 8
TILE = TILE_ROWS * TILE_UNITS  # units


@frozen(eq=False)
class Format:
    """One type's planes. Words per unit: `n_main` of weights, `n_high` of high bits, `n_scales` halves of scales.

    Attributes:
        name: As `TensorType` calls it.
        unpack: Lane function (two words of weights, two of high bits, i) → words i and i + 4 of a unit's eight, of signed bytes
            in order; of floats None. See `weights_of`.
        number_words: Lane function (array, units, unit) → two words for `numbers`.
        numbers: Lane function (these words, unit) → factor, two scales, least, two scales of it. Of a unit with one scale
            that is part of the factor, and so with its minimum; these products are exact.
        offset: It is subtracted from the bytes.
        has_least: Whether there are minima.
        has_shared_factor: Whether eight units of a row have one factor, and minimum.
        has_two_scales: Whether the halves of a unit have scales of their own.
    """

    name: str
    n_main: int
    n_high: int = 0
    n_scales: int = 0
    unpack: object = None
    number_words: object = None
    numbers: object = None
    offset: int = 0
    has_least: bool = False
    has_shared_factor: bool = False
    has_two_scales: bool = False

    @property
    def n_factors(self):
        """Halves of a factor and its minimum."""
        return 0 if self.is_float else 2 if self.has_least else 1

    @property
    def is_float(self):
        """Whether weights are multiplied as floats."""
        return self.unpack is None

    @property
    def planes(self):
        """The content of each plane, in order: so many halves of a word, of one unit or of so many of a row together."""
        main = [(8, 1)] * (self.n_main // 4) or [(2 * self.n_main, 1)]
        factors = (self.n_factors, TILE_UNITS if self.has_shared_factor else 1)
        return [each for each in (*main, (2 * self.n_high, 1), (self.n_scales, 1), factors) if each[0]]

    def n_words(self, n_units: int) -> int:
        """Words of a matrix of so many units."""
        factors = self.n_factors * n_units // (TILE_UNITS if self.has_shared_factor else 1)
        return (self.n_main + self.n_high) * n_units + (self.n_scales * n_units + factors + 1) // 2


@lane
def unit_at(row, unit, n_steps):
    """Which unit of all is that of a row, in a matrix of `n_steps` tiles along a row."""
    tile = row // TILE_ROWS * n_steps + unit // TILE_UNITS
    return tile * TILE + unit % TILE_UNITS * TILE_ROWS + row % TILE_ROWS


@lane
def _shared_by(u):
    """Which factor of all is a unit's, where eight units of a row share one."""
    return (u >> 5) * TILE_ROWS + (u & 3)


@lane
def _half_of(word, u):
    """The 16 bits of a unit, of a word that two units share, or two rows' factors."""
    return np.uint32(word >> np.uint32((u & 1) * 16)) & np.uint32(0xFFFF)


@lane
def signed_byte(bits):
    """The lower eight bits as a signed integer."""
    return np.int32(np.int32(bits & 0xFF) ^ 0x80) - np.int32(0x80)


# Weights


@lane
def _bytes(first, second, low, high, i):
    return first, second


@lane
def _nibbles(first, second, low, high, i):
    mask = np.uint32(0x0F0F0F0F)
    return first & mask, first >> np.uint32(4) & mask


def _high_bits(n_bits, to):
    """One or two bits of each of the four bytes of word i, from a word that has them of eight, or four words."""
    mask = np.uint32((1 << n_bits) - 1) * np.uint32(0x01010101)
    shift = np.uint32(to)

    @lane
    def spread(word, i):
        return (word >> np.uint32(n_bits * i) & mask) << shift

    return spread


_fifth_bit, _high_pair, _third_bit, _pair = (_high_bits(*params) for params in ((1, 4), (2, 4), (1, 2), (2, 0)))


@lane
def _five_bits(first, second, low, high, i):
    a, b = _nibbles(first, second, low, high, i)
    return a | _fifth_bit(low, i), b | _fifth_bit(low, i + 4)


@lane
def _six_bits(first, second, low, high, i):
    a, b = _nibbles(first, second, low, high, i)
    return a | _high_pair(low, i), b | _high_pair(high, i)


@lane
def _two_bits(first, second, low, high, i):
    return _pair(first, i), _pair(second, i)


@lane
def _three_bits(first, second, low, high, i):
    return _pair(first, i) | _third_bit(low, i), _pair(second, i) | _third_bit(low, i + 4)


def _codebook(values):
    """Nibbles that stand for one of 16 signed bytes each."""
    c0, c1, c2, c3 = (np.uint32(word) for word in np.array(values, np.int8).view(np.uint32))

    @lane
    def look_up(nibbles):
        pairs = nibbles | nibbles >> np.uint32(4)
        chosen = gpu.prmt(pairs, np.uint32(0), np.uint32(0x4420))  # the nibbles as a selector's
        lower = chosen & np.uint32(0x7777)
        which = np.uint32(0x3210) | (chosen & np.uint32(0x8888)) >> np.uint32(1)
        return gpu.prmt(gpu.prmt(c0, c1, lower), gpu.prmt(c2, c3, lower), which)

    @lane
    def unpack(first, second, low, high, i):
        a, b = _nibbles(first, second, low, high, i)
        return look_up(a), look_up(b)

    return unpack


IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


# Numbers


def _factor_alone(words_before, is_power):
    """A factor of every unit: a half, or the upper half of a float32."""

    @lane
    def words(w, n, u):
        word = w[gpu.index_of(words_before * n + (u >> 1))]
        return word, word

    @lane
    def numbers(words, u):
        bits = _half_of(words[0], u)
        factor = gpu.float_of(bits << np.uint32(16)) if is_power else gpu.float_of_half(bits)
        return factor, np.int32(1), np.int32(1), np.float32(0), np.int32(0), np.int32(0)

    return {"number_words": words, "numbers": numbers}


def _factor_and_least(words_before):
    """Both of every unit."""

    @lane
    def words(w, n, u):
        word = w[gpu.index_of(words_before * n + u)]
        return word, word

    @lane
    def numbers(words, u):
        both, one = words[0], np.int32(1)
        return gpu.float_of_half(both & np.uint32(0xFFFF)), one, one, gpu.float_of_half(both >> np.uint32(16)), one, one

    return {"number_words": words, "numbers": numbers}


def _scales_and_factor(words_before, *, is_pair=True):
    """Two signed scales of every unit, or one, stored twice; a factor of eight."""

    @lane
    def words(w, n, u):
        return w[gpu.index_of(words_before * n + (u >> 1))], w[gpu.index_of(words_before * n + (n >> 1) + (_shared_by(u) >> 1))]

    @lane
    def numbers(words, u):
        scales, factor = _half_of(words[0], u), gpu.float_of_half(_half_of(words[1], u))
        first, second = signed_byte(scales), signed_byte(scales >> np.uint32(8))
        if not is_pair:
            factor, first, second = gpu.mul(factor, np.float32(first)), np.int32(1), np.int32(1)
        return factor, first, second, np.float32(0), np.int32(0), np.int32(0)

    return {"number_words": words, "numbers": numbers, "has_shared_factor": True}


def _scales_factor_and_least(words_before, is_pair):
    """A scale and one of the minimum of every unit, or two of four bits each; a factor and a minimum of eight."""

    @lane
    def words(w, n, u):
        return w[gpu.index_of(words_before * n + (u >> 1))], w[gpu.index_of(words_before * n + (n >> 1) + _shared_by(u))]

    @lane
    def numbers(words, u):
        scales, both = _half_of(words[0], u), words[1]
        factor, least = gpu.float_of_half(both & np.uint32(0xFFFF)), gpu.float_of_half(both >> np.uint32(16))
        if is_pair:
            first, second = np.int32(scales & 15), np.int32(scales >> np.uint32(4) & 15)
            third, fourth = np.int32(scales >> np.uint32(8) & 15), np.int32(scales >> np.uint32(12))
        else:
            factor = gpu.mul(factor, np.float32(np.int32(scales & 0xFF)))
            least = gpu.mul(least, np.float32(np.int32(scales >> np.uint32(8))))
            first = second = third = fourth = np.int32(1)
        return factor, first, second, -least, third, fourth

    return {"number_words": words, "numbers": numbers, "has_shared_factor": True, "has_least": True}


FORMATS = {
    each.name: each
    for each in (
        Format("F32", 32),
        Format("F16", 16),
        Format("BF16", 16),
        Format("Q8_0", 8, unpack=_bytes, **_factor_alone(8, is_power=False)),
        Format("Q4_0", 4, unpack=_nibbles, **_factor_alone(4, is_power=False), offset=8),
        Format("Q4_1", 4, unpack=_nibbles, **_factor_and_least(4), has_least=True),
        Format("Q5_0", 4, 1, unpack=_five_bits, **_factor_alone(5, is_power=False), offset=16),
        Format("Q5_1", 4, 1, unpack=_five_bits, **_factor_and_least(5), has_least=True),
        Format("Q2_K", 2, 0, 1, _two_bits, **_scales_factor_and_least(2, is_pair=True), has_two_scales=True),
        Format("Q3_K", 2, 1, 1, _three_bits, **_scales_and_factor(3), offset=4, has_two_scales=True),
        Format("Q4_K", 4, 0, 1, _nibbles, **_scales_factor_and_least(4, is_pair=False)),
        Format("Q5_K", 4, 1, 1, _five_bits, **_scales_factor_and_least(5, is_pair=False)),
        Format("Q6_K", 4, 2, 1, _six_bits, **_scales_and_factor(6), offset=32, has_two_scales=True),
        Format("IQ4_NL", 4, unpack=_codebook(IQ4_VALUES), **_factor_alone(4, is_power=False)),
        Format("IQ4_XS", 4, 0, 1, unpack=_codebook(IQ4_VALUES), **_scales_and_factor(4, is_pair=False)),
        Format("MXFP4", 4, unpack=_codebook(MXFP4_VALUES), **_factor_alone(4, is_power=True)),
    )
}


@cache
def _high_words(fmt):
    """Two words of a unit's high bits, as far as there are some."""
    n_before, n_high = fmt.n_main, fmt.n_high

    @lane
    def high_words(w, n, u):
        if n_high == 2:
            return gpu.weights8(w, gpu.index_of(n_before * n + 2 * u))
        one = w[gpu.index_of(n_before * n + u)] if n_high else np.uint32(0)
        return one, one

    return high_words


@cache
def words_of(fmt):
    """The lane function (array, units, unit) → all words of a unit's weights, of which `weights_of` makes bytes."""
    high_words, n_main = _high_words(fmt), fmt.n_main

    @lane
    def main_words(w, n, u):
        if n_main == 2:
            p, q = gpu.weights8(w, 2 * u)
            return p, p, p, p, q, q, q, q
        a, b, c, d = gpu.weights16(w, gpu.index_of(4 * u))
        if n_main == 4:
            return a, b, c, d, a, b, c, d
        e, f, g, h = gpu.weights16(w, gpu.index_of(4 * (n + u)))
        return a, b, c, d, e, f, g, h

    @lane
    def words(w, n, u):
        return main_words(w, n, u), high_words(w, n, u)

    return words


@cache
def weights_of(fmt):
    """The lane function (words of a unit) → eight words of signed bytes, in order."""
    unpack = fmt.unpack

    @lane
    def weights(words):
        a, b, c, d, e, f, g, h = words[0]
        low, high = words[1]
        a, e = unpack(a, e, low, high, 0)
        b, f = unpack(b, f, low, high, 1)
        c, g = unpack(c, g, low, high, 2)
        d, h = unpack(d, h, low, high, 3)
        return a, b, c, d, e, f, g, h

    return weights


@cache
def fragment_words_of(fmt):
    """The lane function (array, units, unit, i) → four words of a unit, of which `fragment_of` makes a lane's fragment."""
    high_words, n_main = _high_words(fmt), fmt.n_main

    @lane
    def main_words(w, n, u, i):
        if n_main == 2:
            return gpu.weights8(w, gpu.index_of(2 * u))
        one = w[gpu.index_of(4 * u + i)]
        return one, w[gpu.index_of(4 * (n + u) + i)] if n_main == 8 else one

    @lane
    def words(w, n, u, i):
        return main_words(w, n, u, i), high_words(w, n, u)

    return words


@cache
def fragment_of(fmt):
    """The lane function (words, i) → words i and i + 4 of a unit's eight: a lane's part for tensor cores.

    The offset is taken off already: it pays where many tokens are multiplied with them.
    """
    unpack, offset = fmt.unpack, fmt.offset
    offsets, signs = np.uint32(offset * 0x01010101), np.uint32(0x80808080)

    @lane
    def less_offset(word):
        return ((word | signs) - offsets) ^ signs  # byte by byte: none borrows from the next

    @lane
    def fragment(words, i):
        first, second = words[0]
        low, high = words[1]
        first, second = unpack(first, second, low, high, i)
        return (less_offset(first), less_offset(second)) if offset else (first, second)

    return fragment


@cache
def floats_of(name):
    """The lane function (array, units, unit, i) → weights 8 i … 8 i + 7 of a unit, as float32, of a type of floats."""
    is_brain, float_of = name == "BF16", gpu.float_of

    @lane
    def eight(w, n, u, i):
        a, b, c, d = gpu.weights16(w, 4 * (2 * i * n + u))
        e, f, g, h = gpu.weights16(w, 4 * ((2 * i + 1) * n + u))
        return float_of(a), float_of(b), float_of(c), float_of(d), float_of(e), float_of(f), float_of(g), float_of(h)

    @lane
    def two(word):
        low, high = word & np.uint32(0xFFFF), word >> np.uint32(16)
        if is_brain:
            return gpu.float_of(low << np.uint32(16)), gpu.float_of(high << np.uint32(16))
        return gpu.float_of_half(low), gpu.float_of_half(high)

    @lane
    def eight_halves(w, n, u, i):
        p, q, r, v = gpu.weights16(w, 4 * (i * n + u))
        (a, b), (c, d), (e, f), (g, h) = two(p), two(q), two(r), two(v)
        return a, b, c, d, e, f, g, h

    return eight if name == "F32" else eight_halves
