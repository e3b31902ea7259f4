"""`Embedding`: x = scale * W[token]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.embed import EMBED
from augury.backends.numba_cuda.tape import units_of
from augury.blocks import Linear

if TYPE_CHECKING:
    from augury.backends.numba_cuda.tape import Tape
    from augury.blocks import Embedding

__all__ = ["EmbeddingEmitter"]


class EmbeddingEmitter(Emitter):
    """Looks up the rows of tokens."""

    block: Embedding

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block = self.block
        matrix = tape.weights.matrix(Linear(block.weight, block.n_embd, block.n_vocab))
        grid = (-(-units_of(block.n_embd) // WARP), tape.size.n_tokens)
        sizes = (block.n_embd, matrix.n_steps, matrix.n)
        tape.add(EMBED[matrix.format.name], grid, WARP, matrix.words, tape.x.at, *sizes, block.scale)
