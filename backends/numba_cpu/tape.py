"""What blocks write their records on, and the memory that the records work in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import field, frozen

from augury.backends.numba_cpu.kernels import step
from augury.backends.numba_cpu.kernels.head import prepare_head, prepare_rows
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS, activation_bytes, n_blocks
from augury.backends.numba_cpu.memory import bits, memory_at, up
from augury.backends.numba_cpu.profile import Work
from augury.blocks import Turn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import Linear, ModelPlan, Norm, Vector
    from augury.lowering import Value

PRIVATE_TOKENS = 2  # up to here it takes less time to norm a row than to wait for whoever does it
KERNELS = (step.add_norm, step.quantize, step.multiply)
RECORD = 16  # int64
_FROM, _TO = 2, 4  # of a record that copies rows


@frozen
class Rows:
    """Rows of a pass: their address, from one thread's to the next (0 where all share them), floats of a row."""

    address: int
    stride: int
    width: int
    is_operand: bool = False  # they are what the matrix that reads them wants, not floats


def row_bytes(width: int) -> int:
    """Bytes of a row of float32 for every token of a pass, which products write in whole panels."""
    return 4 * MAX_TOKENS * up(width, step.PANEL_ROWS)


class Space:
    """The rows that every block works in: for `n_threads` threads that treat rows each for itself, or, if 0, together.

    Attributes:
        x: (n, E), the residual stream.
        normed: (n, E).
        embedded: (n, E), what the embedding made of tokens, where a layer adds it again.
        other: (n, E), a second residual stream, where there is one.
        is_private: Whether every thread has rows for itself.
    """

    def __init__(self, n_embd: int, buffers: Mapping[str, int], arena: Arena, n_threads: int) -> None:
        self.is_private = bool(n_threads)
        self._n_threads = n_threads
        self._arena = arena
        self._operands: dict[tuple[str, int, int], Rows] = {}
        self._buffers, self._named = buffers, dict[str, Rows]()
        self.x, self.normed = (self.named(name, n_embd) for name in ("x", "normed"))
        self.embedded = self.named("embedded", n_embd) if "embedded" in buffers else None
        self.other = self.named("other", n_embd) if "other" in buffers else None

    @staticmethod
    def buffers(plan: ModelPlan) -> dict[str, int]:
        """Bytes of the rows that all blocks share: x, its norm, and what is to be added to x."""
        names = ["x", "normed", "y", *["y beside"] * any(layer.is_parallel or layer.beside for layer in plan.layers)]
        names += ["y apart"] * any(layer.apart is not None for layer in plan.layers)
        names += ["embedded"] * any(layer.skip for layer in plan.layers)
        names += ["other"] * (plan.embedding.other is not None)
        return dict.fromkeys(names, row_bytes(plan.embedding.n_embd))

    def operand(self, activation: str, width: int, rows_per_token: int = 1) -> Rows:
        """Memory for the operands that matrix kernels want of rows; all rows of one kind and width use it in turn."""
        key = (activation, width, rows_per_token)
        if key not in self._operands:
            n_tokens = PRIVATE_TOKENS if self.is_private else MAX_TOKENS
            n_bytes = activation_bytes(activation, n_tokens * rows_per_token, width)
            stride = up(n_bytes, 64) + 64 if self.is_private else 0
            to = self._arena.zeros(self._n_threads * stride if self.is_private else n_bytes, "scratch")
            self._operands[key] = Rows(to, stride, width)
        return self._operands[key]

    def named(self, name: str, width: int) -> Rows:
        """The rows of a buffer, or every thread's own in its place."""
        if name not in self._named:
            rows = Rows(self._buffers[name], 0, width)
            if self.is_private:
                stride = up(4 * PRIVATE_TOKENS * width, 64) + 64
                rows = Rows(self._arena.zeros(self._n_threads * stride, "scratch"), stride, width)
            self._named[name] = rows
        return self._named[name]


@frozen(eq=False)
class Program:
    """A tape to run: its records, and what is written into it before every pass.

    Attributes:
        records: (n_records, 16) int64, see `kernels/team.py`.
        works: What each record does.
        logits: (m, 12) the entries of the output matrix, where the address of the logits is to be put.
        places: (m,) int64, what each entry adds to that address, in bytes; or 0.
        features: Which record copies which feature.
        hidden: Which record copies the hidden states that x is to begin with, if any does.
    """

    records: np.ndarray = field(repr=False)
    works: list[Work] = field(repr=False)
    logits: np.ndarray = field(repr=False)
    features: Mapping[str, int]
    hidden: int
    places: np.ndarray | int = 0

    def write_to(self, address: int) -> None:
        """Say where the logits go."""
        self.logits[:, step.Y // 8] = address + self.places

    def at(self, start: int, hidden: np.ndarray | None, features: Mapping[str, np.ndarray]) -> Program:
        """Itself, told where hidden states come from and features go to, (n, E) float32 each: the rows from `start` on."""
        if hidden is not None:
            self.records[self.hidden, _FROM] = hidden[start:].ctypes.data
        for name, values in features.items():
            self.records[self.features[name], _TO] = values[start:].ctypes.data
        return self


class Tape:
    """Records in the making.

    Attributes:
        weights: Of the plan.
        buffers: Addresses of the memory that blocks share, by name.
        space: The rows that they work in.
        y: The address where the next block leaves what is to be added to x, (n, E padded to panels) float32.
        seen: What the next block sees: x, or what is made of several residual streams.
        logits: See `Program.logits`; the block that computes them says which it is.
        kept: Where values of operations are that have no place of their own, such as norms of x.
    """

    def __init__(self, weights: Weights, buffers: Mapping[str, int], space: Space, arena: Arena) -> None:
        self.weights = weights
        self.buffers = buffers
        self.space = space
        self.y = buffers["y"]
        self.logits = np.empty((1, step.ENTRY_BYTES // 8), np.int64)  # without an output nobody reads it
        self._arena = arena
        self._rows: list[list[int]] = []
        self._works: list[Work] = []
        self._features: dict[str, int] = {}
        self._hidden = 0
        self.seen = space.x
        self.kept: dict[Value, Rows] = {}
        self._pending: list[tuple[int, Norm | None]] = []  # what the next norm adds to x first, normed or as it is

    def program(self) -> Program:
        """What was written; a pass is over when every thread is through, so that a barrier ends it."""
        if self._rows:
            self._rows[-1][1] = 1
        return Program(np.array(self._rows, np.int64), self._works, self.logits, self._features, self._hidden)

    def take_hidden(self, to: Rows) -> None:
        """Write that rows are what `Program.at` will say. Compiled when it is first used, as `give_features` is."""
        self._hidden = len(self._rows)
        self.copy(Rows(0, 0, to.width), to)

    def give_features(self, name: str, rows: Rows) -> None:
        """Write that rows go where `Program.at` will say, of all tokens."""
        self._features[name] = len(self._rows)
        operands = (rows.address, rows.stride, 0, 0, rows.width, 0)
        self.add(Work("features"), step.copy_rows, *operands, is_private=self.space.is_private)

    def add(self, work: Work, kernel: Any, *operands: int, is_private: bool = False) -> None:
        """Write a record; a barrier follows unless every thread goes on with what is its own."""
        self._works.append(work)
        row = [address(kernel), int(not is_private), *operands]
        self._rows.append(row + [0] * (RECORD - len(row)))

    @property
    def waits(self) -> bool:
        """Whether threads wait for each other after the last record."""
        return bool(self._rows[-1][1])

    @waits.setter
    def waits(self, waits: bool) -> None:
        self._rows[-1][1] = int(waits)

    def leave(self, post_norm: Norm | None, y: int | None = None) -> None:
        """Say that the next norm is to add y, or its norm, to x; or rows elsewhere, where they are not as wide as x."""
        self._pending.append((self.y if y is None else y, post_norm))

    def take_left(self) -> list[tuple[int, Norm | None]]:
        """What blocks left to be added to x, which is not."""
        left, self._pending = self._pending, []
        return left

    def hold(self, y: str) -> list[tuple[int, Norm | None]]:
        """Let the next block see x without what was left, which is given back, to be added with `join`.

        Args:
            y: The buffer where the next block leaves what is to be added.
        """
        self.y = self.buffers[y]
        return self.take_left()

    def join(self, left: list[tuple[int, Norm | None]]) -> None:
        """Add both what `hold` gave and what blocks left after it."""
        self._pending, self.y = left + self._pending, self.buffers["y"]

    def norm(self, norm: Norm | None, *, is_output: bool = False, waits: bool = False) -> Rows:
        """Write the sum of x and of what blocks left, and its norm; returns the norm, or x where there is none.

        With `waits`, every thread has read what was left before any goes on: then the very next record may write y.
        """
        self._sum_and_norm(norm, self.space.normed, self.seen, is_output=is_output and norm is not None, waits=waits)
        if is_output and norm is None:
            self._copy(step.gather_rows, self.seen, self.space.normed)
            return self.space.normed
        return self.seen if norm is None else self.space.normed

    def norm_x(self, norm: Norm | None) -> None:
        """Write that x becomes the sum of itself and of what blocks left, and its norm, where there is one."""
        self._sum_and_norm(norm, self.space.x, self.space.x)

    def add_to_x(self, y: Rows, factor: float = 1.0) -> None:
        """Write that y, times `factor`, is added to x."""
        x, private = self.space.x, self.space.is_private
        operands = (x.address, x.stride, y.address, y.stride, x.width, int(private), bits(factor))
        self.add(Work("adding rows"), step.add_rows, *operands, is_private=private)

    def scale_x(self, factor: float) -> None:
        """Write that x, with what blocks left, is multiplied by a number."""
        self.norm_x(None)
        x, private = self.space.x, self.space.is_private
        self.add(
            Work("scaling rows"), step.scale_rows, x.address, x.stride, x.width, int(private), bits(factor), is_private=private
        )

    def begin_other(self, other: Rows, first: Vector) -> None:
        """Write that all rows of the second residual stream are a vector."""
        row = memory_at(self.weights.vector(first.weight, first.size), 4 * first.size).view(np.float32)
        rows = np.tile(row, PRIVATE_TOKENS if self.space.is_private else MAX_TOKENS)
        self.copy(Rows(self._arena.keep(rows, "scratch"), 0, first.size), other)

    def take_turn(self, turn: Turn, other: Rows) -> None:
        """Write what becomes of x and the second residual stream; the norm's rows are free between blocks."""
        self.norm_x(None)
        if turn is Turn.CHANGE:
            self.copy(self.space.x, self.space.normed)
        self.add_to_x(other)
        if turn is Turn.CHANGE:
            self.copy(self.space.normed, other)

    def copy(self, rows: Rows, to: Rows) -> None:
        """Write that rows are copied."""
        self._copy(step.copy_rows, rows, to)

    def _copy(self, kernel: Any, rows: Rows, to: Rows) -> None:
        operands = (rows.address, rows.stride, to.address, to.stride, rows.width, int(self.space.is_private))
        self.add(Work("copying rows"), kernel, *operands, is_private=self.space.is_private)

    def prepare(self, rows: int, ld: int, n_parts: int, size: int, ways: int) -> None:
        """Write what is done (see `heads.py`) to `n_parts` parts of `size` floats of every row; rows lie `ld` floats apart."""
        self.add(Work("norm"), prepare_rows, address(prepare_head), rows, 4 * ld, n_parts, size, ways)

    def _sum_and_norm(self, norm: Norm | None, out: Rows, x: Rows, *, is_output: bool = False, waits: bool = False) -> None:
        private, weights = self.space.is_private, self.weights
        pending = self._pending or ([] if norm is None else [(0, None)])
        for i, (y, post) in enumerate(pending):
            added = (y, up(x.width, step.PANEL_ROWS), weights.norm(post))
            is_last = i == len(pending) - 1
            to = (weights.norm(norm) if is_last else 0, x.width, out.address, out.stride, int(private), int(is_output))
            self.add(Work("norm"), step.add_norm, x.address, x.stride, *added, *to, is_private=private and not waits)
        self._pending = []

    def multiply(
        self,
        name: str,
        x: Rows,
        products: Sequence[tuple[Linear, int]],
        *,
        is_output: bool = False,
    ) -> np.ndarray:
        """Write products of x, each to an address; returns their `entries`."""
        entries = self.entries(x, products, is_output=is_output)
        matrices = [self.weights.matrix(linear) for linear, _ in products]
        n_panels, work = sum(matrix.n_panels for matrix in matrices), Work.of_matrices(name, matrices, is_output=is_output)
        self.add(work, step.multiply, entries.ctypes.data, len(entries), n_panels, int(is_output))
        return entries

    def entries(self, x: Rows, products: Sequence[tuple[Linear, int]], *, is_output: bool = False) -> np.ndarray:
        """Quantise x as the matrices need it, unless it is so, and make what `step.multiply` reads of each: (m, 12) int64."""
        operands: dict[str, Rows] = {}
        for linear, _ in products:
            if (activation := self.weights.activation(linear)) not in operands:
                kind = self.weights.matrix(linear).kind
                operands[activation] = x if x.is_operand else self._quantize(x, activation, kind, is_output=is_output)
        entries = np.zeros((len(products), step.ENTRY_BYTES // 8), np.int64)
        for entry, (linear, y) in zip(entries, products, strict=True):
            matrix = self.weights.matrix(linear)
            operand = operands[self.weights.activation(linear)]
            kernel = self.weights.address(matrix.kind, "matmul")
            entry[:11] = [
                *(kernel, matrix.address, operand.address, operand.stride, y, matrix.n_cols, matrix.n_panels),
                *(step.PANEL_ROWS * matrix.n_panels, self.weights.bias(linear), linear.n_out, bits(linear.scale)),
            ]
        self._arena.keep(entries, "scratch")
        return entries

    def _quantize(self, x: Rows, activation: str, kind: str, *, is_output: bool) -> Rows:
        """Make operands of the matrix kernels of rows x."""
        out, private = self.space.operand(activation, x.width), self.space.is_private
        kernel = self.weights.address(kind, "quantize")
        places = (x.address, x.stride, out.address, out.stride, x.width, n_blocks(x.width))
        work = Work("quantising activations")
        self.add(work, step.quantize, kernel, *places, int(private), int(is_output), is_private=private)
        return out
