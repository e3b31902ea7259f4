"""Sums of products of rows and a few tokens, in one order of additions for all kernels.

A row has 8 slices: slice s takes the units s, s + 8, s + 16 … of 32 weights in turn. A unit of a quantised type adds a whole
number, exact in any order of its bytes, times factors; one of floats adds its products one after another. If
rows are cut (`Matrix.n_cuts`, by the shape alone) each slice does so in every cut, and adds up the cuts in turn. Then
neighbouring slices are added, then pairs of them, then fours. None of this depends on how many tokens there are, nor on the
kernel: see `tensor_cores`.
"""

from functools import cache

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, lane, record, together
from augury.backends.numba_cuda.kernels.formats import TILE, TILE_ROWS, TILE_UNITS, floats_of, weights_of, words_of

MatrixArgs = record("MatrixArgs", w="words", f="bias", i="n_rows n_units n_steps n n_cuts has_bias", r="scale")
"""A matrix W, or several, one below the other, each in whole tiles.

Rows of W have `n_units` units in `n_steps` tiles, and `n_cuts` cuts; all of them have `n` units, in whole tiles. A product is
scale * W x + bias, if `has_bias`. Several matrices have a bias and a scale for each row, if these have scales.
"""
SourceArgs = record("SourceArgs", w="values factors sums halves")
"""Units of all tokens, see `quantise`: bytes, factors, sums, and sums of halves' bytes; for weights that are floats, floats."""
TILES = (1, 2, 4, 8)  # tokens that share one reading of the weights
AHEAD = {n: max(1, 2 // n) for n in TILES}  # units that a lane asks for before it multiplies, by tokens


@cache
def add_unit_of(fmt, offset):
    """The lane function that adds a unit's products, of its whole numbers: the order of additions of quantised types.

    `offset` is still to be subtracted from the weights.
    """
    has_least, has_two_scales = fmt.has_least, fmt.has_two_scales

    @lane
    def add_unit(total, low, high, x_low, x_high, x_factor, x_sum, numbers):
        factor, scale, other_scale, least, least_scale, other_least_scale = numbers
        low, high = low - offset * x_low, high - offset * x_high
        whole = np.int32(scale * low + other_scale * high if has_two_scales else low + high)
        total = gpu.fma(np.float32(whole), gpu.mul(factor, x_factor), total)
        if has_least and has_two_scales:
            total = gpu.fma(
                np.float32(np.int32(least_scale * x_low + other_least_scale * x_high)), gpu.mul(least, x_factor), total
            )
        elif has_least:
            total = gpu.fma(least, x_sum, total)
        return total

    return add_unit


@cache
def bring_near_of(fmt):
    """The function (W, first, n) that has n tiles of rows brought nearer, while the launch before still goes on.

    A block's first thread asks for all of them at once, plane by plane; so it waits for memory once, not at each unit.
    """
    sizes = tuple(8 * n // per for n, per in fmt.planes)  # halves of eight units

    @together
    def bring_tiles_near(of, first, n):
        n_units = min(n, gpu.quotient(of.n_rows + TILE_ROWS - 1, TILE_ROWS) - first) * of.n_steps * TILE
        if cuda.threadIdx.x > 0 or n_units <= 0:
            return
        before = 0
        for size in sizes:
            at = (before * of.n + size * TILE * first * of.n_steps) // 16
            aligned = at & ~3
            gpu.bring_near(of.words, aligned, np.uint32((size * n_units // 4 + 4 * (at - aligned) + 15) & ~15))
            before += size

    return bring_tiles_near


@lane
def cut_of(cut, n_steps, n_cuts):
    """The first step of a cut of a row, and the end."""
    size = gpu.quotient(n_steps + n_cuts - 1, n_cuts)
    return min(n_steps, cut * size), min(n_steps, (cut + 1) * size)


def _quantised_unit(fmt, n_tokens):
    """Two lane functions: one reads a unit of weights, one adds its products."""
    read, weights, add_unit = words_of(fmt), weights_of(fmt), add_unit_of(fmt, fmt.offset)
    number_words, numbers = fmt.number_words, fmt.numbers

    @lane
    def read_unit(w, n, u):
        return read(w, n, u), number_words(w, n, u)

    @lane
    def add_products(held, u, unit, n_units, x, rows, sums):
        a, b, c, d, e, f, g, h = weights(held[0])
        of_unit = numbers(held[1], u)
        for i in range(n_tokens):
            place = rows[i] * n_units + unit
            p, q, r, v = gpu.load16(x.values, 8 * place)
            low, high = gpu.dp4a(b, r, gpu.dp4a(a, p, np.int32(0))), gpu.dp4a(f, v, gpu.dp4a(e, q, np.int32(0)))
            p, q, r, v = gpu.load16(x.values, 8 * place + 4)
            low, high = gpu.dp4a(d, r, gpu.dp4a(c, p, low)), gpu.dp4a(h, v, gpu.dp4a(g, q, high))
            x_low, x_high = gpu.load8(x.halves, 2 * place)
            x_factor, x_sum = gpu.float_of(x.factors[place]), gpu.float_of(x.sums[place])
            sums[i] = add_unit(sums[i], low, high, np.int32(x_low), np.int32(x_high), x_factor, x_sum, of_unit)

    return read_unit, add_products


def _float_unit(fmt, n_tokens):
    eight = floats_of(fmt.name)

    @lane
    def read_unit(w, n, u):
        return w, n, u

    @lane
    def add_products(held, u, unit, n_units, x, rows, sums):
        w, n, u = held
        for i in range(4):
            a, b, c, d, e, f, g, h = eight(w, n, u, i)
            for token in range(n_tokens):
                at = (rows[token] * n_units + unit) * 32 + 8 * i
                p, q, r, v = gpu.load16(x.values, at)
                total = gpu.fma(b, gpu.float_of(q), gpu.fma(a, gpu.float_of(p), sums[token]))
                total = gpu.fma(d, gpu.float_of(v), gpu.fma(c, gpu.float_of(r), total))
                p, q, r, v = gpu.load16(x.values, at + 4)
                total = gpu.fma(f, gpu.float_of(q), gpu.fma(e, gpu.float_of(p), total))
                sums[token] = gpu.fma(h, gpu.float_of(v), gpu.fma(g, gpu.float_of(r), total))

    return read_unit, add_products


def _of_several(read, add_products, n):
    """The same of n units of a slice: all are read first, so that many bytes are on their way at once."""
    if n == 1:
        return read, add_products
    tiles = n // 2
    read_half, add_half = _of_several(read, add_products, tiles)

    @lane
    def read_both(w, n, u):
        return read_half(w, n, u), read_half(w, n, u + TILE * tiles)

    @lane
    def add_both(held, u, unit, n_units, x, rows, sums):
        add_half(held[0], u, unit, n_units, x, rows, sums)
        add_half(held[1], u + TILE * tiles, unit + TILE_UNITS * tiles, n_units, x, rows, sums)

    return read_both, add_both


def sums_of(fmt, n_tokens, n_ahead):
    """The lane function that adds the units of a lane's slice to `sums`, from step `begin` to `end`.

    `first` is the lane's unit of step 0; `n_ahead` units are asked for before they are multiplied.
    """
    read_unit, add_products = (_float_unit if fmt.is_float else _quantised_unit)(fmt, n_tokens)
    read_several, add_several = _of_several(read_unit, add_products, n_ahead)

    @lane
    def sums_of_slice(of, first, begin, end, s, x, rows, sums):
        w, n, n_units = of.words, of.n, of.n_units
        n_groups = gpu.quotient(max(0, min(end, n_units // TILE_UNITS) - begin), n_ahead)
        u, unit = first + TILE * begin, TILE_UNITS * begin + s
        if n_groups > 0:
            held = read_several(w, n, u)
            for i in range(n_groups):
                ahead = held
                if i + 1 < n_groups:
                    ahead = read_several(w, n, u + TILE * n_ahead)
                add_several(held, u, unit, n_units, x, rows, sums)
                held = ahead
                u, unit = u + TILE * n_ahead, unit + TILE_UNITS * n_ahead
        while unit < min(TILE_UNITS * end, n_units):
            add_products(read_unit(w, n, u), u, unit, n_units, x, rows, sums)
            u, unit = u + TILE, unit + TILE_UNITS

    return sums_of_slice


@cache
def sums_of_cut_of(fmt, n_tokens, n_ahead):
    """The lane function that sets `sums` to a warp's cut of a tile of rows; it does nothing without such rows."""
    add_slice = sums_of(fmt, n_tokens, 1 if fmt.is_float else n_ahead)

    @lane
    def sums_of_cut(of, tile, cut, n_cuts, matrix, x, rows, i, sums):
        for token in range(n_tokens):
            sums[token] = np.float32(0)
        begin, end = cut_of(cut, of.n_steps, n_cuts)
        if tile >= 0 and TILE_ROWS * tile < of.n_rows:
            first = (matrix * ((of.n_rows + TILE_ROWS - 1) // TILE_ROWS) + tile) * of.n_steps * TILE + i
            add_slice(of, first, begin, end, i // TILE_ROWS, x, rows, sums)

    return sums_of_cut


@together
def add_cuts(sums, staged, cut, n_cuts, n_tokens):
    """Add to the sums of a row's first cut those of its others, in turn."""
    i, first = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP * n_tokens
    for token in range(n_tokens):
        staged[(first + token) * WARP + i] = sums[token]
    cuda.syncthreads()
    if cut == 0:
        for at in range(first + n_tokens, first + n_cuts * n_tokens, n_tokens):
            for token in range(n_tokens):
                sums[token] = gpu.add(sums[token], staged[(at + token) * WARP + i])
