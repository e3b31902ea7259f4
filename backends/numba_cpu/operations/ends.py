"""The ends of models: rows of tables that x begins as, inputs of layers, and logits."""

from __future__ import annotations

from collections.abc import Mapping

from augury.backends.numba_cpu.kernels import logits, matmul, step
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.operations.emitter import EMITTERS, OperationEmitter
from augury.backends.numba_cpu.operations.layout import INPUTS
from augury.backends.numba_cpu.tape import Tape, ThreadRows, Work, row_bytes, row_stride
from augury.lowering import ComputeLogits, LookUp, ReadTokens, Scope, SetLayerInputs

_LINE = 16  # floats of a cache line


@EMITTERS.of(LookUp)
class LookUpEmitter(OperationEmitter[LookUp]):
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


@EMITTERS.of(ReadTokens)
class ReadTokensEmitter(OperationEmitter[ReadTokens]):
    """Writes the ids of tokens as floats."""

    kernels = (matmul.read_tokens,)

    def emit(self, tape: Tape) -> None:
        tape.add(Work("token ids"), matmul.read_tokens, out=self.placed.at(self.operation.out))


@EMITTERS.of(SetLayerInputs)
class SetLayerInputsEmitter(OperationEmitter[SetLayerInputs]):
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


@EMITTERS.of(ComputeLogits)
class ComputeLogitsEmitter(OperationEmitter[ComputeLogits]):
    """Computes logits; where to is written into the tape before every pass."""

    def __init__(self, operation: ComputeLogits, scope: Scope) -> None:
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
