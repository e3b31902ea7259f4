"""The choice of positions for attention, by the highest scores of keys.

A choice lies in a buffer that all layers share, so that layers after the one that chooses may read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from augury.backends.numba_cuda.device import Arguments
from augury.backends.numba_cuda.kernels.cells import CacheArgs
from augury.backends.numba_cuda.kernels.choice import CHOOSE, CHOOSE_BLOCKS, BlocksArgs
from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.splits import SPLIT
from augury.backends.numba_cuda.operations.attention import CHOSEN, n_blocks
from augury.backends.numba_cuda.operations.emitter import OperationEmitter, Scope
from augury.backends.numba_cuda.tape import Tape, splits_of, tokens_of
from augury.errors import UnsupportedError
from augury.lowering import Choose, ChooseByHead

_SCORES, _COUNTERS = "scores of blocks", "tokens' counters"


class ChooseEmitter(OperationEmitter[Choose | ChooseByHead]):
    """Scores blocks of positions, and writes down which are chosen; nothing where all are."""

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
        arguments: Arguments = {"rows": rows.at, "stride": rows.width, "dim": keys.dim, "size": size, "length": n_ctx}
        arguments |= {"scores": tape.buffers[_SCORES], "chosen": tape.buffers[CHOSEN]}
        how = BlocksArgs(**arguments, n_blocks=n_all, n_chosen=operation.n_chosen)
        given: Arguments = {"how": how, "keys": CacheArgs(keys.codes, keys.halves)}
        if isinstance(operation, ChooseByHead):
            lists = {"n_local": operation.n_local, "n_groups": operation.out.width}
            tape.launch(CHOOSE_BLOCKS[keys.kept_as], (operation.out.width, n_tokens), THREADS, **lists, **given)
            return
        n_most, n_heads = min(n_all, tape.size.n_splits * SPLIT // size), operation.queries.width // keys.dim
        given |= {"n_heads": n_heads, "counters": tape.buffers[_COUNTERS], "share": 1 / math.sqrt(keys.dim)}
        if operation.weights is not None:
            (name, start), (other, column) = (layout.row(each) for each in (operation.queries, operation.weights))
            if name != other or column <= start:
                raise UnsupportedError("weights of queries that do not lie after these; use backend reference")
            given |= {"shares": column - start, "share": layout.scale(operation.weights)}
        tape.launch(CHOOSE[keys.kept_as], (-(-n_most // THREADS), n_tokens), THREADS, **given)
