"""A memory of n-grams: rows of a table by the last tokens, and their additions to residual streams."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cpu.operations import OperationEmitter, Placed, Tape, Work, table
from augury.plugins.ngram_memory.block import GateStreams, LookUpNgrams
from augury.plugins.ngram_memory.kernels.numba_cpu import Norms, gate_streams, look_up


class LookUpNgramsEmitter(OperationEmitter[LookUpNgrams]):
    """Looks up rows by the last tokens."""

    kernels = (look_up,)

    def place(self, placed: Placed) -> None:
        super().place(placed)
        numbers = [*self.operation.multipliers, *self.operation.first, *self.operation.size]
        self._numbers = placed.arena.keep(np.array(numbers, np.uint64).view(np.int64), "scratch")

    def emit(self, tape: Tape) -> None:
        operation, matrix = self.operation, tape.weights.matrix(self.operation.table)
        tape.add(
            Work("looking up n-grams"),
            look_up,
            embed=tape.weights.address(matrix.kind, "embed"),
            table=matrix.address,
            size=operation.table.n_in,
            out=self.placed.at(operation.out),
            tokens=self.scope.cache(operation.tokens.cache).rows,
            n_tokens=len(operation.multipliers),
            n_heads=len(operation.size),
            numbers=self._numbers,
            eos=operation.eos,
        )


class GateStreamsEmitter(OperationEmitter[GateStreams]):
    """Gates values for each stream, and norms the results."""

    kernels = (gate_streams,)

    def scratch_bytes(self) -> int:
        """See `OperationEmitter.scratch_bytes`: of a stream the norms of its key and query."""
        return 8 * self.operation.key_norm.size + 128

    def place(self, placed: Placed) -> None:
        super().place(placed)
        norms = (self.operation.key_norm, self.operation.query_norm, self.operation.norm)
        made = Norms(**dict(zip(("key", "query", "given"), map(placed.weights.norm, norms), strict=True)))
        self._norms = placed.arena.keep(table([made]), "scratch")

    def emit(self, tape: Tape) -> None:
        operation = self.operation
        size, values = operation.key_norm.size, (operation.x, operation.keys, operation.values, *operation.out)
        rows = dict(zip(("x", "keys", "values", "given", "normed"), map(self.placed.at, values), strict=True))
        sizes = {"n_streams": operation.x.width // size, "size": size}
        tape.add(Work("gates of n-grams"), gate_streams, **rows, **sizes, norms=self._norms)
