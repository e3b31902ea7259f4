"""The choice of cells for attention, by the highest scores of keys.

Lists of cells lie in buffers that all layers share, so that layers after the one that chooses may read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from augury.backends.numba_cpu.kernels import attention_layer, choice
from augury.backends.numba_cpu.kernels.attention_layer import PART
from augury.backends.numba_cpu.kernels.attention_tile import CHUNK
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.store import CachedRows
from augury.backends.numba_cpu.kernels.struct import dtype, table
from augury.backends.numba_cpu.kernels.team import Segment
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.operations.emitter import OperationEmitter, Placed, require_multiple
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Place, Tape, row_bytes
from augury.errors import UnsupportedError
from augury.lowering import Choice, Choose, ChooseByHead, Scope

NOWHERE = Place(0, 0)
NO_LISTS = attention_layer.Lists(chosen=0, n_lists=0, ld_chosen=0, runs=0, ends=0)
_CHOSEN, _RUNS, _ENDS, _SCORES = "chosen cells", "runs of chosen cells", "ends of chosen cells", "scores of positions"


def n_listed(choice: Choice, n_ctx: int) -> int:
    """How many cells a list has at most."""
    return n_ctx + (0 if choice.window is None else n_ctx // choice.size)


def list_places(choice: Choice, n_ctx: int, buffers: Mapping[str, int]) -> attention_layer.Lists:
    """Where the lists of a choice lie."""
    places = {"chosen": buffers[_CHOSEN], "runs": buffers[_RUNS], "ends": buffers[_ENDS]}
    return attention_layer.Lists(n_lists=choice.width, ld_chosen=n_listed(choice, n_ctx), **places)


def list_buffers(choice: Choice, n_ctx: int) -> Mapping[str, int]:
    """Bytes of the memory where lists are left, by name."""
    n_cells = MAX_TOKENS * choice.width * n_listed(choice, n_ctx)
    return {_CHOSEN: 8 * n_cells, _RUNS: dtype(Segment).itemsize * MAX_TOKENS, _ENDS: 8 * MAX_TOKENS}


class ChooseEmitter(OperationEmitter[Choose | ChooseByHead]):
    """Scores the blocks of positions that every token sees, and leaves the cells of the highest scores, or of all."""

    def __init__(self, operation: Choose | ChooseByHead, scope: Scope) -> None:
        super().__init__(operation, scope)
        self._keys = keys = None if operation.keys is None else scope.cache(operation.keys)
        self._n_local = operation.n_local if isinstance(operation, ChooseByHead) else 0
        self._score, self.kernels = None, (choice.choose,)
        if keys is None:
            return
        require_multiple(keys.size, PART, f"an indexer compares {keys.size} values")
        if isinstance(operation, ChooseByHead) and not 1 <= operation.n_local <= operation.n_chosen:
            raise UnsupportedError(
                f"an indexer chooses {operation.n_chosen} blocks, the last {operation.n_local} in any case, expected 1 to "
                f"{operation.n_chosen} of these; use backend reference"
            )
        self._score = choice.score_blocks
        if isinstance(operation, ChooseByHead) or (operation.out.size == 1 and operation.weights is not None):
            self._score = choice.score_kernel(keys.kind, is_by_head=isinstance(operation, ChooseByHead))
        elif keys.kind != "f32":
            raise UnsupportedError(f"an indexer of blocks with keys of type {keys.kind}, expected f32; use backend reference")
        self.kernels = (self._score, choice.choose)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        lists = list_buffers(self.operation.out, self.scope.options.n_ctx)
        return lists if self._score is None else {**lists, _SCORES: row_bytes(self.operation.out.width * self._ld_scores)}

    @property
    def _ld_scores(self) -> int:
        n_ctx, size = self.scope.options.n_ctx, self.operation.out.size
        return up(n_ctx if self._n_local else n_ctx // size, CHUNK)

    def scratch_bytes(self) -> int:
        return choice.scratch_bytes(-(-self.scope.options.n_ctx // self.operation.out.size))

    def place(self, placed: Placed) -> None:
        """Write the operands of the kernels."""
        operation, keys, n_ctx = self.operation, self._keys, self.scope.options.n_ctx
        weights = operation.weights if isinstance(operation, Choose) else None
        size, n_heads, rows = 1, 0, CachedRows(address=0, row_bytes=0, n_rows=0)
        if keys is not None and operation.queries is not None:
            size, n_heads, rows = keys.size, operation.queries.width // keys.size, keys.rows
        made = choice.ChoiceTable(
            queries=NOWHERE if operation.queries is None else placed.at(operation.queries),
            weights=NOWHERE if weights is None else placed.at(weights),
            factor=1.0 / math.sqrt(size),
            n_heads=n_heads,
            width=size,
            keys=rows,
            scores=placed.buffers.get(_SCORES, 0),
            ld_scores=self._ld_scores,
            size=operation.out.size,
            n_chosen=operation.n_chosen,
            n_local=self._n_local,
            window=operation.out.window or 0,
            first_row=self.scope.caches[0].length,
            lists=list_places(operation.out, n_ctx, placed.buffers),
        )
        self._choice = placed.arena.keep(table([made]), "scratch")

    def emit(self, tape: Tape) -> None:
        operation, keys = self.operation, self._keys
        if keys is not None and operation.queries is not None:
            n = 1 if self._n_local else operation.out.size  # positions that share a key
            tape.add(Work("indexer", keys.row_bytes // n, operation.queries.width // n), self._score, choice=self._choice)
        tape.add(Work("choosing"), choice.choose, choice=self._choice)
