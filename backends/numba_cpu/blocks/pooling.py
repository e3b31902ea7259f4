"""`Pooling` and `PoolIndexer`: rows that are pooled of blocks of positions; parts of the emitters of attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.indexer import Chooser, choice_buffers, choice_fields
from augury.backends.numba_cpu.heads import Ways
from augury.backends.numba_cpu.kernels import pooling as kernels
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES
from augury.backends.numba_cpu.kernels.head import prepare_head, prepare_rows
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.latent import PART
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.memory import bits, up
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import row_bytes
from augury.blocks import PoolIndexer
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import BlockIndexer, Indexer, Linear, Pooling
    from augury.types import ModelOptions

__all__ = ["PoolChooser", "Pooler", "chooser_of", "keep_record", "list_fields"]


class Pooler:
    """Keeps what tokens give to be pooled, and pools it where they end a block.

    Attributes:
        row_bytes: Of what is kept of a position.
        kept: The address of that, once it has its place.
    """

    kept: int

    def __init__(self, pooling: Pooling, options: ModelOptions, length: int, name: str) -> None:
        self._pooling, self._options, self._length, self._name = pooling, options, length, name
        if pooling.width % PART:
            raise UnsupportedError(
                f"pooled rows of {pooling.width} values in tensor {pooling.values.weight!r}, expected a multiple of {PART}; "
                "use backend reference"
            )
        self._ways = (Ways(norm=pooling.value_norm), Ways(norm=pooling.norm, rope=pooling.rope))
        self.row_bytes = 4 * pooling.n_kept

    def kernels(self, kind: str) -> Sequence[Any]:
        """Those that keep, and pool to rows of a cache type."""
        return (kernels.pool_kernel(kind), kernels.keep_to_pool, prepare_head)

    def buffers(self) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        return {f"{part} to pool {self._name}": row_bytes(linear.n_out) for part, linear in self._parts().items()}

    def scratch_bytes(self) -> int:
        """See `Emitter.scratch_bytes`."""
        return kernels.scratch_bytes(2 * self._pooling.size, 2 * self._pooling.width)

    def products(self, buffers: Mapping[str, int]) -> list[tuple[Linear, int]]:
        """The products that it needs of the norm of what attention sees."""
        return [(linear, buffers[f"{part} to pool {self._name}"]) for part, linear in self._parts().items()]

    def fields(
        self, weights: Weights, buffers: Mapping[str, int], arena: Arena, pooled: tuple[int, int, int, int]
    ) -> dict[int, int]:
        """What kernels need to know of it; `pooled` says where rows go, see `kernels.POOLED`."""
        pooling, n_ctx = self._pooling, self._options.n_ctx
        ways = [each.place(weights, arena, n_ctx) for each in self._ways]
        places = 0
        if (added := pooling.places) is not None:
            places = arena.keep(weights.values(added.weight, added.shapes[added.weight]), "weights")
        rows = [each for _, place in Pooler.products(self, buffers) for each in (place, up(pooling.values.n_out, PANEL_ROWS))]
        given = [
            *([*rows, 0, 0][:4]),
            *(pooling.values.n_out, pooling.width, pooling.size, int(pooling.overlaps), places, *ways),
            *(address(prepare_head), self.kept, self.row_bytes, self._length, *pooled),
        ]
        return {8 * i: field for i, field in enumerate(given)}

    def emit(self, tape: Tape, record: int, kind: str) -> None:
        """Write its records, once the products are there."""
        tape.add(Work("keeping rows to pool"), kernels.keep_to_pool, record)
        tape.add(Work("pooling"), kernels.pool_kernel(kind), record)

    def _parts(self) -> Mapping[str, Linear]:
        parts = {"values": self._pooling.values}
        return parts if self._pooling.weights is None else {**parts, "weights": self._pooling.weights}


class PoolChooser(Pooler):
    """Scores blocks by pooled keys, and leaves the cells of chosen ones for the attention of this layer and others.

    Rows of what is kept end with the pooled key of the block that their token ends.
    """

    def __init__(self, indexer: PoolIndexer, options: ModelOptions, length: int, n_lists: int = 1) -> None:
        super().__init__(indexer.keys, options, length, "of an indexer")
        self._indexer, self._n_lists = indexer, n_lists
        self._n_heads = indexer.q.n_out // indexer.keys.width
        self._pooled_at = self.row_bytes
        self.row_bytes += BYTES["f32"] // LANES * indexer.keys.width

    def kernels(self, kind: str = "f32") -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (*super().kernels(kind), kernels.score_blocks, kernels.list_cells, prepare_rows)

    def buffers(self) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        widths = {"q": self._indexer.q.n_out, "scores": self._n_blocks}
        widths |= {} if self._indexer.weights is None else {"shares": self._indexer.weights.n_out}
        own = {f"{name} of an indexer": row_bytes(width) for name, width in widths.items()}
        return {**super().buffers(), **own, **choice_buffers(self._options.n_ctx, self._n_lists)}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """Allocate what is kept, and write what the kernels need to know."""
        self.place_kept(weights, buffers, arena)
        self.complete(list_fields(self._options.n_ctx, buffers) | {kernels.N_LISTS: self._n_lists}, arena)

    def place_kept(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """Allocate what is kept."""
        indexer, n_ctx = self._indexer, self._options.n_ctx
        self.kept = arena.zeros(self._options.n_slots * self._length * self.row_bytes, "KV cache")
        self._q_ways = Ways(norm=indexer.q_norm, rope=indexer.rope).place(weights, arena, n_ctx)
        pooled = (self.kept + self._pooled_at, self.row_bytes, self._length, 0)
        self._fields = self.fields(weights, buffers, arena, pooled)
        self._fields |= {
            kernels.QUERIES: buffers["q of an indexer"],
            kernels.LDQ: up(indexer.q.n_out, PANEL_ROWS),
            kernels.N_HEADS: self._n_heads,
            kernels.FACTOR: bits(1.0 / math.sqrt(indexer.keys.width)),
            kernels.SCORES: buffers["scores of an indexer"],
            kernels.LD_SCORES: up(self._n_blocks, PANEL_ROWS),
            kernels.N_CHOSEN: indexer.n_chosen,
        }
        if indexer.weights is not None:
            self._fields[kernels.SHARES] = buffers["shares of an indexer"]
            self._fields[kernels.LDS] = up(indexer.weights.n_out, PANEL_ROWS)

    def complete(self, lists: Mapping[int, int], arena: Arena) -> None:
        """Write the record, with what says where lists go."""
        self._record = keep_record({**self._fields, **lists}, arena)

    def products(self, buffers: Mapping[str, int]) -> list[tuple[Linear, int]]:
        """The products that it needs: first of what queries are made of, then of the norm of what attention sees."""
        own = super().products(buffers)
        if self._indexer.weights is not None:
            own.append((self._indexer.weights, buffers["shares of an indexer"]))
        return [(self._indexer.q, buffers["q of an indexer"]), *own]

    def emit(self, tape: Tape, record: int = 0, kind: str = "f32") -> None:  # noqa: ARG002 - its own
        """Write its records, once the products are there."""
        width = self._indexer.keys.width
        super().emit(tape, self._record, "f32")
        if self._q_ways:
            rows = tape.buffers["q of an indexer"]
            tape.prepare(rows, up(self._indexer.q.n_out, PANEL_ROWS), self._n_heads, width, self._q_ways)
        n_work = self._n_heads * width // self._indexer.keys.size
        tape.add(Work("indexer", 4 * width // self._indexer.keys.size, n_work), kernels.score_blocks, self._record)
        tape.add(Work("choosing"), kernels.list_cells, self._record)

    @property
    def _n_blocks(self) -> int:
        return self._options.n_ctx // self._indexer.keys.size


def list_fields(n_cells: int, buffers: Mapping[str, int]) -> dict[int, int]:
    """Where kernels leave lists of cells."""
    return {8 * i: field for i, field in enumerate(choice_fields(n_cells, buffers), kernels.CHOSEN // 8)}


def keep_record(fields: Mapping[int, int], arena: Arena) -> int:
    """The address of a record with some fields, by their offsets."""
    record = np.zeros(kernels.N_FIELDS, np.int64)
    for offset, field in fields.items():
        record[offset // 8] = field
    return arena.keep(record, "scratch")


def chooser_of(
    indexer: Indexer | BlockIndexer | PoolIndexer | None, options: ModelOptions, length: int, n_lists: int = 1
) -> Chooser | PoolChooser | None:
    """What chooses for an attention, if anything does.

    Args:
        indexer: Of the attention.
        options: Of the model.
        length: Cells of a slot.
        n_lists: Lists of cells that a token has, where that is for the attention to say.
    """
    if isinstance(indexer, PoolIndexer):
        return PoolChooser(indexer, options, length, n_lists)
    return None if indexer is None else Chooser(indexer, options, length)
