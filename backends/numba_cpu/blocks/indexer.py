"""`Indexer` and `BlockIndexer` choose the cells that tokens attend to; parts of the emitters of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.heads import Ways
from augury.backends.numba_cpu.kernels import choice
from augury.backends.numba_cpu.kernels.attention_tile import CHUNK
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES
from augury.backends.numba_cpu.kernels.head import prepare_head
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.latent import PART
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.kernels.team import SEGMENT_BYTES
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import row_bytes
from augury.blocks import BlockIndexer
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import Indexer, Linear
    from augury.types import ModelOptions

__all__ = ["Chooser", "choice_buffers", "choice_fields"]

_CHOSEN, _RUNS, _ENDS = "chosen cells", "runs of chosen cells", "ends of chosen cells"


def choice_buffers(n_cells: int, n_lists: int = 1) -> Mapping[str, int]:
    """Bytes of the memory where a choice is left, by name: at most so many cells in so many lists of a token."""
    return {_CHOSEN: 8 * MAX_TOKENS * n_lists * n_cells, _RUNS: SEGMENT_BYTES * MAX_TOKENS, _ENDS: 8 * MAX_TOKENS}


def choice_fields(n_cells: int, buffers: Mapping[str, int]) -> tuple[int, ...]:
    """Where it is left, as `attention_layer.CHOSEN` and what follows it say."""
    return (buffers[_CHOSEN], n_cells, buffers[_RUNS], buffers[_ENDS])


class Chooser:
    """Scores what every token sees, and leaves the cells of the highest scores for the attention of this layer and others.

    Attributes:
        row_bytes: Of what is kept of a position.
        n_lists: How many lists of cells a token has: one, or one for each KV head.
        kept: The address of that, once it has its place.
    """

    kept: int

    def __init__(self, indexer: Indexer | BlockIndexer, options: ModelOptions, length: int) -> None:
        self._indexer, self._options, self._length = indexer, options, length
        self._size, self._type = indexer.k.n_out, options.cache_type_k
        if self._size % PART:
            raise UnsupportedError(
                f"an indexer compares {self._size} values in tensor {indexer.k.weight!r}, expected a multiple of {PART}; "
                "use backend reference"
            )
        self._n_heads, self.n_lists = indexer.q.n_out // self._size, 1
        self._block, self._n_local, norm = 1, 0, None
        if isinstance(indexer, BlockIndexer):
            self.n_lists, self._block, self._n_local, norm = self._n_heads, indexer.size, indexer.n_local, indexer.q_norm
            if not 1 <= indexer.n_local <= indexer.n_chosen:
                raise UnsupportedError(
                    f"an indexer chooses {indexer.n_chosen} blocks, the last {indexer.n_local} in any case, expected 1 to "
                    f"{indexer.n_chosen} of these; use backend reference"
                )
        self._ways = (Ways(norm=norm, rope=indexer.rope), Ways(norm=indexer.k_norm, rope=indexer.rope))
        self._score = choice.score_kernel(self._type, is_by_head=isinstance(indexer, BlockIndexer))
        self.row_bytes = self._size // LANES * BYTES[self._type]

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (self._score, choice.choose, choice.prepare_kernel(self._type), prepare_head)

    def buffers(self) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        widths = {name: linear.n_out for name, linear in self._products().items()}
        widths["scores"] = self.n_lists * up(self._options.n_ctx, CHUNK)
        needed = {f"{name} of an indexer": row_bytes(width) for name, width in widths.items()}
        return {**needed, **choice_buffers(self._options.n_ctx, self.n_lists)}

    def scratch_bytes(self) -> int:
        """See `Emitter.scratch_bytes`."""
        return choice.scratch_bytes(-(-self._options.n_ctx // self._block))

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """Allocate what is kept, and write what the kernels need to know."""
        indexer, n_ctx = self._indexer, self._options.n_ctx
        self.kept = arena.zeros(self._options.n_slots * self._length * self.row_bytes, "KV cache")
        ways = [each.place(weights, arena, n_ctx) for each in self._ways]
        places = [
            field
            for name, linear in self._products().items()
            for field in (buffers[f"{name} of an indexer"], up(linear.n_out, PANEL_ROWS))
        ]
        places += [0] * (6 - len(places))
        fields = [
            *(*places, address(prepare_head), *ways, self._n_heads, self._size, self.kept, self._length),
            *(buffers["scores of an indexer"], up(n_ctx, CHUNK), indexer.n_chosen, *choice_fields(n_ctx, buffers)),
            *(self._block, self._n_local),
        ]
        self._record = arena.keep(np.array(fields, np.int64), "scratch")

    def products(self, buffers: Mapping[str, int]) -> tuple[tuple[Linear, int], ...]:
        """The products that it needs: first of what queries are made of, then of the norm of the residual stream."""
        return tuple((linear, buffers[f"{name} of an indexer"]) for name, linear in self._products().items())

    def emit(self, tape: Tape) -> None:
        """Write its records, once the products are there."""
        n_work = self._n_heads * self._size
        tape.add(Work("storing what is compared"), choice.prepare_kernel(self._type), self._record)
        work = Work("indexer", bytes_per_position=self.row_bytes, multiply_adds_per_position=n_work)
        tape.add(work, self._score, self._record)
        tape.add(Work("choosing"), choice.choose, self._record, self.n_lists)

    def _products(self) -> Mapping[str, Linear]:
        indexer = self._indexer
        products = {"q": indexer.q, "k": indexer.k}
        return products if isinstance(indexer, BlockIndexer) else {**products, "weights": indexer.weights}
