"""Launches of products: which kernel multiplies by a matrix, in which blocks, and its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from augury.backends.numba_cuda.device import Arguments, Launch, Pointer
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.formats import UNIT
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS
from augury.backends.numba_cuda.kernels.instructions import SIMULATED
from augury.backends.numba_cuda.kernels.matmul import GATED_WARPS, MOST_CUTS, MULTIPLY, MULTIPLY_GATED, MULTIPLY_TWO
from augury.backends.numba_cuda.kernels.routes import CombineArgs
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import (
    MATRIX_ROWS,
    MATRIX_THREADS,
    MATRIX_TILE,
    MATRIX_TILES,
    MULTIPLY_MATRIX,
)
from augury.backends.numba_cuda.rows import DeviceRows, Operand, Tiles
from augury.backends.numba_cuda.weights import Matrix

_BLOCKS_ENOUGH = 132  # as an H100 or H200 has multiprocessors
SPLIT_BUFFERS = {  # of products whose cuts have blocks of their own: of fewer blocks than enough, with 16 tokens
    "parts of products": 4 * _BLOCKS_ENOUGH * MOST_CUTS * MATRIX_THREADS * MATRIX_TILE // 2,
    "counters": 4 * _BLOCKS_ENOUGH,
}
WARPS = 1 if SIMULATED else 4  # of a block whose warps work each for itself


def tile_of(matrix: Matrix, n_tokens: int, *, is_output: bool = False) -> int:
    """How many tokens share a reading of weights: as many as there are, unless there would be few blocks."""
    if matrix.format.is_float or n_tokens <= FEW_TOKENS:
        return next((each for each in TILES if each >= n_tokens), TILES[-1])
    if is_output:  # few tokens have logits, as a rule
        return MATRIX_TILE
    n_blocks = -(-matrix.n_rows // MATRIX_ROWS)
    fitting = (tile for tile in MATRIX_TILES if tile < 2 * n_tokens and n_blocks * -(-n_tokens // tile) >= _BLOCKS_ENOUGH)
    return max(fitting, default=MATRIX_TILE)


def launch_of(
    matrix: Matrix, x: Operand, to: DeviceRows, column: int, tiles: Tiles, mode: int, which: int, more: Arguments | None = None
) -> Launch:
    """The kernel of one matrix; see `kernels.matmul`, and of `more`, where products are combined, `kernels.routes`."""
    given: Arguments = {"w": matrix.arguments, "x": x.source(is_float=matrix.format.is_float)}
    given |= {"y": to.at, "stride": to.width, "column": column, "mode": mode, "which": which}
    if tiles.n_apart:
        kernel, grid = MULTIPLY_MATRIX[matrix.format.name, tiles.n_rows], (-(-matrix.n_rows // MATRIX_ROWS), tiles.n)
        given["n_apart"], n_split = tiles.n_apart, 1
        if more is not None and tiles.n_rows == MATRIX_TILE and grid[0] * tiles.n < _BLOCKS_ENOUGH and matrix.n_cuts > 1:
            given, n_split = given | more | {"is_split": True}, matrix.n_cuts
        return Launch.of(kernel, (*grid, n_split), MATRIX_THREADS, tiles.at, **given)
    n_warps = max(WARPS, matrix.n_cuts)
    kernel, grid = MULTIPLY[matrix.format.name, tiles.n_rows], (-(-matrix.n_tiles * matrix.n_cuts // n_warps), tiles.n)
    given |= {"combined": CombineArgs(n_most=tiles.n_most, k=tiles.per_token), **(more or {})}
    return Launch.of(kernel, grid, WARP * n_warps, tiles.at, **given)


def launch_of_gated(
    matrix: Matrix, x: Operand, to: Any, column: int, tiles: Tiles, which: int, params: Any, n_gated: int = 1
) -> Launch:
    """The kernel of gate, and up below it if `n_gated` is 2, with their activation; see `kernels.matmul`."""
    kernel, grid = MULTIPLY_GATED[matrix.format.name, tiles.n_rows], (-(-matrix.n_rows // n_gated // UNIT), tiles.n)
    given: Arguments = {"w": matrix.arguments, "x": x.source(is_float=matrix.format.is_float), "params": params, "to": to}
    given |= {"column": column, "which": which, "n_most": tiles.n_most, "per_token": tiles.per_token}
    return Launch.of(kernel, grid, WARP * GATED_WARPS, tiles.at, **given)


def launch_of_two(
    inputs: Pointer, n_tokens: int, x: Operand, products: Sequence[tuple[Matrix, int]], to: DeviceRows
) -> Launch | None:
    """The kernel of few tokens and two matrices, each with the column of its products, if there is one for their types."""
    (first, column), (other, other_column) = products
    tile = tile_of(first, n_tokens)
    kernel = MULTIPLY_TWO.get((first.format.name, other.format.name, tile))
    if kernel is None or n_tokens > FEW_TOKENS:
        return None
    n_warps = max(WARPS, first.n_cuts, other.n_cuts)
    n_blocks = [-(-matrix.n_tiles * matrix.n_cuts // n_warps) for matrix in (first, other)]
    given: Arguments = {"x": x.source(is_float=False), "stride": to.width, "n_blocks": n_blocks[0]}
    given |= {"w": first.arguments, "y": to.at.at(4 * column)}
    given |= {"other_w": other.arguments, "other_y": to.at.at(4 * other_column)}
    return Launch.of(kernel, (sum(n_blocks), -(-n_tokens // tile)), WARP * n_warps, inputs, **given)
