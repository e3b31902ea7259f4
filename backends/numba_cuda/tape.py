"""What blocks write a program's steps on, and the rows that the steps work in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.backends.numba_cuda.device import Copy, Launch, Pointer
from augury.backends.numba_cuda.kernels.dialect import SIMULATED, THREADS, WARP
from augury.backends.numba_cuda.kernels.formats import TILE_ROWS, UNIT
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.matmul import (
    ADD,
    HAS_BIAS,
    HAS_SCALES,
    MULTIPLY,
    OF_OUTPUT,
    OF_TILES,
    OF_TOKENS,
    STORE,
    TILES,
)
from augury.backends.numba_cuda.kernels.norm import norm_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cuda.kernels.dialect import Kernel
    from augury.backends.numba_cuda.weights import Matrix, Weights
    from augury.blocks import Linear, Matrices, Norm

__all__ = ["Operand", "Rows", "Size", "Tape", "Tiles", "tokens_of", "units_of", "warps_of"]

_MOST_SPLITS = 128  # of as many tokens as a pass may have, for a context of 32,768; of more positions fewer tokens
_OPERAND = ("floats", "bytes", "factors", "sums")
WARPS = 1 if SIMULATED else 4  # of a block whose warps work each for itself


@frozen
class Size:
    """What a program is for: up to so many tokens, each of which sees up to so many splits of positions."""

    n_tokens: int
    n_splits: int


@frozen(eq=False)
class Rows:
    """Rows of floats, one per token."""

    at: Pointer
    width: int


@frozen(eq=False)
class Operand:
    """Rows that matrices are multiplied with, (n, width): floats, units of bytes with factors and sums, or both."""

    floats: Pointer
    quantised: Pointer
    factors: Pointer
    sums: Pointer
    width: int  # in whole units
    as_floats: bool = False
    as_bytes: bool = False


@frozen(eq=False)
class Tiles:
    """Which rows go through which of several matrices, a few at once; see `kernels.matmul`."""

    at: Pointer
    n: int  # at most
    n_rows: int  # of one


def tokens_of(n_splits: int) -> int:
    """How many tokens a pass has at most where each sees so many splits: what these give is kept until they are merged."""
    return max(8, min(MAX_TOKENS, MAX_TOKENS * _MOST_SPLITS // n_splits))


def units_of(n: int) -> int:
    """How many units hold so many values."""
    return -(-n // UNIT)


def warps_of(n: int) -> int:
    """How many blocks have at least so many warps."""
    return -(-n // WARPS)


class Tape:
    """A program in the making.

    Attributes:
        steps: What was written.
        size: What for.
        weights: The plan's.
        buffers: Memory by name, see `Emitter.buffers`.
        inputs: What a pass is told, see `kernels.inputs`.
        x: The residual stream.
    """

    def __init__(self, size: Size, weights: Weights, buffers: Mapping[str, Pointer], inputs: Pointer, n_embd: int) -> None:
        self.steps: list[Launch | Copy] = []
        self.size, self.weights, self.buffers, self.inputs = size, weights, buffers, inputs
        self.x = Rows(buffers["x"], n_embd)

    @staticmethod
    def operand_buffers(name: str, width: int, n_rows: int = MAX_TOKENS) -> dict[str, int]:
        """Bytes of what an operand of a name takes; a row is `width` values."""
        width = UNIT * units_of(width)
        rows = (4 * width, width, 4 * width // UNIT, 8 * width // UNIT)
        return {f"{name} as {kind}": n_rows * n_bytes for kind, n_bytes in zip(_OPERAND, rows, strict=True)}

    def add(self, kernel: Kernel, grid: tuple[int, ...], n_threads: int, *arguments: Pointer | float) -> None:
        """Launch a kernel, which is first given the inputs."""
        whole = (*grid, 1, 1)[:3]
        self.steps.append(Launch(kernel, (whole[0], whole[1], whole[2]), n_threads, (self.inputs, *arguments)))

    def operand(self, name: str, width: int, parts: Sequence[Linear | Matrices]) -> Operand:
        """Where rows go to that are multiplied with some matrices, and as what."""
        kinds = {self.weights.is_float(part) for part in parts}
        floats, quantised, factors, sums = (self.buffers[f"{name} as {kind}"] for kind in _OPERAND)
        width = UNIT * units_of(width)
        return Operand(floats, quantised, factors, sums, width, as_floats=True in kinds, as_bytes=False in kinds)

    def norm(self, norm: Norm, parts: Sequence[Linear | Matrices], *, is_output: bool = False) -> Operand:
        """Norm x, for products with some matrices: of all tokens, or of those that have logits."""
        to = self.operand("normed", norm.size, parts)
        self.norm_to(norm, to, is_output=is_output)
        return to

    def norm_to(self, norm: Norm, to: Operand, *, is_output: bool = False) -> None:
        """Norm x."""
        places = (self.x.at, self.weights.norm(norm), to.floats, to.quantised, to.factors, to.sums)
        flags = (int(is_output), int(to.as_floats), int(to.as_bytes))
        self.add(norm_rows, (self.size.n_tokens,), THREADS, *places, norm.size, to.width, *flags, norm.eps)

    def multiply(
        self, x: Operand, products: Sequence[tuple[Linear, int]], to: Rows, *, adds: bool = False, is_output: bool = False
    ) -> None:
        """Multiply rows by matrices, each with the column where its products begin; store them, or add to what is there."""
        for matrix, column in self.weights.products(products):
            tile = next((each for each in TILES if each >= self.size.n_tokens), TILES[-1])
            tiles = Tiles(self.inputs, -(-self.size.n_tokens // tile), tile)
            self._multiply(matrix, x, to, column, tiles, ADD if adds else STORE, OF_OUTPUT if is_output else OF_TOKENS)

    def multiply_tiles(self, x: Operand, parts: Sequence[Matrices], to: Rows, tiles: Tiles) -> None:
        """Multiply rows by matrices that their tiles choose, and store the products side by side."""
        for matrix, column in self.weights.several(parts):
            self._multiply(matrix, x, to, column, tiles, STORE, OF_TILES)

    def _multiply(self, matrix: Matrix, x: Operand, to: Rows, column: int, tiles: Tiles, mode: int, which: int) -> None:
        grid = (warps_of(-(-matrix.n_rows // TILE_ROWS)), tiles.n, 1)
        rows = x.floats if matrix.format.is_float else x.quantised
        places = (tiles.at, matrix.words, rows, x.factors, x.sums, matrix.bias or to.at, to.at)
        sizes = (matrix.n_rows, matrix.n_units, matrix.n_steps, matrix.n, to.width, column)
        flags = (0 if matrix.bias is None else HAS_SCALES if matrix.has_scales else HAS_BIAS, mode, which)
        kernel = MULTIPLY[matrix.format.name, tiles.n_rows]
        self.steps.append(Launch(kernel, grid, WARP * WARPS, (*places, *sizes, *flags, matrix.scale)))

    def copy(self, source: Pointer, to: Pointer, n_bytes: int) -> None:
        """Copy bytes."""
        self.steps.append(Copy(source, to, n_bytes))
