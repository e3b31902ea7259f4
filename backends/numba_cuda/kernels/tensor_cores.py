"""Products of a matrix and many tokens by tensor cores: to the bit those of `matmul`, whose order of additions they keep.

A block takes 16 rows and 16, 32 or 64 tokens. Eight of its warps take a slice each of a cut; a block of more warps takes as
many cuts at once, whose sums are added in turn. One instruction multiplies 16 rows of a unit with 8 tokens; whole numbers are
exact in whatever order they are added.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import (
    SLICES,
    WARP,
    add,
    cuda,
    float_of,
    index_of,
    kernel,
    lane,
    load8,
    load16,
    mma16,
    mma32,
    together,
)
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE, TILE_ROWS, TILE_UNITS, fragment_of
from augury.backends.numba_cuda.kernels.matmul import put, tile_of_block, tokens_of_block
from augury.backends.numba_cuda.kernels.sums import MatrixArgs, SourceArgs, add_unit_of, cut_of

MATRIX_ROWS, _COLUMNS = 16, 8  # rows of weights and tokens of an instruction
_TILES = (16, 32, 64)  # tokens that share one reading of the weights
MATRIX_TILE = _TILES[0]  # of an expert, which has few
MATRIX_THREADS = WARP * SLICES
_REGISTERS = {16: 80, 32: 128, 64: 128}  # so that a multiprocessor has room for three blocks, or two


@lane
def _tree(totals, at, step):
    """The sum of what eight slices have at a place: of neighbours, of pairs, of fours."""
    first = add(add(totals[at], totals[at + step]), add(totals[at + 2 * step], totals[at + 3 * step]))
    at += 4 * step
    return add(first, add(add(totals[at], totals[at + step]), add(totals[at + 2 * step], totals[at + 3 * step])))


def _products_of(fmt, n_tokens):
    fragment, add_unit, has_two_scales = fragment_of(fmt), add_unit_of(fmt, 0), fmt.has_two_scales
    number_words, numbers = fmt.number_words, fmt.numbers

    @lane
    def add_four(sums, at, low, high, of_tokens, x_factors, upper, lower):
        p, q, r, v = of_tokens
        x, y = float_of(x_factors[0]), float_of(x_factors[1])
        x_low, x_high, y_low, y_high = np.int32(p), np.int32(q), np.int32(r), np.int32(v)
        sums[at] = add_unit(sums[at], low[0], high[0], x_low, x_high, x, upper)
        sums[at + 1] = add_unit(sums[at + 1], low[1], high[1], y_low, y_high, y, upper)
        sums[at + 2] = add_unit(sums[at + 2], low[2], high[2], x_low, x_high, x, lower)
        sums[at + 3] = add_unit(sums[at + 3], low[3], high[3], y_low, y_high, y, lower)

    nothing = (np.int32(0),) * 4

    @together
    def add_products(w, n, u, v, i, place, x, sums):
        """Add what a unit gives: rows u and v of it are this lane's, i // 4 of a tile's tokens, and of the sums two others."""
        a, b = fragment(w, n, u, i % 4)
        c, d = fragment(w, n, v, i % 4)
        upper, lower = numbers(number_words(w, n, u), u), numbers(number_words(w, n, v), v)
        first_words, first = index_of(8 * (place + i // 4) + 2 * (i % 4)), index_of(place + 2 * (i % 4))
        for tile in range(n_tokens // _COLUMNS):
            p, q = load8(x.values, first_words + 8 * _COLUMNS * tile)
            at = first + _COLUMNS * tile
            if has_two_scales:
                low, high = mma16(a, c, p), mma16(b, d, q)
            else:
                low, high = mma32(a, c, b, d, p, q), nothing
            add_four(sums, 4 * tile, low, high, load16(x.halves, 2 * at), load8(x.factors, at), upper, lower)

    return add_products


def _multiply(fmt, n_tokens):
    add_products, n_sums = _products_of(fmt, n_tokens), n_tokens // 2
    n_of_slice = n_sums * WARP
    n_totals = SLICES * n_of_slice
    find = tile_of_block if n_tokens == MATRIX_TILE else tokens_of_block  # which takes fewer registers

    name = f"multiply_{fmt.name}_matrix_{n_tokens}"

    @kernel("j", MatrixArgs, SourceArgs, "fiiiii", name=name, most_registers=_REGISTERS[n_tokens])
    def multiply(inputs, w, x, y, stride, column, mode, which, n_apart):
        """See `matmul`; units for the same weights are those of `n_apart` rows of x."""
        n_rows, n_steps, n_cuts = w.n_rows, w.n_steps, w.n_cuts
        matrix, first, n_wanted = find(inputs, which, cuda.blockIdx.y, n_tokens)
        if first >= n_wanted:
            return
        t = first - (first & 1)  # what lanes read of two rows at once is aligned
        thread = cuda.threadIdx.x
        i, s = thread % WARP, thread // WARP % SLICES
        totals = cuda.shared.array(n_totals, np.float32)
        sums = cuda.local.array(n_sums, np.float32)
        tile, last = cuda.blockIdx.x * (MATRIX_ROWS // TILE_ROWS) + i // 16, (n_rows - 1) // TILE_ROWS
        above = matrix * (last + 1)
        upper = (above + min(tile, last)) * n_steps * TILE + i // 4 % TILE_ROWS  # the first units of a lane's rows
        lower = (above + min(tile + 2, last)) * n_steps * TILE + i // 4 % TILE_ROWS
        group, n_groups = thread // MATRIX_THREADS, cuda.blockDim.x // MATRIX_THREADS
        for first_cut in range(0, n_cuts, n_groups):
            cut = first_cut + group
            for j in range(n_sums):
                sums[j] = np.float32(0)
            begin, end = cut_of(cut, n_steps, n_cuts)
            unit = TILE_UNITS * begin + s
            u, v = np.uint32(upper + TILE_ROWS * unit), np.uint32(lower + TILE_ROWS * unit)
            place, end = np.uint32(unit * n_apart + t), np.uint32(min(w.n_units, TILE_UNITS * end) * n_apart)
            while place < end:  # all of 32 bits, which a range would not be
                add_products(w.words, w.n, u, v, i, place, x, sums)
                u, v, place = np.uint32(u + TILE), np.uint32(v + TILE), np.uint32(place + TILE_UNITS * n_apart)
            for turn in range(n_groups):
                if turn == group and cut < n_cuts:
                    for j in range(n_sums):
                        at = s * n_of_slice + j * WARP + i
                        totals[at] = add(totals[at], sums[j]) if cut else sums[j]
                cuda.syncthreads()
        matrix, first, n_wanted = find(inputs, which, cuda.blockIdx.y, n_tokens)  # anew: to keep them takes registers
        for at in range(thread, n_of_slice, n_groups * MATRIX_THREADS):
            j, i = at // WARP, at % WARP
            row = cuda.blockIdx.x * MATRIX_ROWS + i // 4 + 8 * (j // 2 % 2)
            token = first - (first & 1) + 8 * (j // 4) + 2 * (i % 4) + j % 2
            if row < n_rows and first <= token < n_wanted:
                total = _tree(totals, at, n_of_slice)
                put(y, token * stride + column + row, total, w, matrix * n_rows + row, mode)

    return multiply


MATRIX_TILES = {
    name: _TILES[:2] if fmt.has_two_scales or name in ("Q5_0", "Q5_1") else _TILES
    for name, fmt in FORMATS.items()
    if not fmt.is_float
}
"""How many tokens share one reading of weights, by type: of some, 64 tokens would take more registers than there are."""
MULTIPLY_MATRIX = {
    (name, n_tokens): _multiply(FORMATS[name], n_tokens) for name, tiles in MATRIX_TILES.items() for n_tokens in tiles
}
"""Kernels by the weights' type, and how many tokens share a reading of them; floats have none, whose sums are not exact."""
