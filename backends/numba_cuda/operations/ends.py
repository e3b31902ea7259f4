"""The ends of models: rows of tables that x begins as, inputs of layers, and logits."""

from __future__ import annotations

from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.embed import read_tokens
from augury.backends.numba_cuda.kernels.inputs import MAX_ROWS, MAX_TOKENS, POSITIONS, TOKENS
from augury.backends.numba_cuda.kernels.sample import cap_logits
from augury.backends.numba_cuda.operations.emitter import launches
from augury.backends.numba_cuda.operations.layout import INPUTS, Layout
from augury.backends.numba_cuda.operations.rows import look_up
from augury.backends.numba_cuda.passes import Logits
from augury.backends.numba_cuda.products import DeviceRows
from augury.backends.numba_cuda.tape import Tape
from augury.lowering import ComputeLogits, InitStreams, LookUp, ReadTokens, SetLayerInputs


@launches(LookUp)
def _look_up(operation: LookUp, layout: Layout, tape: Tape) -> None:
    """Looks up rows of a matrix."""
    to = layout.rows(operation.out, tape)
    ids = tape.inputs.at(4 * (POSITIONS if operation.is_by_position else TOKENS))
    look_up(tape, operation.table, to, ids, scale=operation.scale)


@launches(ReadTokens)
def _read_tokens(operation: ReadTokens, layout: Layout, tape: Tape) -> None:
    """Writes the ids of tokens as floats."""
    out = layout.rows(operation.out, tape)
    tape.launch(read_tokens, (-(-tape.size.n_tokens // WARP),), WARP, out=out.at, stride=out.width)


@launches(InitStreams)
def _init_streams(operation: InitStreams, layout: Layout, tape: Tape) -> None:
    """Copies rows to x or the residual streams, unless they lie there."""
    y, to, size = operation.y, tape.streams, operation.y[0].width
    for i in range(0 if layout.begins(y[0]) else to.width // size):
        rows = layout.rows(y[min(i, len(y) - 1)], tape)
        tape.blend(DeviceRows(to.at.at(4 * i * size), to.width), rows, 0.0, 1.0, width=size)


@launches(SetLayerInputs, buffers=lambda inputs: {INPUTS: 4 * MAX_TOKENS * inputs.x.width})
def _set_layer_inputs(operation: SetLayerInputs, layout: Layout, tape: Tape) -> None:
    """Adds the rows of a table to the inputs of layers."""
    to = DeviceRows(tape.buffers[INPUTS], operation.x.width)
    if not layout.is_given(operation.x):
        tape.blend(to, layout.rows(operation.x, tape), 0.0, 1.0)
    tape.blend(to, layout.rows(operation.other, tape), operation.scale, operation.scale * operation.factor)


def _logits_buffers(operation: ComputeLogits) -> dict[str, int]:
    linear = operation.linear
    made = {"logits": 4 * MAX_ROWS * linear.n_out, "best of chunks": Logits.n_bytes}
    return {**made, **Tape.operand_buffers("normed", linear.n_in)}


@launches(ComputeLogits, buffers=_logits_buffers)
def _compute_logits(operation: ComputeLogits, layout: Layout, tape: Tape) -> None:
    """Computes logits, and finds each row's best token and its logit where these are wanted."""
    linear = operation.linear
    narrow = tape.narrow.get(linear)
    matrices = [(tape.weights.matrix(linear), 0)] if narrow is None else narrow.matrices
    n_vocab = sum(matrix.n_rows for matrix, _ in matrices)
    rows = DeviceRows(tape.buffers["logits"], n_vocab)
    if layout.is_stream(operation.x):
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
