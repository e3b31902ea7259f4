"""Rows of a pass, and the parts that steps read and write."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from augury.backends.numba_cuda.device import Pointer
from augury.backends.numba_cuda.kernels.formats import UNIT
from augury.backends.numba_cuda.kernels.halves import GROUP, STEP, RowsArgs
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.matmul import OF_TILES
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.stream import STREAM_TILES
from augury.backends.numba_cuda.kernels.sums import TILES, SourceArgs
from augury.blocks import Norm


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
    which: int = OF_TILES

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
