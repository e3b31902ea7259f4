"""Rows of a pass, and the launches that multiply them: which kernel multiplies by a matrix, in which blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve, frozen

from augury.backends.numba_cuda.device import Arguments, Launch, Pointer
from augury.backends.numba_cuda.kernels import matmul
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.formats import UNIT
from augury.backends.numba_cuda.kernels.halves import GROUP, STEP, RowsArgs, halve_rows, slices_of
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS, MAX_TOKENS
from augury.backends.numba_cuda.kernels.instructions import SIMULATED
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.routes import CombineArgs
from augury.backends.numba_cuda.kernels.stream import MULTIPLY_HALVES, STREAM_TILES, TILES_AT_ONCE
from augury.backends.numba_cuda.kernels.sums import TILES, SourceArgs
from augury.backends.numba_cuda.kernels.tensor_cores import (
    MATRIX_ROWS,
    MATRIX_THREADS,
    MATRIX_TILE,
    MATRIX_TILES,
    MULTIPLY_MATRIX,
)
from augury.backends.numba_cuda.weights import Matrix
from augury.blocks import Norm

_BLOCKS_ENOUGH = 132  # as an H100 or H200 has multiprocessors
_BLOCKS_AT_ONCE = 3 * _BLOCKS_ENOUGH  # whose warps ask for enough bytes at once
_MOST_TILES, _NEAREST_BYTES = 8, 128 << 10  # tiles; of a cache for each multiprocessor, which has more
SPLIT_BUFFERS = {  # of products whose cuts have blocks of their own: of fewer blocks than enough, with 16 tokens
    "parts of products": 4 * _BLOCKS_ENOUGH * matmul.MOST_CUTS * MATRIX_THREADS * MATRIX_TILE // 2,
    "counters": 4 * _BLOCKS_ENOUGH,
}
WARPS = 1 if SIMULATED else 4  # of a block whose warps work each for itself


def halves_bytes(width: int) -> int:
    """Bytes of as many halves in whole steps, see `kernels.halves`."""
    return 2 * STEP * -(-width // STEP)


def units_of(n: int) -> int:
    """How many units hold so many values."""
    return -(-n // UNIT)


@frozen(eq=False)
class DeviceRows:
    """Rows of floats, one per token."""

    at: Pointer
    width: int

    @property
    def operand(self) -> Operand:
        """These as rows of floats that norms and products read and write."""
        at = self.at
        return Operand(at, at, at, at, at, self.width, as_floats=True)


@frozen(eq=False)
class Operand:
    """Rows that matrices are multiplied with, (n, width): floats, units of bytes with factors and sums, or both."""

    floats: Pointer
    quantised: Pointer
    factors: Pointer
    sums: Pointer
    halves: Pointer
    width: int  # in whole units
    as_floats: bool = False
    as_bytes: bool = False
    is_halved: bool = False  # the norm that makes it has made halves, too

    @property
    def target(self) -> Any:
        """The arguments of kernels that write it."""
        places = (self.floats, self.factors, self.sums, self.quantised, self.halves)
        return TargetArgs(*places, self.width, self.as_floats, self.as_bytes)

    def source(self, *, is_float: bool) -> Any:
        """The arguments of kernels that multiply it with weights that are floats, or with others."""
        return SourceArgs(self.floats if is_float else self.quantised, self.factors, self.sums, self.halves)

    def as_halves(self, n_rows: int) -> Any:
        """The arguments of kernels that make halves of so many rows, in place of bytes and factors, or multiply these."""
        assert self.quantised is not self.floats, "rows that have no room for halves"
        return RowsArgs(self.quantised, self.factors, -(-n_rows // GROUP))

    def after(self, n: int) -> Operand:
        """The memory after n whole rows."""
        size, n_units = n * self.width, n * self.width // UNIT
        factors, sums, halves = self.factors.at(4 * n_units), self.sums.at(4 * n_units), self.halves.at(8 * n_units)
        floats, quantised = self.floats.at(4 * size), self.quantised.at(size)
        return evolve(self, floats=floats, quantised=quantised, factors=factors, sums=sums, halves=halves)

    def before(self, norm: Norm | None) -> Operand:
        """The form to write where a norm comes in between, if one does."""
        return self if norm is None else evolve(self, as_floats=True, as_bytes=False)


@frozen(eq=False)
class Tiles:
    """Which rows go through which of several matrices, a few at once; see `kernels.matmul`, and of routes `kernels.routes`."""

    at: Pointer
    n: int  # at most
    n_rows: int  # of one
    n_most: int = 0  # rows that routes have room for
    per_token: int = 0  # rows of routes that a token has
    which: int = matmul.OF_TILES

    @property
    def n_places(self) -> int:
        """How many rows have room, of all tiles: as many whatever the tiles' sizes."""
        n = self.n * self.n_rows
        whole = next((each for each in STREAM_TILES if each >= n), STREAM_TILES[-1])
        return self.n_most or -(-n // whole) * whole

    @property
    def n_apart(self) -> int:
        """How many rows' units for the same weights are neighbours, as tensor cores read them; 0: a row's units are."""
        return (self.n_most or MAX_TOKENS) if self.n_rows > TILES[-1] else 0


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
    most, least = stream_tile(n_tokens), min(stream_tile(n_tokens), MATRIX_TILE)
    n_blocks = {tile: -(-matrix.n_tiles // n) * -(-n_tokens // tile) for tile, n in TILES_AT_ONCE.items()}
    return max((tile for tile, n in n_blocks.items() if least < tile <= most and n >= _BLOCKS_ENOUGH), default=least)


def stream_tile(n_tokens: int) -> int:
    """How many tokens may share a reading of weights that are multiplied as halves."""
    return next((each for each in STREAM_TILES if each >= n_tokens), STREAM_TILES[-1])


def launch_of_halving(matrix: Matrix, x: Operand, tiles: Tiles) -> Launch:
    """The kernel that makes halves of rows for products with a matrix, and others of as many columns."""
    n_steps, n_of_slice, n_slices = slices_of(matrix.n_cols)
    given: Arguments = {"x": x.floats, "width": x.width, "size": UNIT * units_of(matrix.n_cols)}
    given["to"] = x.as_halves(tiles.n_places)
    given |= {"n_steps": n_steps, "n_of_slice": n_of_slice, "which": tiles.which, "n_tokens": tiles.n_rows}
    given |= {"n_most": tiles.n_most, "per_token": tiles.per_token}
    return Launch.of(halve_rows, (tiles.n_rows, tiles.n), WARP * n_slices, tiles.at, **given)


def launch_of_halves(matrix: Matrix, x: Operand, to: DeviceRows, column: int, tiles: Tiles, mode: int) -> Launch:
    """The kernel of one matrix and rows that are halves; see `kernels.stream`."""
    kernel = MULTIPLY_HALVES[matrix.format.name, stream_tile(tiles.n_rows)]
    given: Arguments = {"w": matrix.arguments, "x": x.as_halves(tiles.n_places), "y": to.at, "stride": to.width}
    given |= {"column": column, "mode": mode, "which": matmul.OF_TILES if tiles.which == matmul.OF_ROUTES else tiles.which}
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
    matrix: Matrix,
    x: Operand,
    to: DeviceRows,
    column: int,
    tiles: Tiles,
    mode: int = matmul.STORE,
    more: Arguments | None = None,
) -> Launch:
    """The kernel of one matrix; see `kernels.matmul`, and of `more`, where products are combined, `kernels.routes`."""
    if matrix.is_halved:
        return launch_of_halves(matrix, x, to, column, tiles, mode)
    given: Arguments = {"w": matrix.arguments, "x": x.source(is_float=matrix.format.is_float)}
    given |= {"y": to.at, "stride": to.width, "column": column, "mode": mode, "which": tiles.which}
    if tiles.n_apart:
        kernel, grid = MULTIPLY_MATRIX[matrix.format.name, tiles.n_rows], (-(-matrix.n_rows // MATRIX_ROWS), tiles.n)
        given["n_apart"], n_split = tiles.n_apart, 1
        if more is not None and tiles.n_rows == MATRIX_TILE and grid[0] * tiles.n < _BLOCKS_ENOUGH and matrix.n_cuts > 1:
            given, n_split = given | more | {"is_split": True}, matrix.n_cuts
        return Launch.of(kernel, (*grid, n_split), MATRIX_THREADS, tiles.at, **given)
    n_warps = max(WARPS, matrix.n_cuts)
    kernel, grid = matmul.MULTIPLY[matrix.format.name, tiles.n_rows], (-(-matrix.n_tiles * matrix.n_cuts // n_warps), tiles.n)
    given |= {"combined": CombineArgs(n_most=tiles.n_most, k=tiles.per_token), **(more or {})}
    return Launch.of(kernel, grid, WARP * n_warps, tiles.at, **given)


def launch_of_gated(matrix: Matrix, x: Operand, to: Any, column: int, tiles: Tiles, params: Any, n_gated: int = 1) -> Launch:
    """The kernel of gate, and up below it if `n_gated` is 2, with their activation; see `kernels.matmul`."""
    kernel, grid = matmul.MULTIPLY_GATED[matrix.format.name, tiles.n_rows], (-(-matrix.n_rows // n_gated // UNIT), tiles.n)
    given: Arguments = {"w": matrix.arguments, "x": x.source(is_float=matrix.format.is_float), "params": params, "to": to}
    given |= {"column": column, "which": tiles.which, "n_most": tiles.n_most, "per_token": tiles.per_token}
    return Launch.of(kernel, grid, WARP * matmul.GATED_WARPS, tiles.at, **given)


def launch_of_two(
    inputs: Pointer, n_tokens: int, x: Operand, products: Sequence[tuple[Matrix, int]], to: DeviceRows
) -> Launch | None:
    """The kernel of few tokens and two matrices, each with the column of its products, if there is one for their types."""
    (first, column), (other, other_column) = products
    if first.is_halved or other.is_halved:
        return None
    tile = tile_of(first, n_tokens)
    kernel = matmul.MULTIPLY_TWO.get((first.format.name, other.format.name, tile))
    if kernel is None or n_tokens > FEW_TOKENS:
        return None
    n_warps = max(WARPS, first.n_cuts, other.n_cuts)
    n_blocks = [-(-matrix.n_tiles * matrix.n_cuts // n_warps) for matrix in (first, other)]
    given: Arguments = {"x": x.source(is_float=False), "stride": to.width, "n_blocks": n_blocks[0]}
    given |= {"w": first.arguments, "y": to.at.at(4 * column)}
    given |= {"other_w": other.arguments, "other_y": to.at.at(4 * other_column)}
    return Launch.of(kernel, (sum(n_blocks), -(-n_tokens // tile)), WARP * n_warps, inputs, **given)
