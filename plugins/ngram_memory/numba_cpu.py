"""A memory of n-grams: rows of a table by the last tokens, and their additions to residual streams."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cpu.operations import OperationEmitter, Tape, Work
from augury.plugins.ngram_memory.block import GateStreams, LookUpNgrams
from augury.plugins.ngram_memory.kernels.numba_cpu import Norms, gate_streams, look_up


class LookUpNgramsEmitter(OperationEmitter[LookUpNgrams]):
    """Looks up rows by the last tokens."""

    kernels = (look_up,)

    def emit(self, tape: Tape) -> None:
        operation, matrix = self.operation, tape.weights.matrix(self.operation.table)
        numbers = (*operation.multipliers, *operation.first, *operation.size)
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
            numbers=self.placed.constant(("n-grams", numbers), lambda: np.array(numbers, np.uint64)),
            eos=operation.eos,
        )


class GateStreamsEmitter(OperationEmitter[GateStreams]):
    """Gates values for each stream, and norms the results."""

    kernels = (gate_streams,)

    def scratch_bytes(self) -> int:
        """See `OperationEmitter.scratch_bytes`: of a stream the norms of its key and query."""
        return 8 * self.operation.key_norm.size + 128

    def emit(self, tape: Tape) -> None:
        operation, norm = self.operation, tape.weights.norm
        norms = Norms(key=norm(operation.key_norm), query=norm(operation.query_norm), given=norm(operation.norm))
        size, values = operation.key_norm.size, (operation.x, operation.keys, operation.values, *operation.out)
        rows = dict(zip(("x", "keys", "values", "given", "normed"), map(self.placed.at, values), strict=True))
        sizes = {"n_streams": operation.x.width // size, "size": size}
        tape.add(Work("gates of n-grams"), gate_streams, **rows, **sizes, norms=self.placed.table(norms))
