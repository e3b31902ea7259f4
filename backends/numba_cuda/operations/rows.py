"""Norms, products and other operations on rows, one by one; rows of tables that x begins as, inputs of layers, and logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from attrs import evolve

from augury import lowering as op
from augury.backends.numba_cuda.device import Arguments, Pointer
from augury.backends.numba_cuda.kernels.activation import gate as kernel
from augury.backends.numba_cuda.kernels.convolution import convolve_block
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.embed import EMBED, read_tokens
from augury.backends.numba_cuda.kernels.halves import slices_of
from augury.backends.numba_cuda.kernels.inputs import MAX_ROWS, MAX_TOKENS, POSITIONS, TOKENS
from augury.backends.numba_cuda.kernels.low_rank import LowRankArgs, low_rank_down, low_rank_up
from augury.backends.numba_cuda.kernels.sample import cap_logits
from augury.backends.numba_cuda.kernels.stream import EMBED_HALVES
from augury.backends.numba_cuda.operations.emitter import EMITTERS, OperationEmitter, launches
from augury.backends.numba_cuda.operations.layout import INPUTS, Layout
from augury.backends.numba_cuda.operations.rewrites import JoinNormalized, NormalizeParts, ReadEmbedded
from augury.backends.numba_cuda.passes import Logits
from augury.backends.numba_cuda.products import WARPS, DeviceRows, Operand, units_of
from augury.backends.numba_cuda.tape import Gate, Tape, warps_of
from augury.blocks import Linear, Norm, Vector
from augury.lowering.rewrites import AddLowRank, MultiplyActivated

SCALES = "scales of adapters"
"""The buffer of `Batch.scales`."""

_LOW = "rows of adapters"


@EMITTERS.of(op.Normalize)
class NormalizeEmitter(OperationEmitter[op.Normalize]):
    """Norms x, or other rows: in place, on their way to matrices, or where they are copied to."""

    def buffers(self) -> Mapping[str, int]:
        x = self.operation.x
        return Tape.operand_buffers("normed", x.width) if x in self.layout.streams else {}

    def emit(self, tape: Tape) -> None:
        layout, norm, x, out = self.layout, self.operation.norm, self.operation.x, self.operation.out
        n_groups = 1 if norm is None else x.width // norm.size
        if x in layout.streams:
            parts, as_floats = layout.wanted(out, tape)
            tape.operands[out] = tape.norm(norm, parts, as_floats=as_floats)
        elif out in layout.operands:
            rows, to = layout.rows(x, tape), layout.operand(out, tape)
            if n_groups > 1:
                tape.join([(rows, x.width, norm)], to)
            elif norm is not None or not _is_there([x.width], to, tape):
                tape.norm_groups(rows, x.width, norm, to)
            else:
                tape.operands[out] = evolve(to, floats=rows.at)
        else:
            rows = layout.rows(out, tape)
            if out not in layout.in_place:
                tape.blend(rows, layout.rows(x, tape), 0.0, 1.0, width=x.width)
            tape.norm_in_place(norm, rows, x.width // n_groups, n_groups)


def _is_there(widths: Sequence[int], to: Operand, tape: Tape) -> bool:
    """Whether values lie as matrices read them: a token's, as floats, in whole units."""
    return tape.size.n_tokens == 1 and not to.as_bytes and all(width == to.width for width in widths)


@launches(NormalizeParts)
def _normalize_parts(operation: NormalizeParts, layout: Layout, tape: Tape) -> None:
    """Norms products that lie in one row, and puts some of them where matrices read them."""
    norms = [each for each in operation.operations if isinstance(each, op.Normalize)]
    rows = layout.whole_row(norms[0].x, tape)
    apart = [each for each in norms if each.out in layout.operands]
    to = layout.operand(apart[0].out, tape) if apart else None
    if to is not None and not any(each.norm for each in norms) and _is_there([each.x.width for each in apart], to, tape):
        tape.operands |= {each.out: evolve(to, floats=layout.rows(each.x, tape).at) for each in apart}
        return
    parts: list[tuple[Norm | None, int, int]] = [(each.norm, layout.row(each.x)[1], each.x.width) for each in norms]
    tape.norm_parts(rows, parts, to, n_apart=len(apart))


@launches(op.Multiply)
def multiply(operation: op.Multiply, layout: Layout, tape: Tape) -> None:
    """Multiplies rows by several matrices, in as few launches as their types allow."""
    x, first = layout.operand(operation.x, tape), next((out for out in operation.out if not layout.is_left(out)), None)
    if first is not None and (layout, layout.row(first)[0]) not in tape.made:
        tape.multiply(x, layout.products(operation), layout.whole_row(first, tape))
    for linear, out in zip(operation.linears, operation.out, strict=True):
        if layout.is_left(out):
            to = layout.rows(out, tape)
            tape.multiply(x, [(linear, 0)], to, adds=to is tape.x)


@launches(MultiplyActivated)
def multiply_activated(operation: MultiplyActivated, layout: Layout, tape: Tape) -> None:
    """Multiplies by gate and up and activates, in one launch where it can."""
    activation = operation.activate
    x, to, gate = layout.operand(operation.x, tape), layout.operand(operation.out[0], tape), _gate_of(activation)
    if activation.divisors is None and tape.multiply_gated(x, operation.linears, to, gate):
        return
    gates, *ups = (layout.rows(out, tape) for out in operation.out[1:])
    columns = [layout.row(out)[1] for out in operation.out[1:]]
    tape.multiply(x, [*zip(operation.linears, columns, strict=True)], layout.whole_row(operation.out[1], tape))
    width = operation.out[0].width
    activate(tape, gate, gates, ups[0] if ups else None, to, width, divisors=activation.divisors)


@launches(op.Activate)
def _activate(operation: op.Activate, layout: Layout, tape: Tape) -> None:
    x, to = layout.rows(operation.x, tape), layout.operand(operation.out, tape)
    up = None if operation.up is None else layout.rows(operation.up, tape)
    activate(tape, _gate_of(operation), x, up, to, operation.out.width, divisors=operation.divisors)


@launches(AddLowRank, buffers=lambda add: {_LOW: 4 * MAX_TOKENS * len(add.operation.low_rank.adapters)})
def _add_low_rank(operation: AddLowRank, layout: Layout, tape: Tape) -> None:
    low_rank, x, y = operation.low_rank, layout.rows(operation.x, tape), layout.rows(operation.y, tape)
    arrays = {"down": low_rank.down, "up": low_rank.up, "adapters": low_rank.adapters}
    given = {name: tape.weights.constant((low_rank, name), partial(np.asarray, array)) for name, array in arrays.items()}
    places = {"x": x.at, "y": y.at, "low": tape.buffers[_LOW], "scales": tape.buffers[SCALES]}
    n_ranks, width = len(low_rank.adapters), operation.y.width
    sizes = {"x_stride": x.width, "y_stride": y.width, "n_in": operation.x.width, "n_out": width}
    params = LowRankArgs(**given, **places, **sizes, n_ranks=n_ranks, n_adapters=low_rank.n_adapters)
    tape.launch(low_rank_down, (n_ranks, tape.size.n_tokens), WARP, params=params)
    tape.launch(low_rank_up, (-(-width // THREADS), tape.size.n_tokens), THREADS, params=params)


@launches(op.Add, buffers=lambda add: {"y": 4 * MAX_TOKENS * add.operation.y.width})
def _add(operation: op.Add, layout: Layout, tape: Tape) -> None:
    """Adds rows to x, or their norm, unless the kernel that makes them does so."""
    y, norm = operation.y, operation.norm
    if layout.adds(y):
        return
    later = DeviceRows(tape.buffers["y"], tape.x.width)
    if not layout.is_left(y):
        rows = layout.rows(y, tape)
        tape.add_pending()
        if norm is None:
            tape.blend(tape.x, rows, 1.0, 1.0)
            return
        tape.blend(later, rows, 0.0, 1.0)
    tape.add_rows_later(later, norm)


@launches(op.AddStream)
def _add_stream(operation: op.AddStream, _: Layout, tape: Tape) -> None:
    """Adds the second residual stream, as it is with the next norm, which may trade places."""
    z = DeviceRows(tape.buffers["embedded"], tape.x.width)
    if (first := operation.first) is not None:
        tape.blend(tape.x, DeviceRows(tape.weights.vector(first), first.size), 1.0, operation.factor, is_one_row=True)
    elif operation.factor != 1.0:
        tape.blend(tape.x, z, 1.0, operation.factor)
    else:
        tape.add_rows_later(z, swaps=operation.swaps)


@launches(op.Constant)
def _constant(operation: op.Constant, layout: Layout, tape: Tape) -> None:
    numbers, out = operation.numbers, operation.out
    row = DeviceRows(tape.weights.constant(("numbers", numbers), lambda: np.array(numbers, np.float32)), out.width)
    tape.blend(layout.rows(out, tape), row, 0.0, 1.0, width=out.width, is_one_row=True)


@launches(op.ReadInput, op.ReadHidden, ReadEmbedded)
def _given(*_: object) -> None:
    """Writes nothing: the rows lie where they were put before the block began."""


@launches(JoinNormalized)
def _join_normalized(operation: JoinNormalized, layout: Layout, tape: Tape) -> None:
    """Norms rows where they are put side by side."""
    tape.add_pending()
    rows = [tape.seen if x in layout.streams else layout.rows(x, tape) for x in operation.x]
    widths = [x.width for x in operation.x]
    tape.join([*zip(rows, widths, operation.norms, strict=True)], layout.operand(operation.out, tape))


@launches(op.ConvolveBlock)
def _convolve_block(operation: op.ConvolveBlock, layout: Layout, tape: Tape) -> None:
    size, n_taps = operation.x.width, operation.n_taps
    x, weights = layout.rows(operation.x, tape), layout.rows(operation.weights, tape)
    first, to = 4 * operation.side * n_taps, layout.operand(operation.out, tape)
    base = tape.weights.vector(operation.base).at(first * size)
    places = {"x": x.at, "weights": weights.at.at(first * operation.n_groups), "base": base}
    strides = {"x_stride": x.width, "weights_stride": weights.width}
    sizes = {"size": size, "group": size // operation.n_groups, "n_taps": n_taps}
    grid = (warps_of(units_of(size)), tape.size.n_tokens)
    tape.launch(convolve_block, grid, WARP * WARPS, **places, **strides, **sizes, to=to.target)


# The ends of models: rows of tables that x begins as, inputs of layers, and logits


@launches(op.LookUp)
def _look_up(operation: op.LookUp, layout: Layout, tape: Tape) -> None:
    to = layout.rows(operation.out, tape)
    ids = tape.inputs.at(4 * (POSITIONS if operation.is_by_position else TOKENS))
    look_up(tape, operation.table, to, ids, scale=operation.scale)


@launches(op.ReadTokens)
def _read_tokens(operation: op.ReadTokens, layout: Layout, tape: Tape) -> None:
    out = layout.rows(operation.out, tape)
    tape.launch(read_tokens, (-(-tape.size.n_tokens // WARP),), WARP, out=out.at, stride=out.width)


@launches(op.InitStreams)
def _init_streams(operation: op.InitStreams, layout: Layout, tape: Tape) -> None:
    """Copies rows to x or the residual streams, unless they lie there."""
    y, to, size = operation.y, tape.streams, operation.y[0].width
    for i in range(0 if layout.begins(y[0]) else to.width // size):
        rows = layout.rows(y[min(i, len(y) - 1)], tape)
        tape.blend(DeviceRows(to.at.at(4 * i * size), to.width), rows, 0.0, 1.0, width=size)


@launches(op.SetLayerInputs, buffers=lambda inputs: {INPUTS: 4 * MAX_TOKENS * inputs.operation.x.width})
def _set_layer_inputs(operation: op.SetLayerInputs, layout: Layout, tape: Tape) -> None:
    to = DeviceRows(tape.buffers[INPUTS], operation.x.width)
    if not layout.is_given(operation.x):
        tape.blend(to, layout.rows(operation.x, tape), 0.0, 1.0)
    tape.blend(to, layout.rows(operation.other, tape), operation.scale, operation.scale * operation.factor)


def _logits_buffers(operation: op.ComputeLogits) -> dict[str, int]:
    linear = operation.linear
    made = {"logits": 4 * MAX_ROWS * linear.n_out, "best of chunks": Logits.n_bytes}
    return {**made, **Tape.operand_buffers("normed", linear.n_in)}


@launches(op.ComputeLogits, buffers=lambda compute: _logits_buffers(compute.operation))
def _compute_logits(operation: op.ComputeLogits, layout: Layout, tape: Tape) -> None:
    """Computes logits, and finds each row's best token and its logit where these are wanted."""
    linear = operation.linear
    narrow = tape.narrow.get(linear)
    matrices = [(tape.weights.matrix(linear), 0)] if narrow is None else narrow.matrices
    n_vocab = sum(matrix.n_rows for matrix, _ in matrices)
    rows = DeviceRows(tape.buffers["logits"], n_vocab)
    if operation.x in layout.streams:
        normed = tape.norm(operation.norm, (linear,), is_output=True)
    else:
        normed = tape.operand("normed", linear.n_in, (linear,))
        tape.norm_groups(layout.rows(operation.x, tape), linear.n_in, operation.norm, normed, is_output=True)
    tape.multiply_matrices(normed, matrices, rows, is_output=True)
    if operation.softcap is not None:
        grid = (-(-n_vocab // THREADS), tape.size.n_rows)
        tape.launch(cap_logits, grid, THREADS, logits=rows.at, n=n_vocab, cap=operation.softcap)
    if not tape.chooses:
        return
    logits = Logits(tape.inputs, rows.at, tape.buffers["best of chunks"], n_vocab)
    n, best = tape.size.n_rows, tape.buffers["best"]
    tape.steps += [logits.best_of_chunks(n, n_vocab), logits.best(n, n_vocab, 1, best, best.at(4 * MAX_ROWS))]


# What several operations write


def _gate_of(operation: op.Activate) -> Gate:
    return Gate(operation.activation, operation.limit, operation.limits_activated, operation.constants)


def activate(
    tape: Tape,
    gate: Gate,
    gates: DeviceRows,
    ups: DeviceRows | None,
    to: Operand,
    size: int,
    *,
    divisors: Vector | None = None,
    per_token: int = 0,
    n_apart: int = 0,
) -> None:
    """Write that gates are activated, divided and multiplied with ups, as far as there are such; see `kernels.activation`."""
    arguments: Arguments = {"rows": gates.at, "stride": gates.width, "size": size, "per_token": per_token, "n_apart": n_apart}
    if ups is not None:
        arguments |= {"ups": ups.at, "up_stride": ups.width}
    if divisors is not None:
        arguments |= {"divisors": tape.weights.vector(divisors), "has_divisors": True}
    grid = (warps_of(units_of(size)), max(1, per_token) * tape.size.n_tokens)
    params = gate.arguments(has_up=ups is not None)
    tape.launch(kernel, grid, WARP * WARPS, params=params, to=to.target, **arguments)


def look_up(tape: Tape, table: Linear, to: DeviceRows, ids: Pointer, *, per_token: int = 1, scale: float = 1.0) -> None:
    """Write that rows of a matrix are looked up, so many for each token."""
    matrix = tape.weights.matrix(table)
    grid = (-(-units_of(table.n_in) // WARP), tape.size.n_tokens * per_token)
    sizes = {"size": table.n_in, "n_steps": matrix.n_steps, "n": matrix.n, "per_token": per_token}
    if matrix.is_halved:
        sizes = {"size": table.n_in, "n_steps": slices_of(table.n_in)[0], "per_token": per_token}
        tape.launch(EMBED_HALVES[matrix.format.name], grid, WARP, w=matrix.words, x=to.at, ids=ids, scale=scale, **sizes)
        return
    tape.launch(EMBED[matrix.format.name], grid, WARP, w=matrix.words, x=to.at, ids=ids, scale=scale, **sizes)
