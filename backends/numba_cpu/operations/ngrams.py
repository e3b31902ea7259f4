"""A memory of n-grams: rows of a table by the last tokens, and their additions to residual streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cpu.kernels import convolution, ngram
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.operations.emitter import Emitters, OperationEmitter, Placed
from augury.backends.numba_cpu.operations.layout import Place
from augury.backends.numba_cpu.operations.recurrence import place_taps
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import row_bytes
from augury.lowering import GateStreams, LookUpNgrams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.backends.numba_cpu.tape import Tape

__all__ = ["OPERATIONS"]

_TOKENS, _LAST = "tokens", "last tokens"


class LookUpNgramsEmitter(OperationEmitter):
    """Keeps the tokens before, and looks up rows by them.

    A convolution whose channel j lets through the token j places back tells each token the ones before it, also along its
    branch of a tree.
    """

    operation: LookUpNgrams
    kernels = (convolution.convolve, ngram.put_tokens, ngram.look_up)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        return dict.fromkeys((_TOKENS, _LAST), row_bytes(self._width))

    def place(self, placed: Placed) -> None:
        super().place(placed)
        operation, n, arena = self.operation, self.operation.n_tokens, placed.arena
        self._x, self._last = (Place(placed.buffers[name], self._width) for name in (_TOKENS, _LAST))
        taps, state = np.eye(n, dtype=np.float32)[::-1], placed.states[operation.state]
        self._layer = place_taps(taps, state, placed.n_aside, arena, x=self._x, y=self._last)
        numbers = [*operation.multipliers, *operation.first, *operation.size]
        self._numbers = arena.keep(np.array(numbers, np.uint64).view(np.int64), "scratch")

    def emit(self, tape: Tape) -> None:
        operation, matrix = self.operation, tape.weights.matrix(self.operation.table)
        tape.add(Work("last tokens"), ngram.put_tokens, x=self._x, n_each=operation.n_tokens)
        self.emit_states(tape)
        tape.add(
            Work("looking up n-grams"),
            ngram.look_up,
            embed=tape.weights.address(matrix.kind, "embed"),
            table=matrix.address,
            size=operation.table.n_in,
            out=self.placed.at(operation.out).address,
            tokens=self._last,
            n_tokens=operation.n_tokens,
            n_heads=len(operation.size),
            numbers=self._numbers,
            eos=operation.eos,
        )

    def emit_states(self, tape: Tape) -> None:
        tape.add(Work("convolution"), convolution.convolve, layer=self._layer)

    @property
    def _width(self) -> int:
        return up(self.operation.n_tokens, 16)


class GateStreamsEmitter(OperationEmitter):
    """Gates values for each stream, and norms the results."""

    operation: GateStreams
    kernels = (ngram.gate_streams,)

    def scratch_bytes(self) -> int:
        """See `OperationEmitter.scratch_bytes`: of a stream the norms of its key and query."""
        return 8 * self.operation.key_norm.size + 128

    def emit(self, tape: Tape) -> None:
        operation, placed, norm = self.operation, self.placed, tape.weights.norm
        size, (given, normed) = operation.key_norm.size, (placed.at(value).address for value in operation.out)
        rows = {"keys": placed.at(operation.keys), "values": placed.at(operation.values), "x": placed.rows(operation.x, tape)}
        norms = {"key_norm": norm(operation.key_norm), "query_norm": norm(operation.query_norm), "norm": norm(operation.norm)}
        sizes = {"n_streams": operation.x.width // size, "size": size}
        tape.add(Work("gates of n-grams"), ngram.gate_streams, **rows, **sizes, **norms, given=given, normed=normed)


OPERATIONS: Emitters = {
    LookUpNgrams: LookUpNgramsEmitter,
    GateStreams: GateStreamsEmitter,
}
