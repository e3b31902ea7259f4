"""`Indexer`: chooses the cells that tokens attend to, with a cache of what it compares; a part of an attention's emitter."""

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


def choice_buffers(options: ModelOptions) -> Mapping[str, int]:
    """Bytes of the memory where a choice is left, by name: at most all cells of a slot."""
    return {_CHOSEN: 8 * MAX_TOKENS * options.n_ctx, _RUNS: SEGMENT_BYTES * MAX_TOKENS, _ENDS: 8 * MAX_TOKENS}


def choice_fields(options: ModelOptions, buffers: Mapping[str, int]) -> tuple[int, ...]:
    """Where it is left, as `attention_layer.CHOSEN` and what follows it say."""
    return (buffers[_CHOSEN], options.n_ctx, buffers[_RUNS], buffers[_ENDS])


class Chooser:
    """Scores what every token sees, and leaves the cells of the highest scores for the attention of this layer and others.

    Attributes:
        row_bytes: Of what is kept of a position.
        kept: The address of that, once it has its place.
    """

    kept: int

    def __init__(self, indexer: Indexer, options: ModelOptions, length: int) -> None:
        self._indexer, self._options, self._length = indexer, options, length
        self._size, self._type = indexer.k.n_out, options.cache_type_k
        if self._size % PART:
            raise UnsupportedError(
                f"an indexer compares {self._size} values in tensor {indexer.k.weight!r}, expected a multiple of {PART}; "
                "use backend reference"
            )
        self._n_heads = indexer.weights.n_out
        self.row_bytes = self._size // LANES * BYTES[self._type]

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (choice.score_kernel(self._type), choice.choose, choice.prepare_kernel(self._type), prepare_head)

    def buffers(self) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        widths = {
            "q": self._indexer.q.n_out,
            "k": self._size,
            "weights": self._n_heads,
            "scores": up(self._options.n_ctx, CHUNK),
        }
        return {f"{name} of an indexer": row_bytes(width) for name, width in widths.items()}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """Allocate what is kept, and write what the kernels need to know."""
        indexer, n_ctx = self._indexer, self._options.n_ctx
        self.kept = arena.zeros(self._options.n_slots * self._length * self.row_bytes, "KV cache")
        ways = [
            each.place(weights, arena, n_ctx) for each in (Ways(rope=indexer.rope), Ways(None, indexer.k_norm, indexer.rope))
        ]
        places = [
            field
            for name, linear in self._products().items()
            for field in (buffers[f"{name} of an indexer"], up(linear.n_out, PANEL_ROWS))
        ]
        fields = [
            *(*places, address(prepare_head), *ways, self._n_heads, self._size, self.kept, self._length),
            *(buffers["scores of an indexer"], up(n_ctx, CHUNK), indexer.n_chosen, *choice_fields(self._options, buffers)),
        ]
        self._record = arena.keep(np.array(fields, np.int64), "scratch")

    def products(self, buffers: Mapping[str, int]) -> tuple[tuple[Linear, int], ...]:
        """The products that it needs: first of what queries are made of, then two of the norm of the residual stream."""
        return tuple((linear, buffers[f"{name} of an indexer"]) for name, linear in self._products().items())

    def emit(self, tape: Tape) -> None:
        """Write its records, once the products are there."""
        n_work = self._n_heads * self._size
        tape.add(Work("storing what is compared"), choice.prepare_kernel(self._type), self._record)
        work = Work("indexer", bytes_per_position=self.row_bytes, multiply_adds_per_position=n_work)
        tape.add(work, choice.score_kernel(self._type), self._record)
        tape.add(Work("choosing"), choice.choose, self._record)

    def _products(self) -> Mapping[str, Linear]:
        return {"q": self._indexer.q, "k": self._indexer.k, "weights": self._indexer.weights}
