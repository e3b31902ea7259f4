"""Rows that are pooled of several positions."""

from __future__ import annotations

from augury.backends.numba_cpu.operations import OperationEmitter, Tape, Work
from augury.errors import UnsupportedError
from augury.plugins.pooling.blocks import KeepToPool, Pool
from augury.plugins.pooling.kernels.numba_cpu import keep_to_pool, pool, scratch_bytes

_PART = 16  # floats that are pooled at once


class KeepToPoolEmitter(OperationEmitter[KeepToPool]):
    """Keeps values that are pooled later."""

    kernels = (keep_to_pool,)

    def emit(self, tape: Tape) -> None:
        operation, kept = self.operation, self.scope.cache(self.operation.rows.cache).rows
        tape.add(
            Work("keeping rows to pool"),
            keep_to_pool,
            values=self.placed.at(operation.values),
            weights=self.placed.at(operation.weights),
            n_values=operation.values.width,
            places=self.placed.weights.vector(operation.places),
            size=operation.size,
            kept=kept,
        )


class PoolEmitter(OperationEmitter[Pool]):
    """Pools rows where a token ends a block."""

    kernels = (pool,)

    def scratch_bytes(self) -> int:
        return scratch_bytes(self.operation.size)

    def emit(self, tape: Tape) -> None:
        operation, width = self.operation, self.operation.out.width
        if width % _PART:
            raise UnsupportedError(f"pooled rows of {width} values, expected a multiple of {_PART}; use backend reference")
        tape.add(
            Work("pooling"),
            pool,
            kept=self.scope.cache(operation.rows.cache).rows,
            out=self.placed.at(operation.out),
            width=width,
            size=operation.size,
            has_weights=operation.has_weights,
            overlaps=operation.overlaps,
        )
