"""`BlockIndexer`: the blocks of positions that attention takes part in, for each KV head by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.cache import Cache
from augury.backends.numba_cuda.kernels.choice import CHOOSE_BLOCKS
from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.tape import tokens_of
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.backends.numba_cuda.device import Pointer
    from augury.backends.numba_cuda.tape import Rows, Tape
    from augury.blocks import BlockIndexer
    from augury.types import ModelOptions

__all__ = ["BlockChooser"]


class BlockChooser:
    """Scores blocks by keys of its own, and writes down which are chosen.

    Attributes:
        cache: Of these keys.
        n_blocks: Of a context.
    """

    def __init__(self, block: BlockIndexer, options: ModelOptions) -> None:
        if not block.n_local:
            raise UnsupportedError(
                "an indexer that does not always choose the last block is not computed here; use backend reference"
            )
        self.block, self._n_ctx = block, options.n_ctx
        self.cache = Cache("cache_type_k", 1, block.k.n_out, options)
        self.n_blocks = -(-options.n_ctx // block.size)

    @property
    def n_groups(self) -> int:
        """KV heads."""
        return self.block.q.n_out // self.block.k.n_out

    def buffers(self, n_splits: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        return dict.fromkeys(("scores of blocks", "chosen blocks"), 4 * tokens_of(n_splits) * self.n_groups * self.n_blocks)

    def emit(self, tape: Tape, q: Rows) -> Pointer:
        """Write the choice; returns where it is: 1 or 0 for each block, (n, n_groups, n_blocks)."""
        block, chosen = self.block, tape.buffers["chosen blocks"]
        places = (q.at, self.cache.codes, self.cache.halves, tape.buffers["scores of blocks"], chosen)
        sizes = (q.width, block.k.n_out, block.size, block.n_chosen, block.n_local, self._n_ctx, self.n_groups, self.n_blocks)
        tape.add(CHOOSE_BLOCKS[self.cache.kept_as], (self.n_groups, tape.size.n_tokens), THREADS, *places, *sizes)
        return chosen
