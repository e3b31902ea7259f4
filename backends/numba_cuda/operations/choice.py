"""The choice of positions for attention, by the highest scores of keys, and rows pooled of blocks of positions.

A choice lies in a buffer that all layers share, so that layers after the one that chooses may read it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from augury.backends.numba_cuda.kernels.cells import CacheArgs
from augury.backends.numba_cuda.kernels.choice import CHOOSE, CHOOSE_BLOCKS
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.pooling import keep_to_pool, pool_rows
from augury.backends.numba_cuda.kernels.splits import SPLIT
from augury.backends.numba_cuda.operations.attention import CHOSEN, Heads, check_dim, n_blocks, prepare
from augury.backends.numba_cuda.operations.emitter import Emitters, OperationEmitter, Scope
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import splits_of, tokens_of
from augury.blocks import Preparation
from augury.errors import UnsupportedError
from augury.lowering import Choose, ChooseByHead, Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.backends.numba_cuda.device import Arguments
    from augury.backends.numba_cuda.tape import Tape

__all__ = ["OPERATIONS"]

_SCORES, _COUNTERS, _POOLED = "scores of blocks", "tokens' counters", "pooled rows"


class ChooseEmitter(OperationEmitter):
    """Scores blocks of positions, and writes down which are chosen; nothing where all are."""

    operation: Choose | ChooseByHead

    def __init__(self, operation: Choose | ChooseByHead, scope: Scope) -> None:
        super().__init__(operation, scope)
        if isinstance(operation, ChooseByHead) and not operation.n_local:
            raise UnsupportedError(
                "an indexer that does not always choose the last block is not computed here; use backend reference"
            )

    def buffers(self) -> Mapping[str, int]:
        n_ctx, choice = self.scope.options.n_ctx, self.operation.out
        n_bytes = 4 * tokens_of(splits_of(n_ctx)) * choice.width * n_blocks(choice, n_ctx)
        return {_SCORES: n_bytes, CHOSEN: n_bytes, _COUNTERS: 4 * MAX_TOKENS}

    def emit(self, tape: Tape) -> None:
        operation, layout, n_tokens, n_ctx = self.operation, self.layout, tape.size.n_tokens, self.scope.options.n_ctx
        if operation.queries is None or operation.keys is None:
            return
        rows, keys = layout.rows(operation.queries, tape), self.scope.cache(operation.keys)
        size, n_all = operation.out.size, n_blocks(operation.out, n_ctx)
        arguments: Arguments = {"stride": rows.width, "keys": CacheArgs(keys.codes, keys.halves), "dim": keys.dim}
        arguments |= {"scores": tape.buffers[_SCORES], "chosen": tape.buffers[CHOSEN], "n_chosen": operation.n_chosen}
        arguments |= {"size": size, "length": n_ctx, "n_blocks": n_all}
        if isinstance(operation, ChooseByHead):
            n_lists = operation.out.width
            lists: Arguments = {"q": rows.at, "n_local": operation.n_local, "n_groups": n_lists}
            tape.launch(CHOOSE_BLOCKS[keys.kept_as], (n_lists, n_tokens), THREADS, **lists, **arguments)
            return
        n_most, n_heads = min(n_all, tape.size.n_splits * SPLIT // size), operation.queries.width // keys.dim
        scored: Arguments = {"rows": rows.at, "n_heads": n_heads, "counters": tape.buffers[_COUNTERS]}
        scored |= {"shares": 0, "share": 1 / math.sqrt(keys.dim)}
        if operation.weights is not None:
            (name, start), (other, column) = (layout.row(each) for each in (operation.queries, operation.weights))
            if name != other or column <= start:
                raise UnsupportedError("weights of queries that do not lie after these; use backend reference")
            scored |= {"shares": column - start, "share": layout.scale(operation.weights)}
        tape.launch(CHOOSE[keys.kept_as], (-(-n_most // THREADS), n_tokens), THREADS, **scored, **arguments)


class PoolEmitter(OperationEmitter):
    """Keeps what is pooled, and pooled rows, by the cells of the last positions of blocks."""

    operation: Pool

    def __init__(self, operation: Pool, scope: Scope) -> None:
        super().__init__(operation, scope)
        check_dim("pooled rows", operation.pooling.width)

    def buffers(self) -> Mapping[str, int]:
        return {_POOLED: 4 * MAX_TOKENS * self.operation.pooling.width}

    def emit(self, tape: Tape) -> None:
        operation, layout, pooling, n_tokens = self.operation, self.layout, self.operation.pooling, tape.size.n_tokens
        (to_pool, cache), n_ctx = map(self.scope.cache, (operation.to_pool, operation.pooled)), self.scope.options.n_ctx
        (name, start), n_values = layout.row(operation.values), operation.values.width
        if operation.weights is not None and layout.row(operation.weights) != (name, start + n_values):
            raise UnsupportedError("weights that do not lie after what is pooled by them; use backend reference")
        products, kept = layout.rows(operation.values, tape), to_pool.codes
        tape.norm_in_place(pooling.value_norm, products, n_values)
        sizes: Arguments = {"n_kept": pooling.n_kept, "n_values": n_values, "size": pooling.size, "length": n_ctx}
        sizes |= {"has_weights": operation.weights is not None, "kept": kept}
        places: Arguments = {}
        if pooling.places is not None:
            places = {"places": tape.weights.vector(pooling.places), "has_places": True}
        grid = (-(-pooling.n_kept // THREADS), n_tokens)
        tape.launch(keep_to_pool, grid, THREADS, rows=products.at, stride=products.width, **places, **sizes)
        rows, grid = Rows(tape.buffers[_POOLED], pooling.width), (-(-pooling.width // WARP), n_tokens)
        to: Arguments = {"rows": rows.at, "stride": rows.width, "width": pooling.width, "overlaps": pooling.overlaps}
        tape.launch(pool_rows, grid, WARP, **to, **sizes)
        heads = Heads(1, pooling.width, Preparation(norm=pooling.norm, rope=pooling.rope), cache)
        prepare(tape, rows, n_ctx, [heads], lag=pooling.size - 1)


OPERATIONS: Emitters = {
    Choose: ChooseEmitter,
    ChooseByHead: ChooseEmitter,
    Pool: PoolEmitter,
}
