"""Rows that are pooled of several positions."""

from __future__ import annotations

from augury.backends.numba_cuda.operations import THREADS, WARP, Arguments, OperationEmitter, Tape
from augury.plugins.pooling.blocks import KeepToPool, Pool
from augury.plugins.pooling.kernels.numba_cuda import keep_to_pool, pool


class KeepToPoolEmitter(OperationEmitter[KeepToPool]):
    """Keeps values that are pooled later."""

    def emit(self, tape: Tape) -> None:
        operation, layout, kept = self.operation, self.layout, self.operation.rows
        values, n = layout.rows(operation.values, tape), operation.values.width
        arguments: Arguments = {"values": values.at, "stride": values.width, "n_values": n, "n_kept": kept.width}
        if operation.weights is not None:
            weights = layout.rows(operation.weights, tape)
            arguments |= {"weights": weights.at, "weight_stride": weights.width}
        if operation.places is not None:
            arguments |= {"places": tape.weights.vector(operation.places), "has_places": True}
        arguments |= {"size": operation.size, "length": self.scope.options.n_ctx, "kept": self.scope.cache(kept.cache).codes}
        tape.launch(keep_to_pool, (-(-kept.width // THREADS), tape.size.n_tokens), THREADS, **arguments)


class PoolEmitter(OperationEmitter[Pool]):
    """Pools rows where a token ends a block."""

    def emit(self, tape: Tape) -> None:
        operation, width = self.operation, self.operation.out.width
        out, kept = self.layout.rows(operation.out, tape), operation.rows
        arguments: Arguments = {"kept": self.scope.cache(kept.cache).codes, "n_kept": kept.width, "width": width}
        arguments |= {"length": self.scope.options.n_ctx, "out": out.at, "stride": out.width, "size": operation.size}
        arguments |= {"has_weights": operation.has_weights, "overlaps": operation.overlaps}
        tape.launch(pool, (-(-width // WARP), tape.size.n_tokens), WARP, **arguments)
