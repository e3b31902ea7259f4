"""The choice of cells for attention, by the highest scores of keys, and rows pooled of blocks of positions.

Lists of cells lie in buffers that all layers share, so that layers after the one that chooses may read them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.heads import place_steps, table_of
from augury.backends.numba_cpu.kernels import attention_layer, choice, pooling as kernels
from augury.backends.numba_cpu.kernels.attention_layer import PART
from augury.backends.numba_cpu.kernels.attention_tile import CHUNK
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES
from augury.backends.numba_cpu.kernels.head import prepare_head
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.kernels.struct import dtype, table
from augury.backends.numba_cpu.kernels.team import Segment
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.operations.emitter import Emitters, OperationEmitter, Placed, Scope
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Place, row_bytes
from augury.blocks import Preparation
from augury.errors import UnsupportedError
from augury.lowering import Choose, ChooseBlocks, Pool

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from augury.backends.numba_cpu.tape import Tape

__all__ = ["OPERATIONS", "list_buffers", "list_places"]

NOWHERE = Place(0, 0)
NO_LISTS = attention_layer.Lists(chosen=0, ld_chosen=0, runs=0, ends=0)
_CHOSEN, _RUNS, _ENDS, _SCORES = "chosen cells", "runs of chosen cells", "ends of chosen cells", "scores of positions"


def list_places(n_cells: int, buffers: Mapping[str, int]) -> attention_layer.Lists:
    """Where lists of so many cells lie."""
    return attention_layer.Lists(chosen=buffers[_CHOSEN], ld_chosen=n_cells, runs=buffers[_RUNS], ends=buffers[_ENDS])


def list_buffers(n_cells: int, n_lists: int) -> Mapping[str, int]:
    """Bytes of the memory where lists are left, by name: at most so many cells in so many lists of a token."""
    return {_CHOSEN: 8 * MAX_TOKENS * n_lists * n_cells, _RUNS: dtype(Segment).itemsize * MAX_TOKENS, _ENDS: 8 * MAX_TOKENS}


class ChooseEmitter(OperationEmitter):
    """Scores the positions that every token sees, and leaves the cells of the highest scores."""

    operation: Choose

    def __init__(self, operation: Choose, scope: Scope) -> None:
        super().__init__(operation, scope)
        self._keys, self._is_by_head = scope.cache(operation.keys), operation.weights is None
        if self._keys.size % PART:
            raise UnsupportedError(
                f"an indexer compares {self._keys.size} values, expected a multiple of {PART}; use backend reference"
            )
        if operation.size > 1 and not 1 <= operation.n_local <= operation.n_chosen:
            raise UnsupportedError(
                f"an indexer chooses {operation.n_chosen} blocks, the last {operation.n_local} in any case, expected 1 to "
                f"{operation.n_chosen} of these; use backend reference"
            )
        self._n_heads, self._n_cells = operation.queries.width // self._keys.size, scope.options.n_ctx
        self._kernel = choice.score_kernel(self._keys.kind, is_by_head=self._is_by_head)

    @property
    def kernels(self) -> Sequence[Any]:
        return (self._kernel, choice.choose)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        n_lists = self.operation.out.width
        return {**list_buffers(self._n_cells, n_lists), _SCORES: row_bytes(n_lists * up(self._n_cells, CHUNK))}

    def scratch_bytes(self) -> int:
        return choice.scratch_bytes(-(-self._n_cells // self.operation.size))

    def place(self, placed: Placed) -> None:
        """Write the operands of the kernels."""
        operation = self.operation
        made = choice.Choice(
            queries=placed.at(operation.queries),
            weights=NOWHERE if operation.weights is None else placed.at(operation.weights),
            n_heads=self._n_heads,
            size=self._keys.size,
            keys=self._keys.address,
            n_rows=self._keys.n_rows,
            scores=placed.buffers[_SCORES],
            ld_scores=up(self._n_cells, CHUNK),
            n_chosen=operation.n_chosen,
            block=operation.size,
            n_local=operation.n_local,
            lists=list_places(self._n_cells, placed.buffers),
        )
        self._fields = {"choice": placed.arena.keep(table([made]), "scratch"), "n_lists": operation.out.width}

    def emit(self, tape: Tape) -> None:
        keys, n_work = self._keys, self._n_heads * self._keys.size
        work = Work("indexer", bytes_per_position=keys.row_bytes, multiply_adds_per_position=n_work)
        tape.add(work, self._kernel, **self._fields)
        tape.add(Work("choosing"), choice.choose, **self._fields)


class PoolEmitter(OperationEmitter):
    """Keeps values of tokens to be pooled, and pools them where a token ends a block."""

    operation: Pool

    def __init__(self, operation: Pool, scope: Scope) -> None:
        super().__init__(operation, scope)
        self._to_pool, self._pooled = scope.cache(operation.to_pool), scope.cache(operation.pooled)
        if self._pooled.size % PART:
            raise UnsupportedError(
                f"pooled rows of {self._pooled.size} values in tensor {operation.pooling.values.weight!r}, expected a multiple "
                f"of {PART}; use backend reference"
            )
        pooling = operation.pooling
        self._steps = (Preparation(norm=pooling.value_norm), Preparation(norm=pooling.norm, rope=pooling.rope))

    @property
    def kernels(self) -> Sequence[Any]:
        return (kernels.pool_kernel(self._pooled.kind), kernels.keep_to_pool, prepare_head)

    def scratch_bytes(self) -> int:
        return kernels.scratch_bytes(2 * self.operation.pooling.size, 2 * self._pooled.size)

    def tables(self) -> Mapping[Hashable, int]:
        return table_of(self.operation.pooling.rope, self.scope.options.n_ctx)

    def place(self, placed: Placed) -> None:
        """Write the operands of the kernels."""
        operation, pooling, arena = self.operation, self.operation.pooling, placed.arena
        steps = [place_steps(each, placed.weights, arena, self.scope.options.n_ctx) for each in self._steps]
        to_pool, pooled, added = self._to_pool, self._pooled, pooling.places
        values = None if added is None else placed.weights.values(added.weight, added.shapes[added.weight])
        layer = kernels.PoolingLayer(
            values=placed.at(operation.values),
            weights=NOWHERE if operation.weights is None else placed.at(operation.weights),
            n_values=operation.values.width,
            width=pooled.size,
            size=pooling.size,
            overlaps=pooling.overlaps,
            places=0 if values is None else arena.keep(values, "weights"),
            value_steps=steps[0],
            row_steps=steps[1],
            prepare_head=address(prepare_head),
            kept=to_pool.address,
            kept_bytes=to_pool.row_bytes,
            n_kept=to_pool.n_rows,
            pooled=pooled.address,
            pooled_bytes=pooled.row_bytes,
            n_pooled=pooled.n_rows,
            first=pooled.first,
        )
        self._layer = arena.keep(table([layer]), "scratch")

    def emit(self, tape: Tape) -> None:
        tape.add(Work("keeping rows to pool"), kernels.keep_to_pool, layer=self._layer)
        tape.add(Work("pooling"), kernels.pool_kernel(self._pooled.kind), layer=self._layer)


class ChooseBlocksEmitter(OperationEmitter):
    """Scores blocks by pooled keys, and leaves the cells of chosen ones; or leaves those of all."""

    operation: ChooseBlocks

    def __init__(self, operation: ChooseBlocks, scope: Scope) -> None:
        super().__init__(operation, scope)
        n_ctx, self._keys = scope.options.n_ctx, None if operation.keys is None else scope.cache(operation.keys)
        self._n_blocks = n_ctx // operation.size
        self._n_cells = n_ctx + (0 if operation.window is None else self._n_blocks)
        scope.n_listed[operation.out] = self._n_cells

    @property
    def kernels(self) -> Sequence[Any]:
        return (kernels.list_cells, *[kernels.score_blocks] * (self._keys is not None))

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        lists = list_buffers(self._n_cells, self.operation.out.width)
        return lists if self._keys is None else {**lists, _SCORES: row_bytes(self._n_blocks)}

    def scratch_bytes(self) -> int:
        return kernels.scratch_bytes(0, 0)

    def place(self, placed: Placed) -> None:
        """Write the operands of the kernels."""
        operation, keys, weights = self.operation, self._keys, self.operation.weights
        made = kernels.BlockChoice(
            queries=NOWHERE if operation.queries is None else placed.at(operation.queries),
            weights=NOWHERE if weights is None else placed.at(weights),
            n_heads=0 if operation.queries is None or keys is None else operation.queries.width // keys.size,
            width=0 if keys is None else keys.size,
            factor=0.0 if keys is None else 1.0 / math.sqrt(keys.size),
            keys=0 if keys is None else keys.address,
            key_bytes=0 if keys is None else keys.row_bytes,
            n_rows=0 if keys is None else keys.n_rows,
            size=operation.size,
            scores=0 if keys is None else placed.buffers[_SCORES],
            ld_scores=up(self._n_blocks, PANEL_ROWS),
            n_chosen=operation.n_chosen,
            n_lists=operation.out.width,
            window=operation.window or 0,
            first_listed=self.scope.caches[0].length,
            lists=list_places(self._n_cells, placed.buffers),
        )
        self._choice = placed.arena.keep(table([made]), "scratch")

    def emit(self, tape: Tape) -> None:
        if self._keys is not None and self.operation.queries is not None:
            size, n_work = self.operation.size, self.operation.queries.width // self.operation.size
            n_bytes = BYTES[self._keys.kind] // LANES * self._keys.size // size
            tape.add(Work("indexer", n_bytes, n_work), kernels.score_blocks, choice=self._choice)
        tape.add(Work("choosing"), kernels.list_cells, choice=self._choice)


OPERATIONS: Emitters = {
    Choose: ChooseEmitter,
    Pool: PoolEmitter,
    ChooseBlocks: ChooseBlocksEmitter,
}
