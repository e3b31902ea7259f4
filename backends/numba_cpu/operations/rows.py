"""Norms, products, activations and other operations on single rows; tables that x begins as, inputs of layers, and logits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
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
from augury.backends.numba_cpu.operations.emitter import OperationEmitter, Placed, records, require_multiple
from augury.backends.numba_cpu.operations.layout import INPUTS
from augury.backends.numba_cpu.tape import Tape, ThreadRows, Work, row_bytes, row_stride
from augury.blocks import Experts, Vector
from augury.errors import UnsupportedError
from augury.lowering import Operation, Scope, Value, source_key
from augury.lowering.rewrites import AddLowRank, MultiplyActivated

_LOW = "rows of adapters"
_LINE = 16  # floats of a cache line


@records(op.Normalize, kernels=(rows.place_rows,), needs_no_barrier=True)
def _normalize(operation: op.Normalize, placed: Placed, tape: Tape) -> None:
    """Norms rows, or copies them, from where they are to where the next operation wants them."""
    to = ThreadRows(placed.rows(operation.out, tape).address, placed.layout.stride(operation.out))
    work = "norm" if operation.norm else "copying rows"
    tape.place(work, _source(operation.x, placed, tape), to, operation.x.width, operation.norm)


def _source(x: op.Value, placed: Placed, tape: Tape) -> ThreadRows:
    """Where rows lie: norms of x, of which each takes its part, in memory of a thread's own."""
    if (kept := tape.kept.get(x.root)) is None:
        return placed.at(x)
    return ThreadRows(kept.address + 4 * x.first, kept.width, kept.thread_stride)


@records(op.Multiply)
def _multiply(operation: op.Multiply, placed: Placed, tape: Tape) -> None:
    to = [placed.rows(value, tape).address for value in operation.out]
    tape.multiply(operation.purpose, placed.rows(operation.x, tape), list(zip(operation.linears, to, strict=True)))


@records(
    AddLowRank,
    kernels=(rows.low_rank_down, rows.low_rank_up),
    buffers=lambda add, _: {_LOW: 4 * MAX_TOKENS * len(add.operation.low_rank.adapters)},
    written=property(lambda add: (add.operation.y,)),
)
def _add_low_rank(operation: AddLowRank, placed: Placed, tape: Tape) -> None:
    x, y, given = operation.x, operation.y, operation.low_rank
    arrays = {"down": given.down, "up": given.up, "adapters": given.adapters.astype(np.int64)}
    kept = {name: placed.arena.shared((given, name), partial(np.asarray, each), "adapters") for name, each in arrays.items()}
    to = ThreadRows(placed.rows(y, tape).address, placed.layout.stride(y))
    sizes = {"n_adapters": given.n_adapters, "n_ranks": len(given.adapters), "n_in": x.width, "n_out": y.width}
    places = {"x": _source(x, placed, tape), "y": to, "low": tape.buffers[_LOW]}
    places["scales"] = tape.weights.scales.ctypes.data
    for kernel in (rows.low_rank_down, rows.low_rank_up):
        tape.add(Work("adapters"), kernel, **places, **kept, **sizes)


@records(op.Add)
def _add(operation: op.Add, _: Placed, tape: Tape) -> None:
    """Leaves products to be added to the residual stream by the next norm."""
    tape.add_later(operation.norm)


@records(op.AddStream)
def _add_stream(operation: op.AddStream, placed: Placed, tape: Tape) -> None:
    """Adds the second residual stream, or trades places with it; the norm's rows are free between blocks."""
    x, normed, z = tape.space.x, tape.space.normed, tape.space.embedded
    assert z is not None
    added = z
    if (first := operation.first) is not None:
        key, weights = ("rows of", first), placed.weights
        added = ThreadRows(placed.arena.shared(key, lambda: np.tile(weights.floats(first), MAX_TOKENS), "scratch"), first.size)
    tape.norm_x(None)
    if operation.swaps:
        tape.copy(x, normed)
    tape.add_rows(x, added, operation.factor)
    if operation.swaps:
        tape.copy(normed, z)


def _activation_kernel(operation: op.Activate) -> Any:
    return activate_kernel(**kind_of(operation, is_gated=operation.up is not None))


@records(op.Activate, kernels=property(lambda activate: (_activation_kernel(activate.operation),)), needs_no_barrier=True)
def _activate(operation: op.Activate, placed: Placed, tape: Tape) -> None:
    x, other, to = (placed.at(value) for value in (operation.x, operation.up, operation.out))
    rows = {"x": x, "up": other, "out": to, "size": operation.x.width}
    tape.add(Work("activation"), _activation_kernel(operation), **rows, activation=_activating(operation, placed))


def kind_of(part: op.Activate | Experts, *, is_gated: bool) -> dict[str, Any]:
    """The arguments that make an activation's kernel."""
    limits = {"is_limited": part.limit is not None, "limits_activated": part.limits_activated}
    return {"activation": part.activation.value, "is_gated": is_gated, **limits}


def _activating(operation: op.Activate, placed: Placed) -> Activating:
    return activating(operation.limit, operation.constants, placed.weights.vector(operation.divisors))


@records(op.Join, kernels=(rows.place_rows,), needs_no_barrier=True)
def _join(operation: op.Join, placed: Placed, tape: Tape) -> None:
    to, column = placed.at(operation.out), 0
    for value in operation.x:
        part = ThreadRows(to.address + 4 * column, to.width)
        tape.place("joining rows", _source(value, placed, tape), part, value.width)
        column += value.width


@records(op.InitStreams, kernels=(rows.place_rows,))
def _init_streams(operation: op.InitStreams, placed: Placed, tape: Tape) -> None:
    """Copies rows to x, or to the residual streams."""
    y, to = operation.y, tape.streams
    size = y[0].width
    if to.thread_stride:  # x, which every thread has for itself
        tape.copy(placed.rows(y[0], tape), to)
        tape.waits = True  # the next record may write these rows
        return
    for i in range(to.width // size):
        x = placed.at(y[min(i, len(y) - 1)])
        tape.place("copying rows", x, ThreadRows(to.address + 4 * i * size, to.width), size)


@records(op.Constant, kernels=(rows.place_rows,), needs_no_barrier=True)
def _constant(operation: op.Constant, placed: Placed, tape: Tape) -> None:
    numbers, out = operation.numbers, operation.out
    row = ThreadRows(placed.constant(numbers, lambda: np.array(numbers, np.float32)), 0)
    tape.place("constants", row, placed.at(out), out.width)


def _check_groups(emitter: OperationEmitter[op.ConvolveBlock]) -> None:
    group = emitter.operation.x.width // emitter.operation.n_groups
    require_multiple(group, convolution.LANES, f"a convolution in groups of {group} channels")


@records(op.ConvolveBlock, kernels=(convolution.convolve_block,), check=_check_groups)
def _convolve_block(operation: op.ConvolveBlock, placed: Placed, tape: Tape) -> None:
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


def _products_kernel(operation: MultiplyActivated) -> Any:
    return multiply_activated_kernel(**kind_of(operation.activate, is_gated=operation.activate.up is not None))


@records(MultiplyActivated, kernels=property(lambda multiply: (_products_kernel(multiply.operation),)))
def _multiply_activated(operation: MultiplyActivated, placed: Placed, tape: Tape) -> None:
    """Multiplies by gate and up in one record, and activates where the products are still near."""
    weights, x = tape.weights, placed.rows(operation.x, tape)
    hidden, *products = (placed.at(value) for value in operation.out)
    entries = tape.entries(x, [(linear, to.address) for linear, to in zip(operation.linears, products, strict=True)])
    matrices = [weights.matrix(linear) for linear in operation.linears]
    width, quantize, block_bytes = operation.out[0].width, 0, 0
    if operation.reader is not None:
        kind, activation = weights.matrix(operation.reader).kind, weights.activation(operation.reader)
        quantize, block_bytes = weights.address(kind, "quantize"), activation_bytes(activation, 1, 1)
    tape.add(
        Work.of_matrices(operation.purpose, matrices),
        _products_kernel(operation),
        entries=entries.ctypes.data,
        n_panels=matrices[0].n_panels,
        out=hidden.address,
        n_rows=width,
        activation=_activating(operation.activate, placed),
        quantize=quantize,
        block_bytes=block_bytes,
    )
    tape.kept[operation.out[0]] = ThreadRows(hidden.address, width, is_operand=operation.reader is not None)


# The ends of models: rows of tables that x begins as, inputs of layers, and logits


@records(op.LookUp, kernels=(matmul.look_up,))
def _look_up(operation: op.LookUp, placed: Placed, tape: Tape) -> None:
    """Looks up rows of a matrix; every thread for itself where its rows are its own."""
    matrix, to = tape.weights.matrix(operation.table), placed.rows(operation.out, tape)
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


@records(op.ReadTokens, kernels=(matmul.read_tokens,))
def _read_tokens(operation: op.ReadTokens, placed: Placed, tape: Tape) -> None:
    tape.add(Work("token ids"), matmul.read_tokens, out=placed.at(operation.out))


@records(op.SetLayerInputs, kernels=(step.add_rows,), buffers=lambda given, _: {INPUTS: row_bytes(given.operation.x.width)})
def _set_layer_inputs(operation: op.SetLayerInputs, placed: Placed, tape: Tape) -> None:
    size, (x, y) = operation.x.width, (placed.at(value) for value in operation.read)
    to = ThreadRows(tape.buffers[INPUTS], up(size, step.PANEL_ROWS))
    params = {"scale": operation.scale, "factor": operation.factor, "is_private": False}
    tape.add(Work("inputs of layers"), step.add_rows, x=x, y=y, to=to, size=size, **params)


def logits_row(n_vocab: int) -> tuple[int, int]:
    """Floats of a row of logits, in whole panels, and of the row with the largest logit of each block after them."""
    width = row_stride(n_vocab)
    return width, width + up(width // logits.BLOCK, _LINE)


@records(
    op.ComputeLogits,
    kernels=property(lambda compute: (logits.multiply_logits, *[logits.cap_logits] * (compute.operation.softcap is not None))),
    buffers=lambda compute, _: {"normed": row_bytes(compute.operation.x.width)},
)
def _compute_logits(operation: op.ComputeLogits, placed: Placed, tape: Tape) -> None:
    """Computes logits; where to is written into the tape before every pass."""
    x = placed.rows(operation.x, tape)
    rows = tape.norm_output(operation.norm, x, tape.space.named("normed", x.width))
    tape.logits = tape.entries(rows, ((operation.linear, 0),), is_output=True)
    matrix, (width, tape.logits["ldy"]) = tape.weights.matrix(operation.linear), logits_row(operation.linear.n_out)
    tape.add(
        Work.of_matrices("output", [matrix], is_output=True),
        logits.multiply_logits,
        entries=tape.logits.ctypes.data,
        n_panels=matrix.n_panels,
        width=width,
        cap_logits=0 if operation.softcap is None else address(logits.cap_logits),
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
