"""Launches of products: which kernel multiplies by a matrix, in which blocks, and its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from augury.backends.numba_cuda.device import Arguments, Launch, Pointer
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.formats import UNIT
from augury.backends.numba_cuda.kernels.halves import halve_rows, slices_of
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS
from augury.backends.numba_cuda.kernels.instructions import SIMULATED
from augury.backends.numba_cuda.kernels.matmul import (
    GATED_WARPS,
    MOST_CUTS,
    MULTIPLY,
    MULTIPLY_GATED,
    MULTIPLY_TWO,
    OF_ROUTES,
    OF_TILES,
)
from augury.backends.numba_cuda.kernels.routes import CombineArgs
from augury.backends.numba_cuda.kernels.stream import MULTIPLY_HALVES, STREAM_TILES, TILES_AT_ONCE
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import (
    MATRIX_ROWS,
    MATRIX_THREADS,
    MATRIX_TILE,
    MATRIX_TILES,
    MULTIPLY_MATRIX,
)
from augury.backends.numba_cuda.rows import DeviceRows, Operand, Tiles, units_of
from augury.backends.numba_cuda.weights import Matrix

_BLOCKS_ENOUGH = 132  # as an H100 or H200 has multiprocessors
_BLOCKS_AT_ONCE = 3 * _BLOCKS_ENOUGH  # whose warps ask for enough bytes at once
_MOST_TILES, _NEAREST_BYTES = 8, 128 << 10  # tiles; of a cache for each multiprocessor, which has more
SPLIT_BUFFERS = {  # of products whose cuts have blocks of their own: of fewer blocks than enough, with 16 tokens
    "parts of products": 4 * _BLOCKS_ENOUGH * MOST_CUTS * MATRIX_THREADS * MATRIX_TILE // 2,
    "counters": 4 * _BLOCKS_ENOUGH,
}
WARPS = 1 if SIMULATED else 4  # of a block whose warps work each for itself


def tile_of(matrix: Matrix, n_tokens: int, *, is_output: bool = False) -> int:
    """How many tokens share a reading of weights: as many as there are, unless there would be few blocks."""
    if matrix.is_halved:
        return _stream_tile_of(matrix, n_tokens)
    if matrix.format.is_float or n_tokens <= FEW_TOKENS:
        return next((each for each in TILES if each >= n_tokens), TILES[-1])
    if is_output:  # few tokens have logits, as a rule
        return MATRIX_TILE
    n_blocks = -(-matrix.n_rows // MATRIX_ROWS)
    fitting = (tile for tile in MATRIX_TILES if tile < 2 * n_tokens and n_blocks * -(-n_tokens // tile) >= _BLOCKS_ENOUGH)
    return max(fitting, default=MATRIX_TILE)


def _stream_tile_of(matrix: Matrix, n_tokens: int) -> int:
    """Likewise of weights that are multiplied as halves."""
    most = stream_tile(n_tokens)
    fitting = (
        tile
        for tile in STREAM_TILES
        if MATRIX_TILE <= tile <= most and -(-matrix.n_tiles // TILES_AT_ONCE[tile]) * -(-n_tokens // tile) >= _BLOCKS_ENOUGH
    )
    return max(fitting, default=min(most, MATRIX_TILE))


def stream_tile(n_tokens: int) -> int:
    """How many tokens may share a reading of weights that are multiplied as halves."""
    return next((each for each in STREAM_TILES if each >= n_tokens), STREAM_TILES[-1])


def launch_of_halving(matrix: Matrix, x: Operand, tiles: Tiles, which: int) -> Launch:
    """The kernel that makes halves of rows for products with a matrix, and others of as many columns."""
    n_steps, n_of_slice, n_slices = slices_of(matrix.n_cols)
    given: Arguments = {
        "x": x.floats,
        "to": x.as_halves(tiles.n_places),
        "width": x.width,
        "size": UNIT * units_of(matrix.n_cols),
    }
    given |= {"n_steps": n_steps, "n_of_slice": n_of_slice, "which": which, "n_tokens": tiles.n_rows}
    given |= {"n_most": tiles.n_most, "per_token": tiles.per_token}
    return Launch.of(halve_rows, (tiles.n_rows, tiles.n), WARP * n_slices, tiles.at, **given)


def launch_of_halves(matrix: Matrix, x: Operand, to: DeviceRows, column: int, tiles: Tiles, mode: int, which: int) -> Launch:
    """The kernel of one matrix and rows that are halves; see `kernels.stream`."""
    kernel = MULTIPLY_HALVES[matrix.format.name, stream_tile(tiles.n_rows)]
    given: Arguments = {
        "w": matrix.arguments,
        "x": x.as_halves(tiles.n_places),
        "y": to.at,
        "stride": to.width,
        "column": column,
    }
    given |= {"mode": mode, "which": OF_TILES if which == OF_ROUTES else which}
    n_of_block, n_slices = _tiles_of_block(matrix, tiles), slices_of(matrix.n_cols)[2]
    grid = (-(-matrix.n_tiles // n_of_block), tiles.n)
    return Launch.of(kernel, grid, WARP * n_slices, tiles.at, **given, n_of_block=n_of_block)


def _tiles_of_block(matrix: Matrix, tiles: Tiles) -> int:
    """How many tiles of rows a block takes: of few tokens as many in turn as leave enough blocks, of many those at once."""
    tile = stream_tile(tiles.n_rows)
    if TILES_AT_ONCE[tile] > 1 or 2 * tile * matrix.n_cols > _NEAREST_BYTES:
        return TILES_AT_ONCE[tile]
    return max(1, min(_MOST_TILES, matrix.n_tiles * tiles.n // _BLOCKS_AT_ONCE))


def launch_of(
    matrix: Matrix, x: Operand, to: DeviceRows, column: int, tiles: Tiles, mode: int, which: int, more: Arguments | None = None
) -> Launch:
    """The kernel of one matrix; see `kernels.matmul`, and of `more`, where products are combined, `kernels.routes`."""
    if matrix.is_halved:
        return launch_of_halves(matrix, x, to, column, tiles, mode, which)
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
    if first.is_halved or other.is_halved:
        return None
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
