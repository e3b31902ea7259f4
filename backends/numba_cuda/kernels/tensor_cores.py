"""Products of a matrix and many tokens by tensor cores: with the order of additions of `matmul`, to the bit.

A block takes 16 rows and 16, 32 or 64 tokens, its eight warps a slice each. One instruction multiplies 16 rows of a unit with 8
tokens; whole numbers are exact in any order.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import SLICES, WARP, cuda, is_last_block, kernel, lane, together
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE, TILE_ROWS, TILE_UNITS, fragment_of, fragment_words_of
from augury.backends.numba_cuda.kernels.instructions import mma16, mma32
from augury.backends.numba_cuda.kernels.matmul import OF_TOKENS, put, tile_of_block, tokens_of_block
from augury.backends.numba_cuda.kernels.sums import MatrixArgs, SourceArgs, add_unit_of, bring_near_of, cut_of

MATRIX_ROWS, _COLUMNS = 16, 8  # rows of weights and tokens of an instruction
MATRIX_TILES = (16, 32, 64)  # tokens that share one reading of the weights
MATRIX_TILE = MATRIX_TILES[0]  # of an expert, which has few
MATRIX_THREADS = WARP * SLICES
_REGISTERS = {16: 64, 32: 80, 64: 128}  # so that a multiprocessor has room for four blocks, three, or two
_MORE_REGISTERS = {("Q2_K", 16): 80, ("Q3_K", 16): 80, ("Q2_K", 32): 88}  # by type: with fewer there would be a stack


def _tree_of(n):
    """The lane function that adds eight slices of n sums at a place: neighbours, then pairs, then fours."""

    @lane
    def two(totals, at, slices):
        return gpu.add(totals[at + np.uint64(n * slices)], totals[at + np.uint64(n * (slices + 1))])

    @lane
    def tree(totals, at):
        return gpu.add(gpu.add(two(totals, at, 0), two(totals, at, 2)), gpu.add(two(totals, at, 4), two(totals, at, 6)))

    return tree


def _unit_of(fmt, n_tokens):
    """Two functions: one reads a lane's part of a unit of two rows, one adds their products with the tokens."""
    fragment_words, fragment, add_unit = fragment_words_of(fmt), fragment_of(fmt), add_unit_of(fmt, 0)
    number_words, numbers, has_two_scales = fmt.number_words, fmt.numbers, fmt.has_two_scales

    @lane
    def read(w, n, u, v, i):
        upper, lower = fragment_words(w, n, u, i % 4), fragment_words(w, n, v, i % 4)
        return upper, lower, number_words(w, n, u), number_words(w, n, v)

    @lane
    def add_four(sums, at, low, high, halves, x_factors, x_sums, upper, lower):
        for j in range(4):  # of two tokens those with one row, then those with the other
            token, numbers = j % 2, upper if j < 2 else lower
            x_low, x_high = np.int32(halves[2 * token]), np.int32(halves[2 * token + 1])
            x_factor, x_sum = gpu.float_of(x_factors[token]), gpu.float_of(x_sums[token])
            sums[at + j] = add_unit(sums[at + j], low[j], high[j], x_low, x_high, x_factor, x_sum, numbers)

    nothing = (np.int32(0),) * 4

    @together
    def add_products(held, u, v, i, place, x, sums):
        """Add a unit: rows u and v of it are this lane's, i // 4 of a tile's tokens, and of the sums two others."""
        a, b = fragment(held[0], i % 4)
        c, d = fragment(held[1], i % 4)
        upper, lower = numbers(held[2], u), numbers(held[3], v)
        first_words, first = gpu.index_of(8 * place + 2 * i), gpu.index_of(place + 2 * (i % 4))
        for tile in range(n_tokens // _COLUMNS):
            p, q = gpu.load8(x.values, first_words + 8 * _COLUMNS * tile)
            at = first + _COLUMNS * tile
            if has_two_scales:
                low, high = mma16(a, c, p), mma16(b, d, q)
            else:
                low, high = mma32(a, c, b, d, p, q), nothing
            halves, factors, sums_of_x = gpu.load16(x.halves, 2 * at), gpu.load8(x.factors, at), gpu.load8(x.sums, at)
            add_four(sums, 4 * tile, low, high, halves, factors, sums_of_x, upper, lower)

    return read, add_products


def _multiply(fmt, n_tokens):
    (read, add_products), n_sums = _unit_of(fmt, n_tokens), n_tokens // 2
    n_of_slice = n_sums * WARP
    n_totals, tree, bring_tiles_near = SLICES * n_of_slice, _tree_of(n_of_slice), bring_near_of(fmt)
    is_least = n_tokens == MATRIX_TILE
    find = tile_of_block if is_least else tokens_of_block  # which takes fewer registers
    name = f"multiply_{fmt.name}_matrix_{n_tokens}"
    most_registers = _MORE_REGISTERS.get((fmt.name, n_tokens), _REGISTERS[n_tokens])

    @together
    def add_parts(totals, own, block, n_cuts, parts, counters):
        """Let the last of the blocks that take a cut each have the sums of all, in the order of cuts; returns whether it is."""
        first, own_sums = np.int64(block) * n_cuts * n_totals, cuda.local.array(n_sums, np.float32)
        for j in range(n_sums):
            parts[first + cuda.blockIdx.z * n_totals + own + WARP * j] = totals[own + WARP * j]
        if not is_last_block(counters, block, n_cuts):
            return False
        for each in range(n_cuts):
            for j in range(n_sums):
                part = parts[first + each * n_totals + own + WARP * j]
                own_sums[j] = gpu.add(own_sums[j], part) if each else part
        for j in range(n_sums):
            totals[own + WARP * j] = own_sums[j]
        return True

    @kernel("j", MatrixArgs, SourceArgs, "fiiiiiifw", name=name, most_registers=most_registers)
    def multiply(inputs, w, x, y, stride, column, mode, which, n_apart, is_split, parts, counters):
        """See `matmul`; units for the same weights are those of `n_apart` rows of x.

        If `is_split`, cuts have a block each, in the grid's third direction: `parts` (blocks, n_cuts, sums) are kept until the
        last of them adds these up, and there is a counter for each of as many blocks.
        """
        n_rows, n_steps, n_cuts = w.n_rows, w.n_steps, w.n_cuts
        if which == OF_TOKENS and cuda.blockIdx.y == 0 and cuda.blockIdx.z == 0:
            bring_tiles_near(w, cuda.blockIdx.x * (MATRIX_ROWS // TILE_ROWS), MATRIX_ROWS // TILE_ROWS)
        gpu.wait_for_launch()
        matrix, first, n_wanted = find(inputs, which, cuda.blockIdx.y, n_tokens)
        if first >= n_wanted:
            return
        t = first - (first & 1)  # lanes' reads of two rows at once are aligned
        thread = cuda.threadIdx.x & MATRIX_THREADS - 1  # as the compiler sees, not negative
        i, s = thread % WARP, thread // WARP
        totals = cuda.shared.array(n_totals, np.float32)
        sums = cuda.local.array(n_sums, np.float32)
        tile, last = cuda.blockIdx.x * (MATRIX_ROWS // TILE_ROWS) + i // 16, (n_rows - 1) // TILE_ROWS
        above = matrix * (last + 1)
        unit = TILE_ROWS * s + i // 4 % TILE_ROWS
        u = np.uint32((above + min(tile, last)) * n_steps * TILE + unit)  # the first units of a lane's rows
        v = np.uint32((above + min(tile + 2, last)) * n_steps * TILE + unit)
        first_cut, end_cut = np.int32(0), np.int32(n_cuts)
        if is_least and is_split:
            first_cut, end_cut = np.int32(cuda.blockIdx.z), np.int32(cuda.blockIdx.z + 1)
        first_step, step = cut_of(first_cut, n_steps, n_cuts)[0], np.uint32(TILE_UNITS * n_apart)
        u = np.uint32(u + TILE * min(first_step, n_steps - 1))  # the last cut may be empty
        v = np.uint32(v + TILE * min(first_step, n_steps - 1))
        place = np.uint32(first_step * step + s * n_apart + t)
        beyond = min(np.uint32(w.n_units * n_apart), np.uint32(cut_of(end_cut - 1, n_steps, n_cuts)[1] * step))
        own = np.uint64(s * n_of_slice + i)  # unsigned: a negative one would count from the end
        held = read(w.words, w.n, u, v, i)
        for cut in range(first_cut, end_cut):
            for j in range(n_sums):
                sums[j] = np.float32(0)
            end = min(beyond, np.uint32(cut_of(cut, n_steps, n_cuts)[1] * step))
            while place < end:  # all of 32 bits, which a range would not be
                ahead = held
                if np.uint32(place + step) < beyond:
                    ahead = read(w.words, w.n, np.uint32(u + TILE), np.uint32(v + TILE), i)
                add_products(held, u, v, i, place, x, sums)
                u, v, place, held = np.uint32(u + TILE), np.uint32(v + TILE), np.uint32(place + step), ahead
            for j in range(n_sums):
                at = own + np.uint64(WARP * j)
                totals[at] = gpu.add(totals[at], sums[j]) if cut > first_cut else sums[j]
        if is_least and is_split:
            block = cuda.blockIdx.y * ((n_rows + MATRIX_ROWS - 1) // MATRIX_ROWS) + cuda.blockIdx.x
            if not add_parts(totals, s * n_of_slice + i, block, n_cuts, parts, counters):
                return
        cuda.syncthreads()
        matrix, first, n_wanted = find(inputs, which, cuda.blockIdx.y, n_tokens)  # anew: to keep them takes registers
        own = np.uint64(thread)
        row = cuda.blockIdx.x * MATRIX_ROWS + i // 4 + 8 * (s // 2 % 2)
        for part in range(n_tokens // 16):
            token = first - (first & 1) + 16 * part + 8 * (s // 4) + 2 * (i % 4) + s % 2
            if row < n_rows and first <= token < n_wanted:
                total = tree(totals, own + np.uint64(MATRIX_THREADS * part))
                put(y, token * stride + column + row, total, w, matrix * n_rows + row, mode)

    return multiply


MULTIPLY_MATRIX = {
    (name, n_tokens): _multiply(fmt, n_tokens) for name, fmt in FORMATS.items() if not fmt.is_float for n_tokens in MATRIX_TILES
}
"""Kernels by the weights' type, and how many tokens share a reading of them; floats have none, whose sums are not exact."""
