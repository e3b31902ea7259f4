"""Products of a matrix and a few tokens, and the other work of their launch: see `sums` for the order of additions.

Likewise of gate and up, activated in the same launch, and of two matrices of different types.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.activation import GateArgs, put_gated
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, is_last_block, kernel, lane, slice_sums, together
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS, TILE_UNITS, UNIT
from augury.backends.numba_cuda.kernels.inputs import N_ROWS, N_TOKENS
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.routes import CombineArgs, combine, token_at
from augury.backends.numba_cuda.kernels.sums import (
    AHEAD,
    TILES,
    MatrixArgs,
    SourceArgs,
    add_cuts,
    bring_near_of,
    sums_of_cut_of,
)

MOST_ROUTED = 4  # tokens of a tile whose rows are wherever routes say: of more, places would take too many registers
MOST_CUTS = 8
MOST_STAGED = MOST_CUTS * WARP  # sums of a token that warps give each other
STORE, ADD, COMBINED = range(3)  # the use of a product
OF_TOKENS, OF_OUTPUT, OF_TILES, OF_ROUTES = range(4)  # which rows of x are multiplied
HAS_BIAS, HAS_SCALES = 1, 2


def kind_of_rows_of(n_tokens):
    """The type of numbers of rows: of 64 bits the compiler sees that they are neighbours."""
    return np.int32 if n_tokens <= MOST_ROUTED else np.int64


@lane
def product_of(total, of, row):
    """A product, whose sum this is."""
    value = gpu.mul(total, np.float32(of.scale))
    if of.has_bias == HAS_BIAS:
        return gpu.add(value, of.bias[row])
    return gpu.add(gpu.mul(value, of.bias[2 * row + 1]), of.bias[2 * row]) if of.has_bias else value


@lane
def put(y, place, total, of, row, mode):
    """Store a product, or add it to the stored value."""
    value = product_of(total, of, row)
    y[place] = gpu.add(y[place], value) if mode == ADD else value


@together
def put_rows(sums, n_tokens, tile, of, first, t, n, y, stride, column, mode):
    """Store a tile's products, if there is one, with at most n_tokens of n tokens, or add them; eight lanes share a row's."""
    i = cuda.threadIdx.x % WARP
    row = TILE_ROWS * tile + i % TILE_ROWS
    if tile >= 0 and row < of.n_rows:
        for token in range(n_tokens):
            if i // TILE_ROWS == token % TILE_UNITS and t + token < n:
                put(y, (t + token) * stride + column + row, sums[token], of, first + row, mode)


@lane
def tokens_of_block(inputs, which, block, n_tokens):
    """The only matrix, the first token that a block multiplies, and the one after the last of a pass."""
    return 0, block * n_tokens, inputs[N_ROWS] if which == OF_OUTPUT else inputs[N_TOKENS]


@lane
def tile_of_block(inputs, which, block, n_tokens):
    """Which of several matrices a block multiplies by, the first row of x that it takes, and the one after the last, if any."""
    if which < OF_TILES:
        return tokens_of_block(inputs, which, block, n_tokens)
    if block >= inputs[0]:
        return 0, 0, 0
    return inputs[1 + 3 * block], inputs[2 + 3 * block], inputs[3 + 3 * block]


@lane
def _rows_of_block(block, n_warps, n_cuts, n_rows):
    """The first row that a block's warps multiply by, and how many there are."""
    n = TILE_ROWS * gpu.quotient(n_warps, n_cuts)
    return block * n, min(n, n_rows - block * n)


@lane
def list_rows(rows, n_tokens, inputs, which, n_most, per_token, t, n):
    """Which rows of x a tile multiplies, of n: neighbours, or wherever routes say."""
    for token in range(n_tokens):
        rows[token] = t + token
        if which == OF_ROUTES and n_tokens <= MOST_ROUTED:
            rows[token] = token_at(inputs, n_most, per_token, min(t + token, n - 1))


def multiply_tile_of(fmt, n_tokens):
    """The function that makes `sums` the products of a warp's tile of rows, and returns the tile; -1 for another cut's warp."""
    sums_of_cut = sums_of_cut_of(fmt, n_tokens, AHEAD[n_tokens])

    @together
    def multiply_tile(w, block, matrix, x, rows, staged, sums):
        i, n_cuts = cuda.threadIdx.x % WARP, w.n_cuts
        warp = block * (cuda.blockDim.x // WARP) + cuda.threadIdx.x // WARP
        tile, cut = gpu.quotient(warp, n_cuts), gpu.remainder(warp, n_cuts)
        sums_of_cut(w, tile, cut, n_cuts, matrix, x, rows, i, sums)
        if n_cuts > 1:
            add_cuts(sums, staged, cut, n_cuts, n_tokens)
        if cut == 0:
            slice_sums(sums, n_tokens)
        return tile if cut == 0 else np.int32(-1)

    return multiply_tile


def _multiply(fmt, n_tokens):
    multiply_tile, n_staged, kind_of_rows = multiply_tile_of(fmt, n_tokens), MOST_STAGED * n_tokens, kind_of_rows_of(n_tokens)
    bring_tiles_near = bring_near_of(fmt)

    @kernel("j", MatrixArgs, SourceArgs, "fiiii", CombineArgs, "w", name=f"multiply_{fmt.name}_{n_tokens}")
    def multiply(inputs, w, x, y, stride, column, mode, which, combined, counters):
        """Y[t, column + row] = scale * (W x[t]) + bias, or that added; a warp takes a cut of four rows and `n_tokens` tokens.

        Or the last block that multiplies by some rows of all W adds up the products, token by token.

        Args:
            inputs: Of the pass. Of tiles: how many, then of each which of several matrices W, its first row of x, the one after
                its last; of routes the same, but rows of x are tokens, see `routes`.
            w: There are at most as many cuts as a block has warps.
            y, stride, column: Where to.
            combined: How rows of tokens are added up, and where they are with routes.
            counters: One for each block along the rows.
        """
        if which == OF_TOKENS and cuda.blockIdx.y == 0:
            n_tiles = gpu.quotient(cuda.blockDim.x // WARP, w.n_cuts)
            bring_tiles_near(w, cuda.blockIdx.x * n_tiles, n_tiles)
        gpu.wait_for_launch()
        matrix, t, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)
        if t >= n_wanted:  # most of a prompt has no logits
            return
        sums, rows = cuda.local.array(n_tokens, np.float32), cuda.local.array(n_tokens, kind_of_rows)
        list_rows(rows, n_tokens, inputs, which, combined.n_most, combined.k, t, n_wanted)
        staged = cuda.shared.array(n_staged, np.float32)
        tile = multiply_tile(w, cuda.blockIdx.x, matrix, x, rows, staged, sums)
        put_rows(sums, n_tokens, tile, w, matrix * w.n_rows, t, n_wanted, y, stride, column, mode)
        if mode == COMBINED and is_last_block(counters, cuda.blockIdx.x, inputs[0]):
            first, n = _rows_of_block(cuda.blockIdx.x, cuda.blockDim.x // WARP, w.n_cuts, w.n_rows)
            combine(inputs, y, stride, combined, first, n, cuda.threadIdx.x, cuda.blockDim.x)

    return multiply


MULTIPLY = {(name, n_tokens): _multiply(fmt, n_tokens) for name, fmt in FORMATS.items() for n_tokens in TILES}
"""Kernels by the weights' type, and how many tokens share a reading of them."""


GATED_WARPS = UNIT // TILE_ROWS  # of a block, which multiplies 32 rows of gate, then those of up


@lane
def _tile_of(warp, half, unit, size):
    """The tile of rows that a warp multiplies for a unit of `size` gates, or of the ups after them; -1 beyond them."""
    n_tiles, tile = size // TILE_ROWS, GATED_WARPS * unit + warp
    return np.int32(n_tiles * half + tile) if tile < n_tiles else np.int32(-1)


def _multiply_gated(fmt, n_tokens):
    sums_of_cut, n_staged = sums_of_cut_of(fmt, n_tokens, 1), 2 * UNIT * n_tokens
    bring_tiles_near, kind_of_rows = bring_near_of(fmt), kind_of_rows_of(n_tokens)
    name = f"multiply_{fmt.name}_gated_{n_tokens}"

    @kernel("j", MatrixArgs, SourceArgs, "iiii", GateArgs, TargetArgs, name=name)
    def multiply(inputs, w, x, column, which, n_most, per_token, params, to):
        """Activate gates, and multiply them with ups, as they are made; the upper half of the rows of W are gates.

        Without `has_up` all are gates. A warp takes four rows of each half and `n_tokens` tokens, a block a whole unit; rows
        are not cut. The products of several matrices for a token may be side by side: `column` is how many there are.

        Args:
            inputs, w, x: See `matmul`.
            n_most, per_token: Of routes, see `token_at`.
        """
        i, warp, unit = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP, cuda.blockIdx.x
        size = w.n_rows // (1 + params.has_up)
        if which == OF_TOKENS and cuda.blockIdx.y == 0:
            for half in range(1 + params.has_up):
                bring_tiles_near(w, size // TILE_ROWS * half + GATED_WARPS * unit, GATED_WARPS)
        gpu.wait_for_launch()
        matrix, t, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)
        if t >= n_wanted:
            return
        sums, rows = cuda.local.array(n_tokens, np.float32), cuda.local.array(n_tokens, kind_of_rows)
        list_rows(rows, n_tokens, inputs, which, n_most, per_token, t, n_wanted)
        staged = cuda.shared.array(n_staged, np.float32)
        for half in range(1 + params.has_up):
            tile = _tile_of(warp, half, unit, size)
            sums_of_cut(w, tile, 0, 1, matrix, x, rows, i, sums)
            slice_sums(sums, n_tokens)
            if tile >= 0:
                row, at = matrix * w.n_rows + TILE_ROWS * tile + i % TILE_ROWS, UNIT * half + TILE_ROWS * warp + i % TILE_ROWS
                for token in range(n_tokens):
                    if i // TILE_ROWS == token % TILE_UNITS:
                        staged[2 * UNIT * token + at] = product_of(sums[token], w, row)
        cuda.syncthreads()
        matrix, t, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)  # anew: to keep them takes registers
        place = matrix if column else t
        put_gated(staged, min(n_tokens, n_wanted - t), place, max(1, column), unit, size, params, to)

    return multiply


MULTIPLY_GATED = {(name, n_tokens): _multiply_gated(fmt, n_tokens) for name, fmt in FORMATS.items() for n_tokens in TILES}
"""Kernels by the weights' type, and how many tokens share a reading of them."""


MOST_REGISTERS = {4: 112, 8: 112}  # by tokens: so that 16 warps have room, where the compiler takes more for 8.0


def _multiply_two(fmt, other, n_tokens):
    sums_of_one, sums_of_other = (sums_of_cut_of(each, n_tokens, AHEAD[n_tokens]) for each in (fmt, other))
    bring_one_near, bring_other_near, n_staged = bring_near_of(fmt), bring_near_of(other), MOST_STAGED * n_tokens
    name, most_registers = f"multiply_{fmt.name}_{other.name}_{n_tokens}", MOST_REGISTERS.get(n_tokens)

    @kernel("j", SourceArgs, "ii", *2 * (MatrixArgs, "f"), name=name, most_registers=most_registers)
    def multiply_two(inputs, x, stride, n_blocks, w, y, other_w, other_y):
        """Multiply the same rows by two matrices of different types, as `multiply` does, one after the other.

        The first `n_blocks` blocks multiply by W, the others by the other matrix; rows of products, which begin with y and
        `other_y`, are as far apart.
        """
        t, block, is_other = cuda.blockIdx.y * n_tokens, cuda.blockIdx.x, cuda.blockIdx.x >= n_blocks
        words, bias, n_rows, n_units, n_steps, n, n_cuts, has_bias, scale = w
        if is_other:
            words, bias, n_rows, _, _, n, n_cuts, has_bias, scale = other_w  # whose rows are as long
            block, y = block - n_blocks, other_y
        own = MatrixArgs(words, bias, n_rows, n_units, n_steps, n, n_cuts, has_bias, scale)
        if cuda.blockIdx.y == 0:
            n_tiles = gpu.quotient(cuda.blockDim.x // WARP, n_cuts)
            if is_other:
                bring_other_near(own, block * n_tiles, n_tiles)
            else:
                bring_one_near(own, block * n_tiles, n_tiles)
        gpu.wait_for_launch()
        if t >= inputs[N_TOKENS]:
            return
        i = cuda.threadIdx.x % WARP
        warp = block * (cuda.blockDim.x // WARP) + cuda.threadIdx.x // WARP
        tile, cut = gpu.quotient(warp, n_cuts), gpu.remainder(warp, n_cuts)
        sums, rows = cuda.local.array(n_tokens, np.float32), cuda.local.array(n_tokens, np.int64)
        for token in range(n_tokens):
            rows[token] = t + token
        if is_other:
            sums_of_other(own, tile, cut, n_cuts, 0, x, rows, i, sums)
        else:
            sums_of_one(own, tile, cut, n_cuts, 0, x, rows, i, sums)
        staged = cuda.shared.array(n_staged, np.float32)
        if n_cuts > 1:
            add_cuts(sums, staged, cut, n_cuts, n_tokens)
        if cut > 0:
            return
        slice_sums(sums, n_tokens)
        put_rows(sums, n_tokens, tile, own, 0, t, inputs[N_TOKENS], y, stride, 0, STORE)

    return multiply_two


MULTIPLY_TWO = {
    (name, other, n_tokens): _multiply_two(FORMATS[name], FORMATS[other], n_tokens)
    for name, other in (
        *(("Q4_K", "Q6_K"), ("Q5_K", "Q6_K"), ("Q4_K", "Q5_K")),
        *(("Q3_K", "Q5_K"), ("Q3_K", "Q4_K"), ("IQ4_XS", "Q5_K")),
    )
    for n_tokens in TILES
}
"""Kernels for two matrices, by their types and tokens: for q and k, and v, as files of type Q4_K_M and the like have them."""
