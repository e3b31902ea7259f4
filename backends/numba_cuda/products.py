"""Launches of products: which kernel multiplies by a matrix, in which blocks, and what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.formats import UNIT
from augury.backends.numba_cuda.kernels.gate import GATED_WARPS
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS
from augury.backends.numba_cuda.kernels.instructions import SIMULATED
from augury.backends.numba_cuda.kernels.matmul import GATED, HAS_BIAS, HAS_SCALES, MULTIPLY, NOT_COMBINED, NOT_GATED
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import MATRIX_ROWS, MATRIX_THREADS, MATRIX_TILES, MULTIPLY_MATRIX
from augury.backends.numba_cuda.kernels.two_matrices import MULTIPLY_TWO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cuda.device import Pointer
    from augury.backends.numba_cuda.rows import Operand, Rows, Tiles
    from augury.backends.numba_cuda.weights import Matrix

__all__ = ["WARPS", "launch_of", "launch_of_two", "tile_of"]

_BLOCKS_ENOUGH = 132  # as an H100 or H200 has multiprocessors
WARPS = 1 if SIMULATED else 4  # of a block whose warps work each for itself


def tile_of(matrix: Matrix, n_tokens: int, *, is_output: bool = False) -> int:
    """How many tokens share a reading of weights: as many as there are, unless there would be few blocks."""
    if matrix.format.is_float or n_tokens <= FEW_TOKENS:
        return next((each for each in TILES if each >= n_tokens), TILES[-1])
    tiles, n_blocks = MATRIX_TILES[matrix.format.name], -(-matrix.n_rows // MATRIX_ROWS)
    if is_output:  # few tokens have logits, as a rule
        return tiles[0]
    fitting = [tile for tile in tiles if tile < 2 * n_tokens and n_blocks * -(-n_tokens // tile) >= _BLOCKS_ENOUGH]
    return max(fitting, default=tiles[0])


def launch_of(
    matrix: Matrix,
    x: Operand,
    to: Rows,
    column: int,
    tiles: Tiles,
    mode: int,
    which: int,
    gated: tuple[Pointer | float, ...] = (),
    n_gated: int = 1,
    combined: tuple[Pointer | float, ...] = (),
) -> Launch:
    """What multiplies by one matrix; see `kernels.matmul`."""
    more: tuple[Pointer | float, ...] = (tiles.n_apart,)
    if not tiles.n_apart:
        n_warps, n_wanted = max(WARPS, matrix.n_cuts), matrix.n_tiles * matrix.n_cuts
        if mode == GATED:
            n_warps = GATED_WARPS * n_gated
            n_wanted = n_warps * -(-matrix.n_rows // n_gated // UNIT)
        kernel, n_blocks, n_threads = MULTIPLY[matrix.format.name, tiles.n_rows], -(-n_wanted // n_warps), WARP * n_warps
        more = gated or (to.at, to.at, to.at, *NOT_GATED)
        more += combined or (to.at, to.at, to.at, to.at, tiles.n_most, tiles.per_token, *NOT_COMBINED[2:])
    else:
        kernel, n_threads = MULTIPLY_MATRIX[matrix.format.name, tiles.n_rows], MATRIX_THREADS
        n_blocks = -(-matrix.n_rows // MATRIX_ROWS)
    rows = x.floats if matrix.format.is_float else x.quantised
    places = (tiles.at, matrix.words, rows, x.factors, x.sums, matrix.bias or to.at, to.at)
    sizes = (matrix.n_rows, matrix.n_units, matrix.n_steps, matrix.n, matrix.n_cuts, to.width, column)
    flags = (0 if matrix.bias is None else HAS_SCALES if matrix.has_scales else HAS_BIAS, mode, which)
    return Launch(kernel, (n_blocks, tiles.n, 1), n_threads, (*places, *sizes, *flags, matrix.scale, *more))


def launch_of_two(
    inputs: Pointer, n_tokens: int, x: Operand, products: Sequence[tuple[Matrix, int]], to: Rows
) -> Launch | None:
    """What multiplies few tokens by two matrices, each with the column of its products, if a kernel has their types."""
    (first, _), (other, _) = products
    tile = tile_of(first, n_tokens)
    kernel = MULTIPLY_TWO.get((first.format.name, other.format.name, tile))
    if kernel is None or n_tokens > FEW_TOKENS:
        return None
    n_warps = max(WARPS, *(matrix.n_cuts for matrix, _ in products))
    n_blocks = [-(-matrix.n_tiles * matrix.n_cuts // n_warps) for matrix, _ in products]
    given: list[Pointer | float] = [inputs, x.quantised, x.factors, x.sums, first.n_units, first.n_steps, to.width, n_blocks[0]]
    for matrix, column in products:
        given += [matrix.words, matrix.bias or to.at, to.at.at(4 * column), matrix.n_rows, matrix.n, matrix.n_cuts]
        given += [0 if matrix.bias is None else HAS_BIAS, matrix.scale]
    return Launch(kernel, (sum(n_blocks), -(-n_tokens // tile), 1), WARP * n_warps, tuple(given))
