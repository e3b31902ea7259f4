"""The tape on which blocks write their records, and the memory in which the records work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from attrs import Factory, define, field, frozen

from augury.backends.numba_cpu.kernels import step
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS, activation_bytes, n_blocks
from augury.backends.numba_cpu.kernels.rows import place_rows
from augury.backends.numba_cpu.kernels.struct import dtype, table
from augury.backends.numba_cpu.kernels.team import record_of
from augury.backends.numba_cpu.memory import Arena, memory_at, up
from augury.backends.numba_cpu.packing import PackedMatrix
from augury.backends.numba_cpu.weights import Weights, panels_of
from augury.blocks import Linear, Matrices, ModelPlan, Norm, Output
from augury.lowering import Value
from augury.profile import KernelTime

GIVEN = "given"  # the buffer of an output's normed x for features
PRIVATE_TOKENS = 2  # up to here it takes less time to norm a row than to wait for the thread that does it
KERNELS = (step.add_norm, step.quantize, step.multiply, step.copy_rows)


@frozen
class Work:
    """The work of a record of a tape, and its amount."""

    name: str
    n_bytes: int = 0  # of weights
    n_multiply_adds: int = 0  # per token
    bytes_per_position: int = 0  # of cached states that are read
    multiply_adds_per_position: int = 0  # per token
    is_output: bool = False  # of the rows whose logits are wanted, not of all tokens

    @classmethod
    def of_matrices(cls, name: str, matrices: Sequence[PackedMatrix], *, is_output: bool = False) -> Work:
        """Products with matrices."""
        kinds = ", ".join(dict.fromkeys(matrix.kind for matrix in matrices))
        n_multiply_adds = sum(matrix.n_rows * matrix.n_cols for matrix in matrices)
        return cls(f"{name} ({kinds})", sum(each.n_bytes for each in matrices), n_multiply_adds, is_output=is_output)

    def time(self, seconds: float, positions: np.ndarray, n_rows: int) -> KernelTime:
        """Its time in a pass over tokens of one slot at `positions` (n,)."""
        n = n_rows if self.is_output else len(positions)
        n_seen = int((positions + 1).sum())
        n_bytes = self.n_bytes + self.bytes_per_position * int(positions.max() + 1)
        return KernelTime(self.name, seconds, n_bytes, n * self.n_multiply_adds + n_seen * self.multiply_adds_per_position)


@frozen
class ThreadRows:
    """Rows of a pass: the address of the first, floats from one to the next, bytes from one thread's to the next's."""

    address: int
    width: int
    thread_stride: int = 0  # all threads share them
    is_operand: bool = False  # they are operands of the matrix that reads them, not floats


def row_stride(width: int) -> int:
    """Floats from one row of products to the next, which are written in whole panels."""
    return up(width, step.PANEL_ROWS)


def row_bytes(width: int) -> int:
    """Bytes of a row of float32 for every token of a pass."""
    return 4 * MAX_TOKENS * row_stride(width)


class Workspace:
    """The rows that every block works in: for `n_threads` threads that treat rows each for itself, or, if 0, together."""

    def __init__(self, n_embd: int, buffers: Mapping[str, int], arena: Arena, n_threads: int) -> None:
        self.is_private = bool(n_threads)  # every thread has rows for itself
        self._n_threads, self._arena, self._buffers = n_threads, arena, buffers
        self._operands: dict[tuple[str, int, int], ThreadRows] = {}
        self._named: dict[tuple[str, int], ThreadRows] = {}
        self.x, self.normed = (self.named(name, n_embd) for name in ("x", "normed"))  # (n, E): the residual stream, its norm
        # (n, E), the tokens' embeddings, or a second residual stream that began so, where layers read it
        self.embedded = self.named("embedded", n_embd) if "embedded" in buffers else None

    @staticmethod
    def buffers(plan: ModelPlan) -> dict[str, int]:
        """Bytes of the rows that all blocks share: x, its norm, and rows to be added to x."""
        layers = plan.every_layer
        names = ["x", "normed", "y", *(f"y {n}" for layer in layers for n, each in enumerate(layer.blocks) if each.is_parallel)]
        names += ["embedded"] * plan.keeps_embedded
        n_added = max((plan.n_seen(block) for layer in layers for block in layer.blocks), default=plan.widest)
        n_given = max((linear.n_out for each in plan.mtp if (linear := each.output.given) is not None), default=0)
        return {**dict.fromkeys(names, row_bytes(plan.widest)), "y": row_bytes(n_added), GIVEN: row_bytes(n_given)}

    def operand(self, activation: str, width: int, rows_per_token: int = 1) -> ThreadRows:
        """Memory for the operands that matrix kernels want of rows; all rows of one kind and width use it in turn."""
        key = (activation, width, rows_per_token)
        if key not in self._operands:
            n_tokens = PRIVATE_TOKENS if self.is_private else MAX_TOKENS
            n_bytes = activation_bytes(activation, n_tokens * rows_per_token, width)
            stride = up(n_bytes, 64) + 64 if self.is_private else 0
            to = self._arena.zeros(self._n_threads * stride if self.is_private else n_bytes, "scratch")
            self._operands[key] = ThreadRows(to, width, stride)
        return self._operands[key]

    def named(self, name: str, width: int) -> ThreadRows:
        """The rows of a buffer, or every thread's own in its place."""
        if (name, width) not in self._named:
            rows = ThreadRows(self._buffers[name], width)
            if self.is_private:
                stride = up(4 * PRIVATE_TOKENS * width, 64) + 64
                rows = ThreadRows(self._arena.zeros(self._n_threads * stride, "scratch"), width, stride)
            self._named[name, width] = rows
        return self._named[name, width]


Addition = tuple[int, Norm | None]  # the address of rows that are added to x, normed or as they are


@define(eq=False)
class Program:
    """A tape to run: its records, and the entries that are written before every pass."""

    records: np.ndarray = field(repr=False)  # (n,) int64, see `kernels/team.py`
    starts: Sequence[int] = field(repr=False)  # where in it each record begins
    works: list[Work] = field(repr=False)  # of each record
    logits: np.ndarray = field(repr=False)  # (m,) `step.Entry` of the output matrix, for the address of the logits
    features: Mapping[str, np.ndarray]  # (MAX_TOKENS, F) float32, where a pass leaves them
    hidden: np.ndarray | None  # (MAX_TOKENS, E) float32, where hidden states are that x is to begin with
    places: np.ndarray | int = 0  # (m,) int64, the offset of each entry from the address of the logits, in bytes
    address: int = field(default=Factory(lambda self: int(self.records.ctypes.data), takes_self=True), init=False)
    _written_to: int = field(default=0, init=False)

    def told(self, names: Sequence[str], tokens: slice | np.ndarray) -> dict[str, np.ndarray]:
        """The features of some tokens of the last pass, (n, F) float32 each."""
        return {name: self.features[name][tokens].copy() for name in names}

    def write_to(self, address: int) -> None:
        """Say where the logits go."""
        if address != self._written_to:
            self.logits["y"] = address + self.places
            self._written_to = address


@define(eq=False)
class Tape:
    """Records in the making."""

    weights: Weights
    buffers: Mapping[str, int]  # addresses of the memory that blocks share, by name
    space: Workspace  # the rows that they work in
    arena: Arena  # holds arrays that records have the addresses of
    y: int = field(init=False)  # address where the next block leaves what is added to x, (n, E padded to panels) float32
    seen: ThreadRows = field(init=False)  # the rows that the next block sees: x, or made of several residual streams
    streams: ThreadRows = field(init=False)  # these, side by side, or x
    aside: list[ThreadRows] = field(factory=list, init=False)  # streams that connections have put aside, the first one first
    logits: np.ndarray = field(init=False)  # see `Program.logits`; the block that computes them says which it is
    kept: dict[Value, ThreadRows] = field(factory=dict, init=False)  # places of values such as x and its norms
    _rows: list[np.ndarray] = field(factory=list, init=False)
    _works: list[Work] = field(factory=list, init=False)
    _features: dict[str, np.ndarray] = field(factory=dict, init=False)
    _hidden: np.ndarray | None = field(default=None, init=False)
    _pending: list[Addition] = field(factory=list, init=False)  # that the next norm adds to x first

    def __attrs_post_init__(self) -> None:
        self.y, self.seen, self.streams = self.buffers["y"], self.space.x, self.space.x
        self.logits = np.empty(1, dtype(step.Entry))  # without an output nobody reads it

    def program(self) -> Program:
        """The written tape; a pass is over when every thread is through, so a barrier ends it."""
        if self._rows:
            self._rows[-1][1] = 1
        starts = [0, *accumulate(map(len, self._rows))]
        records = np.concatenate([np.empty(0, np.int64), *self._rows])
        return Program(records, starts[:-1], self._works, self.logits, self._features, self._hidden)

    def _shared_rows(self, name: str, width: int) -> tuple[np.ndarray, int]:
        """Rows for all tokens of a pass that all tapes share, (MAX_TOKENS, width) float32, and their address."""
        address = self.arena.shared((name, width), lambda: np.zeros((MAX_TOKENS, width), np.float32), "scratch")
        return memory_at(address, 4 * MAX_TOKENS * width).view(np.float32).reshape(MAX_TOKENS, width), address

    def take_hidden(self, to: ThreadRows) -> None:
        """Write that rows begin as `Program.hidden`."""
        self._hidden, address = self._shared_rows("hidden", to.width)
        self.copy(ThreadRows(address, to.width), to)

    def give_features(self, name: str, rows: ThreadRows, width: int | None = None) -> None:
        """Write that rows, or so many values of each, go to `Program.features`, of all tokens."""
        size = rows.width if width is None else width
        self._features[name], address = self._shared_rows(name, size)
        there = ThreadRows(address, 0)
        self.add(Work("features"), step.copy_rows, x=rows, y=there, size=size, n_times=1, is_private=False, is_output=False)
        self.waits = not self.space.is_private

    def give_output(self, output: Output) -> None:
        """Write that an output's norm of x, or its result, is a feature."""
        normed, given = self.norm(output.norm), output.given
        if given is None:
            self.give_features("output", normed)
        else:
            self.multiply("hidden states", normed, [(given, self.buffers[GIVEN])])
            self.give_features("output", ThreadRows(self.buffers[GIVEN], up(given.n_out, step.PANEL_ROWS)), given.n_out)

    def add(self, work: Work, kernel: Any, **fields: Any) -> None:
        """Write the record of a kernel, of which `fields` are all but those of `Record`.

        A barrier follows unless its threads go on with rows of their own.
        """
        self._works.append(work)
        self._rows.append(record_of(kernel, **fields))

    def add_by_rows(self, work: str, kernel: Any, **fields: Any) -> None:
        """Write the record of a kernel that treats rows, by every thread for its own where it has such."""
        self.add(Work(work), kernel, **fields, is_private=self.space.is_private)

    @property
    def waits(self) -> bool:
        """Whether threads wait for each other after the last record."""
        return bool(self._rows and self._rows[-1][1])

    @waits.setter
    def waits(self, waits: bool) -> None:
        self._rows[-1][1] = int(waits)

    def add_later(self, post_norm: Norm | None) -> None:
        """Let the next norm add y, or its norm, to x."""
        self._pending.append((self.y, post_norm))

    def take_added(self) -> list[ThreadRows]:
        """The rows that a block left to be added to x, which are then taken."""
        return [ThreadRows(y, row_stride(self.space.x.width)) for y, _ in self.take_pending()]

    def products(self, name: str, width: int) -> ThreadRows:
        """The rows of a buffer where products with a matrix are."""
        return ThreadRows(self.buffers[name], row_stride(width))

    def take_pending(self) -> list[Addition]:
        """The additions to x that no norm has made yet; none will."""
        pending, self._pending = self._pending, []
        return pending

    def set_apart(self, y: str) -> list[Addition]:
        """Let the next block see x without pending additions, and leave its own in a buffer; returns these, for `put_back`."""
        self.y = self.buffers[y]
        return self.take_pending()

    def put_back(self, pending: list[Addition]) -> None:
        """Make additions that were `set_apart` pending again, in front of later ones."""
        self._pending, self.y = pending + self._pending, self.buffers["y"]

    def norm(self, norm: Norm | None, *, waits: bool = False) -> ThreadRows:
        """Write the sum of x and of pending additions, and its norm; returns the norm, or x where there is none.

        With `waits`, every thread has read the added rows before any goes on: then the very next record may write y.
        """
        self._sum_and_norm(norm, self.space.normed, self.seen, waits=waits)
        return self.seen if norm is None else self.space.normed

    def norm_output(self, norm: Norm | None, x: ThreadRows, out: ThreadRows) -> ThreadRows:
        """Write the norms of those rows of x whose logits are wanted, or these rows; returns `out`, where they are."""
        if x is not self.seen:
            self.norm_x(None)
        self._sum_and_norm(norm, out, x, is_output=norm is not None)
        if norm is None:
            self.copy(x, out, is_output=True)
        return out

    def norm_x(self, norm: Norm | None) -> None:
        """Write that x becomes the sum of itself and of pending additions, and its norm, where there is one."""
        self._sum_and_norm(norm, self.space.x, self.space.x)

    def add_rows(self, to: ThreadRows, y: ThreadRows, factor: float = 1.0, *, scale: float = 1.0) -> None:
        """Write that y, times `factor`, is added to rows, which are then multiplied by `scale`."""
        params = {"size": to.width, "scale": scale, "factor": factor}
        self.add_by_rows("adding rows", step.add_rows, x=to, y=y, to=to, **params)

    def scale_x(self, factor: float) -> None:
        """Write that x, with pending additions, is multiplied by a number."""
        self.norm_x(None)
        self.add_rows(self.space.x, self.space.x, 0.0, scale=factor)

    def copy(self, rows: ThreadRows, to: ThreadRows, *, is_output: bool = False) -> None:
        """Write that rows, or those whose logits are wanted, are copied, as often as one has room in a row of the others."""
        params = {"size": rows.width, "n_times": to.width // rows.width, "is_output": is_output}
        self.add_by_rows("copying rows", step.copy_rows, x=rows, y=to, **params)

    def place(
        self, work: str, x: ThreadRows, to: ThreadRows, size: int, norm: Norm | None = None, *, is_private: bool = False
    ) -> None:
        """Write that rows of `size` values, or their norms, go elsewhere; each thread's own, or of all threads."""
        given = {"norm": self.weights.norm(norm), "group": size if norm is None else norm.size, "is_private": is_private}
        self.add(Work(work), place_rows, x=x, to=to, n_parts=1, size=size, **given)

    def _sum_and_norm(
        self, norm: Norm | None, out: ThreadRows, x: ThreadRows, *, is_output: bool = False, waits: bool = False
    ) -> None:
        private, weights = self.space.is_private, self.weights
        pending = self._pending or ([] if norm is None else [(0, None)])
        for i, (y, post) in enumerate(pending):
            last = norm if i == len(pending) - 1 else None
            self.add(
                Work("norm"),
                step.add_norm,
                x=x,
                y=ThreadRows(y, row_stride(x.width)),
                y_norm=weights.norm(post),
                norm=weights.norm(last),
                out=out,
                is_private=private,
                is_output=is_output,
            )
            self.waits = waits or not private
        self._pending = []

    def multiply(self, name: str, x: ThreadRows, products: Sequence[tuple[Linear, int]]) -> None:
        """Write products of x, each to an address."""
        entries = self.entries(x, products)
        matrices = [self.weights.matrix(linear) for linear, _ in products]
        n_panels = sum(matrix.n_panels for matrix in matrices)
        self.add(Work.of_matrices(name, matrices), step.multiply, entries=entries.ctypes.data, n_panels=n_panels)

    def entries(self, x: ThreadRows, products: Sequence[tuple[Linear, int]], *, is_output: bool = False) -> np.ndarray:
        """Quantise x as the matrices need it, unless it is so, and make the `step.Entry` of each: (m,)."""
        operands: dict[str, ThreadRows] = {}
        for linear, _ in products:
            if (activation := self.weights.activation(linear)) not in operands:
                kind = self.weights.matrix(linear).kind
                operands[activation] = x if x.is_operand else self._quantize(x, activation, kind, is_output=is_output)
        entries = table([self._entry(linear, operands[self.weights.activation(linear)], y) for linear, y in products])
        self.arena.keep(entries, "scratch")
        return entries

    def several(self, part: Matrices, rows_per_token: int, y: int, ldy: int) -> dict[str, Any]:
        """The fields of `step.SeveralMatrices` for matrices whose products go to y, an address, of so many rows per token."""
        matrix, activation, (first, n_stored) = self.weights.matrix(part), self.weights.activation(part), panels_of(part)
        return {
            "kernel": self.weights.address(matrix.kind, "matmul"),
            "weights": matrix.address,
            "n_cols": part.n_in,
            "n_panels": -(-part.n_out // step.PANEL_ROWS),
            "stored_panels": n_stored,
            "first_panel": first,
            "operands": self.space.operand(activation, part.n_in, rows_per_token),
            "operand_bytes": activation_bytes(activation, 1, part.n_in),
            "y": y,
            "ldy": ldy,
        }

    def _entry(self, linear: Linear, operand: ThreadRows, y: int) -> step.Entry:
        matrix = self.weights.matrix(linear)
        return step.Entry(
            kernel=self.weights.address(matrix.kind, "matmul"),
            weights=matrix.address,
            x=operand,
            y=y,
            n_cols=matrix.n_cols,
            n_panels=matrix.n_panels,
            ldy=step.PANEL_ROWS * matrix.n_panels,
            bias=self.weights.bias(linear),
            n_rows=linear.n_out,
            scale=linear.scale,
            first=0,
        )

    def _quantize(self, x: ThreadRows, activation: str, kind: str, *, is_output: bool) -> ThreadRows:
        """Make operands of the matrix kernels of rows x."""
        out, private = self.space.operand(activation, x.width), self.space.is_private
        kernel = self.weights.address(kind, "quantize")
        params = {"n_blocks": n_blocks(x.width), "is_private": private, "is_output": is_output}
        self.add(Work("quantising activations"), step.quantize, quantize=kernel, x=x, out=out, **params)
        return out
