"""The tape that blocks write a program's steps on, and the rows of the steps."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
from attrs import evolve, frozen

from augury.backends.numba_cuda.device import Arguments, Copy, Launch, Pointer
from augury.backends.numba_cuda.kernels.activation import NOT_ACTIVATED, NUMBERS, GateArgs
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP, Kernel
from augury.backends.numba_cuda.kernels.formats import TILE_ROWS, UNIT
from augury.backends.numba_cuda.kernels.halves import norm_halves, slices_of
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS, MAX_ROWS, MAX_TOKENS
from augury.backends.numba_cuda.kernels.matmul import ADD, COMBINED, OF_OUTPUT, OF_TOKENS, STORE
from augury.backends.numba_cuda.kernels.norm import NormedArgs, PartArgs, blend_rows, norm_parts, norm_rows
from augury.backends.numba_cuda.kernels.routes import CombineArgs, combine_rows
from augury.backends.numba_cuda.kernels.splits import SPLIT
from augury.backends.numba_cuda.narrow_output import NarrowOutput
from augury.backends.numba_cuda.products import (
    WARPS,
    DeviceRows,
    Operand,
    Tiles,
    halves_bytes,
    launch_of,
    launch_of_gated,
    launch_of_halving,
    launch_of_two,
    stream_tile,
    tile_of,
    units_of,
)
from augury.backends.numba_cuda.weights import Matrix, Weights
from augury.blocks import Activation, GateKind, Linear, Matrices, Norm, Output
from augury.lowering import Value

_FIRST_SPLITS = 2  # passes up to position 512, 1024, 2048 … have programs of their own
_MOST_GATED = 1 << 25  # weights of gate and up that one launch activates, too, see docs/cuda.md
_OPERAND = ("floats", "bytes", "factors", "sums", "halves")


@frozen
class Gate:
    """How a gate is activated, see `GateArgs`."""

    activation: Activation | GateKind
    limit: float | None = None
    limits_activated: bool = False
    constants: Sequence[float] = ()

    def arguments(self, *, has_up: bool) -> Any:
        """The arguments of kernels; `has_up` says whether gates are multiplied with `up`."""
        limit = math.inf if self.limit is None else self.limit
        return GateArgs(NUMBERS[self.activation.value], has_up, self.limits_activated, limit, *self.constants)


@frozen
class Size:
    """The size of a program: up to so many tokens, each of which sees up to so many splits of positions.

    If it `is_run`, tokens are one slot's at neighbouring positions, none of them in another cell than that of its number.
    """

    n_tokens: int
    n_splits: int
    is_run: bool = False

    @property
    def n_rows(self) -> int:
        """The most tokens that have logits."""
        return min(self.n_tokens, MAX_ROWS)


def splits_of(n_positions: int) -> int:
    """The splits of programs for so many positions."""
    splits = _FIRST_SPLITS
    while splits * SPLIT < n_positions:
        splits *= 2
    return splits


def splits_seen(n_splits: int, window: int, n_tokens: int) -> int:
    """How many of the splits some tokens at neighbouring positions may see, each so many positions; of a window of 0 all."""
    return min(n_splits, (window + n_tokens - 3) // SPLIT + 2) if window else n_splits


def warps_of(n: int) -> int:
    """How many blocks have at least so many warps."""
    return -(-n // WARPS)


class Tape:
    """A program in the making.

    Attributes:
        steps: The written steps.
        size: The size of the program.
        weights: The plan's.
        buffers: Memory by name.
        inputs: The inputs of a pass, see `kernels.inputs`.
        x: The residual stream, which blocks add to.
        seen: The input of blocks: the residual stream, or its copy.
        streams: All residual streams of a token, from layer to layer.
        made: Products that blocks side by side begin with; see `FirstProducts`.
        operands: Norms of x, and rows that lie elsewhere than a block's layout says, by value.
        tiles: Routers' choices, by value.
        narrow: The matrices of a narrow vocabulary, by the matrix of all tokens.
        chooses: Whether the best of the logits are wanted.
    """

    def __init__(self, size: Size, weights: Weights, buffers: Mapping[str, Pointer], inputs: Pointer, n_embd: int) -> None:
        self.steps: list[Launch | Copy] = []
        self.size, self.weights, self.buffers, self.inputs = size, weights, buffers, inputs
        self.x = self.seen = self.streams = DeviceRows(buffers["x"], n_embd)
        self.made: dict[Hashable, DeviceRows] = {}
        self.operands: dict[Value, Operand] = {}
        self.tiles: dict[Value, Tiles] = {}
        self.narrow: Mapping[Linear, NarrowOutput] = {}
        self.chooses = True
        # rows that the next norm adds to x, as they are or normed, or swaps with it
        self._pending: tuple[DeviceRows, Norm | None, bool] | None = None
        self._normed: dict[Norm | None, Operand] = {}  # the normed inputs of parallel blocks, by their norms

    @staticmethod
    def operand_buffers(name: str, width: int, n_rows: int = MAX_TOKENS) -> dict[str, int]:
        """Bytes of the operand of a name; a row is `width` values."""
        width = UNIT * units_of(width)
        rows = (4 * width, halves_bytes(width), *(n * width // UNIT for n in (4, 4, 8)))  # bytes, or halves in their place
        return {f"{name} as {kind}": n_rows * n_bytes for kind, n_bytes in zip(_OPERAND, rows, strict=True)}

    def launch(self, kernel: Kernel, grid: tuple[int, ...], n_threads: int, **arguments: Any) -> None:
        """Launch a kernel with arguments by name; pointers and numbers that are left out are the inputs, and 0."""
        self.steps.append(Launch.of(kernel, grid, n_threads, self.inputs, **arguments))

    def operand(self, name: str, width: int, parts: Sequence[Linear | Matrices]) -> Operand:
        """The place and form of rows that are multiplied with some matrices."""
        kinds = {self.weights.is_float(part) for part in parts}
        floats, quantised, factors, sums, halves = (self.buffers[f"{name} as {kind}"] for kind in _OPERAND)
        width = UNIT * units_of(width)
        return Operand(floats, quantised, factors, sums, halves, width, as_floats=True in kinds, as_bytes=False in kinds)

    def norm(
        self, norm: Norm | None, parts: Sequence[Linear | Matrices], *, as_floats: bool = False, is_output: bool = False
    ) -> Operand:
        """Norm the input of blocks, for products with some matrices: of all tokens, or of tokens that have logits."""
        if norm in self._normed:
            return self._normed[norm]
        to = self.operand("normed", self.x.width, parts)
        is_halved = norm is not None and all(isinstance(part, Linear) and self.weights.is_halved(part) for part in parts)
        if is_halved and parts and self.x.width % 4 == 0:
            to = evolve(to, as_floats=as_floats, is_halved=True)
        else:
            to = evolve(to, as_floats=to.as_floats or as_floats)
        self.norm_seen(norm, to, is_output=is_output)
        return to

    def norm_seen(self, norm: Norm | None, to: Operand, *, is_output: bool = False) -> None:
        """Norm the input of blocks."""
        if is_output or self.seen is not self.x:
            self.add_pending()  # of the output not all rows are written
        pending, self._pending = self._pending, None
        self.norm_groups(self.seen, self.x.width, norm, to, pending=pending, is_output=is_output)

    def norm_first(self, norms: Sequence[Norm | None]) -> None:
        """Norm the input of all blocks until `go_on`, so that these may add to the stream: each is to have one of two norms."""
        for name, norm in zip(("normed", "normed beside"), norms, strict=False):
            to = evolve(self.operand(name, self.x.width, ()), as_floats=True, as_bytes=True)
            self.norm_seen(norm, to)
            self._normed[norm] = to

    def norm_in_place(self, norm: Norm | None, rows: DeviceRows, size: int, n_groups: int = 1) -> None:
        """Norm the first groups of `size` values of rows, each by itself."""
        if norm is not None:
            if rows is self.x:
                self.add_pending()
            self.norm_groups(rows, size, norm, None, n_groups=n_groups)

    def join(self, parts: Sequence[tuple[DeviceRows, int, Norm | None]], to: Operand) -> None:
        """Put rows of so many values side by side where they are multiplied; norms are of groups of values.

        Each group may have weights of its own.
        """
        at, floats = 0, evolve(to, as_floats=True, as_bytes=False)
        for x, width, norm in parts:
            size = width if norm is None else norm.size
            there = evolve(floats, floats=to.floats.at(4 * at))
            self.norm_groups(x, size, norm, there, n_groups=width // size, n_out=size)
            at += width
        if (n_rest := UNIT * units_of(at) - at) > 0:
            zeros = self.weights.constant(("zero floats", n_rest), lambda: np.zeros(n_rest, np.float32))
            grid, rest = (1, self.size.n_tokens), to.floats.at(4 * at)
            self.launch(blend_rows, grid, WARP, x=rest, y=zeros, size=n_rest, x_stride=to.width, b=1.0)
        if to.as_bytes:
            self.norm_groups(DeviceRows(to.floats, to.width), at, None, evolve(to, as_floats=False))

    def norm_parts(
        self, rows: DeviceRows, parts: Sequence[tuple[Norm | None, int, int]], to: Operand | None = None, n_apart: int = 1
    ) -> None:
        """Norm up to three parts of rows in place, given with their columns and sizes.

        The first `n_apart` of them, normed or as they are, are put elsewhere if there is such a place, each in MAX_TOKENS rows.
        """
        if to is None and not any(norm for norm, _, _ in parts):
            return
        n_apart, names = n_apart if to is not None else 0, ("first", "second", "third")
        arguments: Arguments = {} if to is None else {"to": to.target}
        for i, (name, (norm, at, size)) in enumerate(zip(names, parts, strict=False)):
            if norm is not None or i < n_apart:
                params = self.weights.norm_arguments(norm)
                arguments[name] = PartArgs(params.weight, params.kind, at, size, params.eps)
        self.launch(norm_parts, (self.size.n_tokens, 3), THREADS, x=rows.at, stride=rows.width, n_apart=n_apart, **arguments)

    def add_rows_later(self, rows: DeviceRows, post_norm: Norm | None = None, *, swaps: bool = False) -> None:
        """Add rows, or their norm, to the residual stream, which they are not to change before the next norm.

        If they are exchanged, the rows become the previous residual stream.
        """
        self.add_pending()
        self._pending = (rows, post_norm, swaps)

    def add_pending(self) -> None:
        """Add pending rows to the residual stream."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.norm_groups(self.x, self.x.width, None, None, pending=pending)

    def give_features(self, name: str, rows: DeviceRows) -> None:
        """Write that rows go where a feature is read."""
        self.copy(rows.at, self.buffers[name], 4 * self.size.n_tokens * rows.width)

    def give_output(self, output: Output) -> None:
        """Write that an output's norm of x, or its result, goes where this feature is read."""
        at, given = self.buffers["output"], output.given
        if given is None:
            self.norm_seen(output.norm, DeviceRows(at, self.x.width).operand)
        else:
            self.multiply(self.norm(output.norm, (given,)), ((given, 0),), DeviceRows(at, given.n_out))

    def go_on(self) -> None:
        """Let blocks see x."""
        self.seen = self.x
        self._normed.clear()
        self.made.clear()

    def blend(
        self, x: DeviceRows, y: DeviceRows, a: float, b: float, *, width: int | None = None, is_one_row: bool = False
    ) -> None:
        """Write that x = a * x + b * y, of so many values, or of whole rows of x; y may be one row for all."""
        if x is self.x:
            self.add_pending()
        width = x.width if width is None else width
        grid = (-(-width // WARP), self.size.n_tokens)
        y_stride = 0 if is_one_row else y.width
        self.launch(blend_rows, grid, WARP, x=x.at, y=y.at, size=width, x_stride=x.width, y_stride=y_stride, a=a, b=b)

    def norm_groups(
        self,
        x: DeviceRows,
        size: int,
        norm: Norm | None,
        to: Operand | None,
        *,
        n_groups: int = 1,
        n_out: int | None = None,
        pending: tuple[DeviceRows, Norm | None, bool] | None = None,
        is_output: bool = False,
    ) -> None:
        """Norm groups of rows, to which are added pending rows, where they are multiplied; without such a place in place.

        Each row of the result has `n_out` values, 0 beyond `size`; by default the whole row.
        """
        place = to or x.operand
        params: Arguments = {"x": x.at, "stride": x.width, "size": size, "n_out": n_out or (size if to is None else to.width)}
        arguments: Arguments = {"to": place.target}
        if pending is not None:
            y, y_norm, is_traded = pending
            params |= {"y": y.at, "y_stride": y.width, "is_traded": is_traded}
            arguments["y_norm"] = self.weights.norm_arguments(y_norm)
        if to is not None or norm is not None:
            n_alike = 1 if norm is None or norm.weight_shape is None else n_groups
            arguments["norm"] = self.weights.norm_arguments(norm, n_alike)
            if norm is not None and n_alike > 1:
                params["step"] = size * (1 if norm.bias is None else 2)
        grid, given = (self.size.n_tokens, n_groups), NormedArgs(**params, is_output=is_output)
        if place.is_halved:
            n_steps, n_of_slice, n_slices = slices_of(size)
            n = self.size.n_rows if is_output else self.size.n_tokens
            tile = stream_tile(n)
            arguments |= {"to": place.as_halves(tile * -(-n // tile)), "floats": place.floats}
            arguments |= {"width": place.width if place.as_floats else 0, "n_steps": n_steps, "n_of_slice": n_of_slice}
            self.launch(norm_halves, grid, THREADS, params=given, n_slices=n_slices, **arguments)
        else:
            self.launch(norm_rows, grid, THREADS, params=given, **arguments)

    def multiply(self, x: Operand, products: Sequence[tuple[Linear, int]], to: DeviceRows, *, adds: bool = False) -> None:
        """Multiply rows by matrices, each with the column where its products begin; store them, or add to stored values."""
        found, n = self.weights.products(products), self.size.n_tokens
        for pair in permutations(found, 2):
            if not adds and all(each in found for each in pair):
                launch = launch_of_two(self.inputs, n, x, pair, to)
                found = found if launch is None else [each for each in found if each not in pair]
                self.steps += [] if launch is None else [launch]
        self.multiply_matrices(x, found, to, adds=adds)

    def multiply_matrices(
        self,
        x: Operand,
        matrices: Sequence[tuple[Matrix, int]],
        to: DeviceRows,
        tiles: Tiles | None = None,
        *,
        adds: bool = False,
        is_output: bool = False,
    ) -> None:
        """Multiply rows by matrices, one after the other: of all tokens, of tokens that have logits, or of tiles."""
        halved = next((matrix for matrix, _ in matrices if matrix.is_halved), None)
        if halved is not None and not x.is_halved:
            self.steps.append(launch_of_halving(halved, x, tiles or self._tiles(halved, is_output=is_output)))
        for matrix, column in matrices:
            rows, more = tiles or self._tiles(matrix, is_output=is_output), None
            if tiles is None and rows.n_apart:
                more = {"parts": self.buffers["parts of products"], "counters": self.buffers["counters"]}
            self.steps.append(launch_of(matrix, x, to, column, rows, ADD if adds else STORE, more))

    def multiply_gated(
        self, x: Operand, parts: Sequence[Linear | Matrices], to: Operand, gate: Gate, tiles: Tiles | None = None
    ) -> bool:
        """Multiply few rows by gate and up, and activate the products, if one launch can do both.

        `parts` are gate and up, of as many rows, or the activated matrix alone; `to` are the rows of the next product.
        """
        size = parts[0].n_out
        if tiles is not None:
            found = self.weights.several([part for part in parts if isinstance(part, Matrices)])
        else:
            found = self.weights.products([(part, i * size) for i, part in enumerate(parts) if isinstance(part, Linear)])
        matrix, _ = found[0]
        if len(found) != 1 or size % TILE_ROWS or matrix.is_halved or matrix.n_cuts > 1:
            return False
        if tiles is None:
            if matrix.n_rows * matrix.n_cols > _MOST_GATED or self.size.n_tokens > FEW_TOKENS:  # whose units lie otherwise
                return False
            tiles = self._tiles(matrix)
        if tiles.n_apart:
            return False
        params = gate.arguments(has_up=len(parts) > 1)
        self.steps.append(launch_of_gated(matrix, x, to.target, 0, tiles, params, len(parts)))
        return True

    def multiply_heads(self, x: Operand, part: Matrices, to: Operand, tiles: Tiles) -> bool:
        """Multiply heads' few rows by a matrix each, and put a token's products side by side, if one launch can do both."""
        ((matrix, _),) = self.weights.several([part])
        if part.n_out % UNIT or matrix.is_halved or matrix.n_cuts > 1 or tiles.n > part.n or self.size.n_tokens > FEW_TOKENS:
            return False
        params, target = GateArgs(NOT_ACTIVATED, limit=math.inf), evolve(to, width=part.n_out).target
        self.steps.append(launch_of_gated(matrix, x, target, part.n, tiles, params))
        return True

    def multiply_combined(
        self, x: Operand, part: Matrices, rows: DeviceRows, tiles: Tiles, **combined: Pointer | float
    ) -> None:
        """Multiply rows by matrices that routes choose, and add up the rows of a token; see `routes.CombineArgs`."""
        params = CombineArgs(n_most=tiles.n_most, k=tiles.per_token, **combined)
        ((matrix, column),) = self.weights.several([part])
        if tiles.n_apart or matrix.is_halved:
            self.multiply_matrices(x, [(matrix, column)], rows, tiles)
            grid = (warps_of(units_of(rows.width)), self.size.n_tokens)
            self.launch(combine_rows, grid, WARP * WARPS, routes=tiles.at, rows=rows.at, stride=rows.width, params=params)
            return
        more = {"combined": params, "counters": self.buffers["counters"]}
        self.steps.append(launch_of(matrix, x, rows, column, tiles, COMBINED, more))

    def _tiles(self, matrix: Matrix, *, is_output: bool = False) -> Tiles:
        """The rows of a pass, as many at once as share a reading of weights."""
        n, size = (
            self.size.n_rows if is_output else self.size.n_tokens,
            tile_of(matrix, self.size.n_tokens, is_output=is_output),
        )
        return Tiles(self.inputs, -(-n // size), size, which=OF_OUTPUT if is_output else OF_TOKENS)

    def copy(self, source: Pointer, to: Pointer, n_bytes: int) -> None:
        """Copy bytes, of x once all was added to it."""
        if source is self.x.at:
            self.add_pending()
        self.steps.append(Copy(source, to, n_bytes))
