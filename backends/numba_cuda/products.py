"""Launches of products: which kernel multiplies by a matrix, in which blocks, and what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.formats import UNIT
from augury.backends.numba_cuda.kernels.gate import GATED_WARPS
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS
from augury.backends.numba_cuda.kernels.instructions import SIMULATED
from augury.backends.numba_cuda.kernels.matmul import GATED, HAS_BIAS, HAS_SCALES, MULTIPLY
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import MATRIX_ROWS, MATRIX_THREADS, MATRIX_TILES, MULTIPLY_MATRIX
from augury.backends.numba_cuda.kernels.two_matrices import MULTIPLY_TWO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cuda.device import Arguments, Pointer
    from augury.backends.numba_cuda.rows import Operand, Rows, Tiles
    from augury.backends.numba_cuda.weights import Matrix

__all__ = ["WARPS", "launch_of", "launch_of_two", "tile_of"]

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
    n_gated: int = 1,
) -> Launch:
    """What multiplies by one matrix, and more where products are gated or combined; see `kernels.matmul`."""
    if not tiles.n_apart:
        n_warps, n_wanted = max(WARPS, matrix.n_cuts), matrix.n_tiles * matrix.n_cuts
        if mode == GATED:
            n_warps = GATED_WARPS * n_gated
            n_wanted = n_warps * -(-matrix.n_rows // n_gated // UNIT)
        kernel, n_blocks, n_threads = MULTIPLY[matrix.format.name, tiles.n_rows], -(-n_wanted // n_warps), WARP * n_warps
        more = {"n_most": tiles.n_most, "per_token": tiles.per_token, **(more or {})}
    else:
        kernel, n_threads = MULTIPLY_MATRIX[matrix.format.name, tiles.n_rows], MATRIX_THREADS
        n_blocks, more = -(-matrix.n_rows // MATRIX_ROWS), {"n_apart": tiles.n_apart}
    if matrix.bias is not None:
        more |= {"bias": matrix.bias, "has_bias": HAS_SCALES if matrix.has_scales else HAS_BIAS}
    places = {"w": matrix.words, "factors": x.factors, "halves": x.sums, "y": to.at}
    places["x"] = x.floats if matrix.format.is_float else x.quantised
    sizes = {"n_rows": matrix.n_rows, "n_units": matrix.n_units, "n_steps": matrix.n_steps, "n": matrix.n}
    rest = {"n_cuts": matrix.n_cuts, "stride": to.width, "column": column, "scale": matrix.scale}
    how = {"mode": mode, "which": which}
    return Launch.of(kernel, (n_blocks, tiles.n), n_threads, tiles.at, **places, **sizes, **rest, **how, **more)


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
