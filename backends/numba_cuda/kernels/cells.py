"""How cells of a cache keep a head's values, by cache type: storing them, and reading them for attention.

Halves lie as they are. The types q8_0 and q4_0 keep 32 neighbouring values together, as ggml's types of these names: codes, and
a half that they are multiples of. The codes of all cells are one plane, the halves another. Those of q4_0 lie as in a model
file: the first 16 of 32 in the lower halves of bytes. Codes times scale is exact in float32.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane, record, together, warp_max

NOT_KEPT, F16, Q8_0, Q4_0, F32 = range(-1, 4)
TYPES = {"f16": F16, "q8_0": Q8_0, "q4_0": Q4_0}
"""The numbers of cache types in kernels. Caches whose type no option gives are kept as F32."""
BLOCK = 32  # values that share a scale
StoreArgs = record("StoreArgs", b="codes", h="halves", i="kept_as")
"""The planes of a cache that is written, and its type."""
CacheArgs = record("CacheArgs", w="words", h="halves")
"""The planes of a cache that is read: codes, or all there is, and halves."""


def halves_of(name: str, dim: int) -> tuple[int, ...]:
    """How many halves of each plane a cell of `dim` values takes."""
    return {"f32": (2 * dim,), "f16": (dim,), "q8_0": (dim // 2, dim // BLOCK), "q4_0": (dim // 4, dim // BLOCK)}[name]


# Stores


@lane
def _half(value):
    """The bits of the nearest half."""
    return np.uint16(gpu.half_of_float(np.float32(value)))


@lane
def _rounded_q8_0(value, largest):
    """A code, and the scale."""
    value, largest = np.float32(value), np.float32(largest)
    if largest == np.float32(0):
        return np.int32(0), np.float32(0)
    return gpu.nearest(gpu.mul(value, gpu.mul(np.float32(127), gpu.div(np.float32(1), largest)))), gpu.div(
        largest, np.float32(127)
    )


@lane
def _rounded_q4_0(value, top, bottom):
    """A code from 0 to 15, and the scale: of the largest value and the negative of the smallest, the larger one's / -8."""
    value, top, bottom = np.float32(value), np.float32(top), np.float32(bottom)
    scale = gpu.div(top if top >= bottom else -bottom, np.float32(-8))
    if scale == np.float32(0):
        return np.int32(8), np.float32(0)
    code = gpu.add(gpu.mul(value, gpu.div(np.float32(1), scale)), np.float32(8.5))
    return np.int32(min(code, np.float32(15))), scale


@lane
def _two_codes(staged, i):
    """Byte i of codes of q4_0."""
    low = BLOCK * (i // 16) + i % 16
    return np.int8(np.int32(staged[low]) | np.int32(staged[low + 16]) << 4)


@lane
def _store_float(value, halves, at):
    bits = gpu.bits_of(np.float32(value))
    halves[2 * at], halves[2 * at + 1] = np.uint16(bits & np.uint32(0xFFFF)), np.uint16(bits >> np.uint32(16))


@together
def store_cell(values, staged, dim, cache, cell):
    """Keep `dim` values of a head in a cell; a warp does, whose lane i knows every 32nd value from the i-th on.

    `staged` is shared, and as long.
    """
    i = cuda.threadIdx.x % WARP
    if cache.kept_as == F16:
        for j in range(i, dim, WARP):
            cache.halves[cell * dim + j] = _half(values[j])
        return
    if cache.kept_as == F32:
        for j in range(i, dim, WARP):
            _store_float(values[j], cache.halves, cell * dim + j)
        return
    cuda.syncthreads()  # all threads have read the previously staged values
    for block in range(dim // BLOCK):
        value = values[BLOCK * block + i]
        if cache.kept_as == Q8_0:
            code, scale = _rounded_q8_0(value, warp_max(abs(value)))
            cache.codes[cell * dim + BLOCK * block + i] = code
        else:
            code, scale = _rounded_q4_0(value, warp_max(value), warp_max(-value))
            staged[BLOCK * block + i] = np.float32(code)
        if i == 0:
            cache.halves[cell * (dim // BLOCK) + block] = _half(scale)
    cuda.syncthreads()
    if cache.kept_as == Q4_0:
        for j in range(i, dim // 2, WARP):
            cache.codes[cell * (dim // 2) + j] = _two_codes(staged, j)


@kernel("hjiiii")
def move_cells(plane, moves, n_moves, n_heads, n_halves, length):
    """Copy cells of a plane (slots, heads, length, n_halves), one after another: `moves` (m, 3) of slot, from, to.

    A thread takes one half of a head.
    """
    i = cuda.blockIdx.x * WARP + cuda.threadIdx.x
    if i >= n_heads * n_halves:
        return
    for move in range(n_moves):
        slot, source, to = moves[3 * move], moves[3 * move + 1], moves[3 * move + 2]
        start, at = (slot * n_heads + gpu.quotient(i, n_halves)) * length, gpu.remainder(i, n_halves)
        plane[(start + to) * n_halves + at] = plane[(start + source) * n_halves + at]


# Reads of attention: of keys a product with a query, of values two neighbours


@lane
def _byte(word, i):
    """2^15 + byte i of a word, as a float."""
    return gpu.float_of(gpu.prmt(word, np.uint32(0x47000000), np.uint32(0x7404 + 16 * i)))


@lane
def _two_halves(word):
    return gpu.float_of_half(word & np.uint32(0xFFFF)), gpu.float_of_half(word >> np.uint32(16))


@lane
def _dot_f32(q, start, cache, cell, dim):
    """Q k of floats, of which four neighbours are read at once."""
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    for i in range(0, dim, 4):
        first, second, third, fourth = gpu.load16(cache.words, cell * dim + i)
        a, b = gpu.fma(q[start + i], gpu.float_of(first), a), gpu.fma(q[start + i + 1], gpu.float_of(second), b)
        c, d = gpu.fma(q[start + i + 2], gpu.float_of(third), c), gpu.fma(q[start + i + 3], gpu.float_of(fourth), d)
    return gpu.add(gpu.add(a, b), gpu.add(c, d))


@lane
def _read_f16(cache, cell, dim, i):
    return gpu.load16(cache.words, cell * (dim >> 1) + (i >> 1))  # of several i the former is multiplied once


@lane
def _values_f16(held, i):
    return _two_halves(held[0]) + _two_halves(held[1]) + _two_halves(held[2]) + _two_halves(held[3])


@lane
def _four_bytes(word, offset, scale):
    """The bytes of a word less an offset of 8 or 128, times a half: exact, as 2^15 and the offset are, together, times it."""
    zero = gpu.mul(np.float32(-32768 - offset), scale)
    return (
        gpu.fma(_byte(word, 0), scale, zero),
        gpu.fma(_byte(word, 1), scale, zero),
        gpu.fma(_byte(word, 2), scale, zero),
        gpu.fma(_byte(word, 3), scale, zero),
    )


@lane
def _read_q8_0(cache, cell, dim, i):
    first, second = gpu.load8(cache.words, (cell * dim + i) >> 2)
    return first, second, np.uint32(cache.halves[(cell * dim + i) >> 5])


@lane
def _values_q8_0(held, i):
    flip, scale = np.uint32(0x80808080), gpu.float_of_half(held[2])
    return _four_bytes(held[0] ^ flip, 128, scale) + _four_bytes(held[1] ^ flip, 128, scale)


@lane
def _read_q4_0(cache, cell, dim, i):
    first, second = gpu.load8(cache.words, ((cell * dim + i) >> 5 << 2) + (i >> 2 & 2))
    return first, second, np.uint32(cache.halves[(cell * dim + i) >> 5])


@lane
def _values_q4_0(held, i):
    low, shift, scale = np.uint32(0x0F0F0F0F), np.uint32(i >> 2 & 4), gpu.float_of_half(held[2])
    return _four_bytes(held[0] >> shift & low, 8, scale) + _four_bytes(held[1] >> shift & low, 8, scale)


EIGHT = {"f16": (_read_f16, _values_f16), "q8_0": (_read_q8_0, _values_q8_0), "q4_0": (_read_q4_0, _values_q4_0)}
"""Two lane functions: (cache, cell, dim, i) → words of eight values from the i-th on, (these, i) → the values."""


def _dot(kind):
    read, eight = EIGHT[kind]

    @lane
    def add(q, at, held, i, sums):
        k0, k1, k2, k3, k4, k5, k6, k7 = eight(held, i)
        a, b = gpu.fma(q[at + 4], k4, gpu.fma(q[at], k0, sums[0])), gpu.fma(q[at + 5], k5, gpu.fma(q[at + 1], k1, sums[1]))
        c, d = gpu.fma(q[at + 6], k6, gpu.fma(q[at + 2], k2, sums[2])), gpu.fma(q[at + 7], k7, gpu.fma(q[at + 3], k3, sums[3]))
        return a, b, c, d

    @lane
    def dot(q, start, cache, cell, dim):
        sums, whole = (np.float32(0), np.float32(0), np.float32(0), np.float32(0)), dim // 32 * 32
        for i in range(0, whole, 32):  # of four loads, which are waited for at once
            k0, k1 = read(cache, cell, dim, i), read(cache, cell, dim, i + 8)
            k2, k3 = read(cache, cell, dim, i + 16), read(cache, cell, dim, i + 24)
            sums = add(q, start + i + 8, k1, i + 8, add(q, start + i, k0, i, sums))
            sums = add(q, start + i + 24, k3, i + 24, add(q, start + i + 16, k2, i + 16, sums))
        for i in range(whole, dim, 8):
            sums = add(q, start + i, read(cache, cell, dim, i), i, sums)
        return gpu.add(gpu.add(sums[0], sums[1]), gpu.add(sums[2], sums[3]))

    return dot


DOT = {**{kind: _dot(kind) for kind in EIGHT}, "f32": _dot_f32}
"""Lane functions (query, start, cache, cell, dim) → q k.

Each of four neighbours has one sum, in rising order, and these are then added in pairs.
"""
