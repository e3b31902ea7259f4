"""Launches of products: which kernel multiplies by a matrix, in which blocks, and what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.formats import UNIT
from augury.backends.numba_cuda.kernels.gated_matmul import GATED_WARPS, MULTIPLY_GATED
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS
from augury.backends.numba_cuda.kernels.instructions import SIMULATED
from augury.backends.numba_cuda.kernels.matmul import HAS_BIAS, HAS_SCALES, MULTIPLY
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import (
    MATRIX_ROWS,
    MATRIX_THREADS,
    MATRIX_TILES,
    MULTIPLY_MATRIX,
)
from augury.backends.numba_cuda.kernels.two_matrices import MULTIPLY_TWO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cuda.device import Arguments, Pointer
    from augury.backends.numba_cuda.rows import Operand, Rows, Tiles
    from augury.backends.numba_cuda.weights import Matrix

__all__ = ["WARPS", "launch_of", "launch_of_gated", "launch_of_two", "tile_of"]

_BLOCKS_ENOUGH = 132  # as an H100 or H200 has multiprocessors
_NAMES_OF_TWO = (
    ("w", "y", "n_rows", "n", "n_cuts", "scale", "bias", "has_bias"),
    ("other_w", "other_y", "other_rows", "other_n", "other_cuts", "other_scale", "other_bias", "other_has_bias"),
)
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
    more: Arguments | None = None,
) -> Launch:
    """What multiplies by one matrix, and more where products are combined; see `kernels.matmul`."""
    given = _arguments(matrix, x, to, column, which) | {"mode": mode, "n_cuts": matrix.n_cuts, **(more or {})}
    if tiles.n_apart:
        kernel, grid = MULTIPLY_MATRIX[matrix.format.name, tiles.n_rows], (-(-matrix.n_rows // MATRIX_ROWS), tiles.n)
        return Launch.of(kernel, grid, MATRIX_THREADS, tiles.at, n_apart=tiles.n_apart, **given)
    n_warps = max(WARPS, matrix.n_cuts)
    kernel, grid = MULTIPLY[matrix.format.name, tiles.n_rows], (-(-matrix.n_tiles * matrix.n_cuts // n_warps), tiles.n)
    given = {"n_most": tiles.n_most, "per_token": tiles.per_token} | given
    return Launch.of(kernel, grid, WARP * n_warps, tiles.at, **given)


def launch_of_gated(
    matrix: Matrix, x: Operand, to: Rows, column: int, tiles: Tiles, which: int, gated: Arguments, n_gated: int = 1
) -> Launch:
    """What multiplies by gate, and up below it if `n_gated` is 2, and activates the products; see `kernels.gated_matmul`."""
    kernel, grid = MULTIPLY_GATED[matrix.format.name, tiles.n_rows], (-(-matrix.n_rows // n_gated // UNIT), tiles.n)
    given = _arguments(matrix, x, to, column, which) | {"n_most": tiles.n_most, "per_token": tiles.per_token, **gated}
    return Launch.of(kernel, grid, WARP * GATED_WARPS, tiles.at, **given)


def _arguments(matrix: Matrix, x: Operand, to: Rows, column: int, which: int) -> Arguments:
    """What all kernels that multiply by one matrix are told."""
    given: Arguments = {"w": matrix.words, "factors": x.factors, "halves": x.sums, "y": to.at}
    given |= {"x": x.floats if matrix.format.is_float else x.quantised, "n": matrix.n, "scale": matrix.scale}
    given |= {"n_rows": matrix.n_rows, "n_units": matrix.n_units, "n_steps": matrix.n_steps}
    given |= {"stride": to.width, "column": column, "which": which}
    if matrix.bias is not None:
        given |= {"bias": matrix.bias, "has_bias": HAS_SCALES if matrix.has_scales else HAS_BIAS}
    return given


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
    given: Arguments = {"x": x.quantised, "factors": x.factors, "halves": x.sums, "stride": to.width}
    given |= {"n_units": first.n_units, "n_steps": first.n_steps, "n_blocks": n_blocks[0]}
    for (matrix, column), names in zip(products, _NAMES_OF_TWO, strict=True):
        bias = (matrix.bias or to.at, 0 if matrix.bias is None else HAS_BIAS)
        values = (matrix.words, to.at.at(4 * column), matrix.n_rows, matrix.n, matrix.n_cuts, matrix.scale, *bias)
        given |= zip(names, values, strict=True)
    return Launch.of(kernel, (sum(n_blocks), -(-n_tokens // tile)), WARP * n_warps, inputs, **given)
