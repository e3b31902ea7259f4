"""Norms, products, activations and other operations on single rows; tables that x begins as, inputs of layers, and logits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numba.core.serialize import dumps

from augury import lowering as op
from augury.backends.numba_cpu.kernels import convolution, logits, matmul, rows, step
from augury.backends.numba_cpu.kernels.activation import Activating, activate_kernel, activating, multiply_activated_kernel
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS, activation_bytes
from augury.backends.numba_cpu.kernels.rows import Operand, by_row_kernel
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.operations.emitter import EMITTERS, OperationEmitter, Placed, require_multiple
from augury.backends.numba_cpu.operations.layout import INPUTS
from augury.backends.numba_cpu.tape import Tape, ThreadRows, Work, row_bytes, row_stride
from augury.blocks import Experts, Vector
from augury.errors import UnsupportedError
from augury.lowering import Operation, Scope, Value, source_key
from augury.lowering.rewrites import AddLowRank, MultiplyActivated

_LOW = "rows of adapters"
_LINE = 16  # floats of a cache line


@EMITTERS.of(op.Normalize)
class NormalizeEmitter(OperationEmitter[op.Normalize]):
    """Norms rows, or copies them, from where they are to where the next operation wants them."""

    needs_no_barrier = True
    kernels = (rows.place_rows,)

    def emit(self, tape: Tape) -> None:
        operation, placed = self.operation, self.placed
        to = ThreadRows(placed.rows(operation.out, tape).address, placed.layout.stride(operation.out))
        work = "norm" if operation.norm else "copying rows"
        tape.place(work, _source(operation.x, placed, tape), to, operation.x.width, operation.norm)


def _source(x: op.Value, placed: Placed, tape: Tape) -> ThreadRows:
    """Where rows lie: norms of x, of which each takes its part, in memory of a thread's own."""
    if (kept := tape.kept.get(x.root)) is None:
        return placed.at(x)
    return ThreadRows(kept.address + 4 * x.first, kept.width, kept.thread_stride)


@EMITTERS.of(op.Multiply)
class MultiplyEmitter(OperationEmitter[op.Multiply]):
    """Multiplies rows by several matrices in one record."""

    def emit(self, tape: Tape) -> None:
        operation, placed = self.operation, self.placed
        to = [placed.rows(value, tape).address for value in operation.out]
        tape.multiply(operation.purpose, placed.rows(operation.x, tape), list(zip(operation.linears, to, strict=True)))


@EMITTERS.of(AddLowRank)
class AddLowRankEmitter(OperationEmitter[AddLowRank]):
    """Adds to products, where they lie, what adapters have for them."""

    kernels = (rows.low_rank_down, rows.low_rank_up)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        return {_LOW: 4 * MAX_TOKENS * len(self.operation.low_rank.adapters)}

    @property
    def written(self) -> tuple[op.Value, ...]:
        return (self.operation.y,)

    def emit(self, tape: Tape) -> None:
        operation, placed = self.operation, self.placed
        x, y, given = operation.x, operation.y, operation.low_rank
        arrays = {"down": given.down, "up": given.up, "adapters": given.adapters.astype(np.int64)}
        kept = {
            name: placed.arena.shared((given, name), partial(np.asarray, each), "adapters") for name, each in arrays.items()
        }
        to = ThreadRows(placed.rows(y, tape).address, placed.layout.stride(y))
        sizes = {"n_adapters": given.n_adapters, "n_ranks": len(given.adapters), "n_in": x.width, "n_out": y.width}
        places = {"x": _source(x, placed, tape), "y": to, "low": tape.buffers[_LOW]}
        places["scales"] = tape.weights.scales.ctypes.data
        for kernel in self.kernels:
            tape.add(Work("adapters"), kernel, **places, **kept, **sizes)


@EMITTERS.of(op.Add)
class AddEmitter(OperationEmitter[op.Add]):
    """Leaves products to be added to the residual stream by the next norm."""

    def emit(self, tape: Tape) -> None:
        tape.add_later(self.operation.norm)


@EMITTERS.of(op.AddStream)
class AddStreamEmitter(OperationEmitter[op.AddStream]):
    """Adds the second residual stream, or trades places with it; the norm's rows are free between blocks."""

    def emit(self, tape: Tape) -> None:
        operation, x, normed, z = self.operation, tape.space.x, tape.space.normed, tape.space.embedded
        assert z is not None
        added, placed = z, self.placed
        if (first := operation.first) is not None:
            key, weights = ("rows of", first), placed.weights
            rows = placed.arena.shared(key, lambda: np.tile(weights.floats(first), MAX_TOKENS), "scratch")
            added = ThreadRows(rows, first.size)
        tape.norm_x(None)
        if operation.swaps:
            tape.copy(x, normed)
        tape.add_rows(x, added, operation.factor)
        if operation.swaps:
            tape.copy(normed, z)


@EMITTERS.of(op.Activate)
class ActivateEmitter(OperationEmitter[op.Activate]):
    """Sends rows through an activation, with their gates."""

    needs_no_barrier = True

    def __init__(self, operation: op.Activate, scope: op.Scope) -> None:
        super().__init__(operation, scope)
        self._kernel = activate_kernel(**kind_of(operation, is_gated=operation.up is not None))
        self.kernels = (self._kernel,)

    def emit(self, tape: Tape) -> None:
        operation, placed = self.operation, self.placed
        x, other, to = (placed.at(value) for value in (operation.x, operation.up, operation.out))
        rows = {"x": x, "up": other, "out": to, "size": operation.x.width}
        tape.add(Work("activation"), self._kernel, **rows, activation=_activating(operation, placed))


def kind_of(part: op.Activate | Experts, *, is_gated: bool) -> dict[str, Any]:
    """The arguments that make an activation's kernel."""
    limits = {"is_limited": part.limit is not None, "limits_activated": part.limits_activated}
    return {"activation": part.activation.value, "is_gated": is_gated, **limits}


def _activating(operation: op.Activate, placed: Placed) -> Activating:
    return activating(operation.limit, operation.constants, placed.weights.vector(operation.divisors))


@EMITTERS.of(op.Join)
class JoinEmitter(OperationEmitter[op.Join]):
    """Copies rows side by side."""

    needs_no_barrier = True
    kernels = (rows.place_rows,)

    def emit(self, tape: Tape) -> None:
        to, column = self.placed.at(self.operation.out), 0
        for value in self.operation.x:
            part = ThreadRows(to.address + 4 * column, to.width)
            tape.place("joining rows", _source(value, self.placed, tape), part, value.width)
            column += value.width


@EMITTERS.of(op.InitStreams)
class InitStreamsEmitter(OperationEmitter[op.InitStreams]):
    """Copies rows to x, or to the residual streams."""

    kernels = (rows.place_rows,)

    def emit(self, tape: Tape) -> None:
        y, to = self.operation.y, tape.streams
        size = y[0].width
        if to.thread_stride:  # x, which every thread has for itself
            tape.copy(self.placed.rows(y[0], tape), to)
            tape.waits = True  # the next record may write these rows
            return
        for i in range(to.width // size):
            x = self.placed.at(y[min(i, len(y) - 1)])
            tape.place("copying rows", x, ThreadRows(to.address + 4 * i * size, to.width), size)


@EMITTERS.of(op.Constant)
class ConstantEmitter(OperationEmitter[op.Constant]):
    """Writes the same numbers into every row."""

    needs_no_barrier = True
    kernels = (rows.place_rows,)

    def emit(self, tape: Tape) -> None:
        numbers, out = self.operation.numbers, self.operation.out
        row = ThreadRows(self.placed.constant(numbers, lambda: np.array(numbers, np.float32)), 0)
        tape.place("constants", row, self.placed.at(out), out.width)


@EMITTERS.of(op.ConvolveBlock)
class ConvolveBlockEmitter(OperationEmitter[op.ConvolveBlock]):
    """Convolves rows with those of the tokens before in a block."""

    kernels = (convolution.convolve_block,)

    def __init__(self, operation: op.ConvolveBlock, scope: op.Scope) -> None:
        super().__init__(operation, scope)
        group = operation.x.width // operation.n_groups
        require_multiple(group, convolution.LANES, f"a convolution in groups of {group} channels")

    def emit(self, tape: Tape) -> None:
        operation, placed = self.operation, self.placed
        width, n_groups, n_taps = operation.x.width, operation.n_groups, operation.n_taps
        weights = placed.at(operation.weights)
        tape.add(
            Work("convolution"),
            convolution.convolve_block,
            x=placed.at(operation.x),
            weights=ThreadRows(weights.address + 4 * operation.side * n_taps * n_groups, weights.width),
            base=placed.weights.vector(operation.base) + 4 * operation.side * n_taps * width,
            out=placed.at(operation.out),
            size=width,
            group=width // n_groups,
            n_taps=n_taps,
        )


@EMITTERS.of(MultiplyActivated)
class MultiplyActivatedEmitter(OperationEmitter[MultiplyActivated]):
    """Multiplies by gate and up in one record, and activates where the products are still near."""

    def __init__(self, operation: MultiplyActivated, scope: op.Scope) -> None:
        super().__init__(operation, scope)
        self._kernel = multiply_activated_kernel(**kind_of(operation.activate, is_gated=operation.activate.up is not None))
        self.kernels = (self._kernel,)

    def emit(self, tape: Tape) -> None:
        operation, weights = self.operation, tape.weights
        hidden, *products = (self.placed.at(value) for value in operation.out)
        x = self.placed.rows(operation.x, tape)
        entries = tape.entries(x, [(linear, to.address) for linear, to in zip(operation.linears, products, strict=True)])
        matrices = [weights.matrix(linear) for linear in operation.linears]
        width, quantize, block_bytes = operation.out[0].width, 0, 0
        if operation.reader is not None:
            kind, activation = weights.matrix(operation.reader).kind, weights.activation(operation.reader)
            quantize, block_bytes = weights.address(kind, "quantize"), activation_bytes(activation, 1, 1)
        tape.add(
            Work.of_matrices(operation.purpose, matrices),
            self._kernel,
            entries=entries.ctypes.data,
            n_panels=matrices[0].n_panels,
            out=hidden.address,
            n_rows=width,
            activation=_activating(operation.activate, self.placed),
            quantize=quantize,
            block_bytes=block_bytes,
        )
        tape.kept[operation.out[0]] = ThreadRows(hidden.address, width, is_operand=operation.reader is not None)


# The ends of models: rows of tables that x begins as, inputs of layers, and logits


@EMITTERS.of(op.LookUp)
class LookUpEmitter(OperationEmitter[op.LookUp]):
    """Looks up rows of a matrix; every thread for itself where its rows are its own."""

    kernels = (matmul.look_up,)

    def emit(self, tape: Tape) -> None:
        operation, to = self.operation, self.placed.rows(self.operation.out, tape)
        matrix = tape.weights.matrix(operation.table)
        tape.add(
            Work("embedding"),
            matmul.look_up,
            embed=tape.weights.address(matrix.kind, "embed"),
            weights=matrix.address,
            x=to,
            is_private=bool(to.thread_stride),
            scale=operation.scale,
            is_by_position=operation.is_by_position,
        )


@EMITTERS.of(op.ReadTokens)
class ReadTokensEmitter(OperationEmitter[op.ReadTokens]):
    """Writes the ids of tokens as floats."""

    kernels = (matmul.read_tokens,)

    def emit(self, tape: Tape) -> None:
        tape.add(Work("token ids"), matmul.read_tokens, out=self.placed.at(self.operation.out))


@EMITTERS.of(op.SetLayerInputs)
class SetLayerInputsEmitter(OperationEmitter[op.SetLayerInputs]):
    """Adds the rows of a table to the inputs of layers."""

    kernels = (step.add_rows,)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        return {INPUTS: row_bytes(self.operation.x.width)}

    def emit(self, tape: Tape) -> None:
        operation, size = self.operation, self.operation.x.width
        x, y = (self.placed.at(value) for value in operation.read)
        to = ThreadRows(tape.buffers[INPUTS], up(size, step.PANEL_ROWS))
        params = {"scale": operation.scale, "factor": operation.factor, "is_private": False}
        tape.add(Work("inputs of layers"), step.add_rows, x=x, y=y, to=to, size=size, **params)


def logits_row(n_vocab: int) -> tuple[int, int]:
    """Floats of a row of logits, in whole panels, and of the row with the largest logit of each block after them."""
    width = row_stride(n_vocab)
    return width, width + up(width // logits.BLOCK, _LINE)


@EMITTERS.of(op.ComputeLogits)
class ComputeLogitsEmitter(OperationEmitter[op.ComputeLogits]):
    """Computes logits; where to is written into the tape before every pass."""

    def __init__(self, operation: op.ComputeLogits, scope: Scope) -> None:
        super().__init__(operation, scope)
        self._is_capped = operation.softcap is not None
        self.kernels = (logits.multiply_logits, *[logits.cap_logits] * self._is_capped)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        return {"normed": row_bytes(self.operation.x.width)}

    def emit(self, tape: Tape) -> None:
        operation, x = self.operation, self.placed.rows(self.operation.x, tape)
        rows = tape.norm_output(operation.norm, x, tape.space.named("normed", x.width))
        tape.logits = tape.entries(rows, ((operation.linear, 0),), is_output=True)
        matrix, (width, tape.logits["ldy"]) = tape.weights.matrix(operation.linear), logits_row(operation.linear.n_out)
        tape.add(
            Work.of_matrices("output", [matrix], is_output=True),
            logits.multiply_logits,
            entries=tape.logits.ctypes.data,
            n_panels=matrix.n_panels,
            width=width,
            cap_logits=address(logits.cap_logits) if self._is_capped else 0,
            cap=operation.softcap or 0.0,
        )


# Operations of packages


class ByRowEmitter(OperationEmitter[Operation]):
    """Calls a function for each row; see `Operation.kernels`."""

    def __init__(self, operation: Operation, scope: Scope, function: Callable[..., None]) -> None:
        super().__init__(operation, scope)
        self._operands = (*operation.operands, *operation.made)
        kinds = tuple(_kind(operation, each) for each in self._operands)
        self._kernel = by_row_kernel(function, kinds, _name(function, kinds))
        self.kernels = (self._kernel,)

    def emit(self, tape: Tape) -> None:
        operands = self.placed.table(*(_operand(each, self.placed) for each in self._operands))
        tape.add(Work(type(self.operation).__name__), self._kernel, operands=operands)


def _kind(operation: Operation, operand: Any) -> type:
    """An operand's type for a function that numba compiles."""
    for kind, types in ((np.ndarray, Value | Vector), (float, float), (int, int)):
        if isinstance(operand, types):
            return kind
    name, found = type(operation).__name__, type(operand).__name__
    raise UnsupportedError(f"operation {name} has a {found}; by rows numba-cpu takes values, vectors, and numbers")


def _operand(given: Any, placed: Placed) -> Operand:
    """An operand as the kernel reads it."""
    address = width = stride = count = 0
    number = 0.0
    if isinstance(given, Value):
        place = placed.at(given)
        address, width, stride = place.address, given.width, place.width
    elif isinstance(given, Vector):
        address, width = placed.weights.vector(given), given.size
    elif isinstance(given, float):
        number = given
    else:
        count = int(given)
    return Operand(address=address, width=width, stride=stride, number=number, count=count)


def _name(function: Callable[..., None], kinds: tuple[type, ...]) -> str:
    """A name for compiled code, which changes with the function, its file, and its closure."""
    enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = (source_key(function), [kind.__name__ for kind in kinds], enclosed)
    return f"{function.__name__}_{hashlib.sha256(dumps(parts)).hexdigest()[:24]}"
