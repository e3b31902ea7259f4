"""A memory of n-grams: rows of a table by the last tokens, and their additions to residual streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.ngram import find_ngrams, give, put_tokens
from augury.backends.numba_cuda.operations.emitter import Emitters, OperationEmitter, Scope
from augury.backends.numba_cuda.operations.recurrence import convolve
from augury.backends.numba_cuda.operations.rows import look_up
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.state import State
from augury.blocks import Convolution
from augury.errors import UnsupportedError
from augury.lowering import GateStreams, LookUpNgrams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.backends.numba_cuda.device import Arguments
    from augury.backends.numba_cuda.tape import Tape

__all__ = ["OPERATIONS"]

_TOKENS, _LAST, _NUMBERS = "tokens", "last tokens", "numbers of n-grams"


class LookUpNgramsEmitter(OperationEmitter):
    """Keeps the tokens before, and looks up rows by them.

    A convolution whose channel j lets through the token j places back tells each token the ones before it, also along its
    branch of a tree.
    """

    operation: LookUpNgrams

    def __init__(self, operation: LookUpNgrams, scope: Scope) -> None:
        super().__init__(operation, scope)
        self.place, self.state = operation.state, State(operation.kept()[operation.state], scope.options)

    def buffers(self) -> Mapping[str, int]:
        operation, row = self.operation, 4 * MAX_TOKENS
        return {**dict.fromkeys((_TOKENS, _LAST), row * operation.n_tokens), _NUMBERS: row * len(operation.size)}

    def emit(self, tape: Tape) -> None:
        operation, buffers, n, n_heads = self.operation, tape.buffers, self.operation.n_tokens, len(self.operation.size)
        tape.launch(put_tokens, (tape.size.n_tokens,), WARP, x=buffers[_TOKENS], n=n)
        self.emit_states(tape)
        numbers = (*operation.multipliers, *operation.first, *operation.size)
        known = tape.weights.constant(("n-grams", numbers), lambda: np.array([each % 2**64 for each in numbers], np.uint64))
        places: Arguments = {"tokens": buffers[_LAST], "numbers": known, "rows": buffers[_NUMBERS]}
        grid = (-(-n_heads // WARP), tape.size.n_tokens)
        tape.launch(find_ngrams, grid, WARP, n=n, n_heads=n_heads, eos=operation.eos, **places)
        look_up(tape, operation.table, self.layout.rows(operation.out, tape), buffers[_NUMBERS], per_token=n_heads)

    def emit_states(self, tape: Tape) -> None:
        n = self.operation.n_tokens
        x, y = (Rows(tape.buffers[name], n) for name in (_TOKENS, _LAST))
        taps = tape.weights.constant(("last tokens", n), lambda: np.ascontiguousarray(np.eye(n, dtype=np.float32)[::-1]))
        convolve(tape, Convolution("", n, n), self.state, x, y, taps=taps)


class GateStreamsEmitter(OperationEmitter):
    """Gates values for each stream, and norms the results."""

    operation: GateStreams

    def emit(self, tape: Tape) -> None:
        operation, layout, size = self.operation, self.layout, self.operation.key_norm.size
        n, (given, out) = operation.x.width // size, operation.out
        values = {"keys": operation.keys, "values": operation.values, "streams": operation.x, "given": given, "out": out}
        rows = {name: layout.rows(value, tape) for name, value in values.items()}
        if any(rows[name].width != value.width for name, value in values.items()):
            raise UnsupportedError("streams of n-grams that share rows with other values; use backend reference")
        arguments: Arguments = {name: each.at for name, each in rows.items()}
        arguments |= {
            name: tape.weights.norm_arguments(getattr(operation, name), n) for name in ("key_norm", "query_norm", "norm")
        }
        tape.launch(give, (tape.size.n_tokens, n), THREADS, n=n, size=size, **arguments)


OPERATIONS: Emitters = {
    LookUpNgrams: LookUpNgramsEmitter,
    GateStreams: GateStreamsEmitter,
}
