"""`BlockIndexer`, `Indexer` and `PoolIndexer`: what chooses the positions that attention sees."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from attrs import evolve

from augury.backends.numba_cuda.blocks.heads import Heads, prepare
from augury.backends.numba_cuda.blocks.pooling import Pooler
from augury.backends.numba_cuda.cache import Cache
from augury.backends.numba_cuda.kernels.attention import SPLIT
from augury.backends.numba_cuda.kernels.choice import CHOOSE, CHOOSE_BLOCKS
from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import tokens_of
from augury.blocks import BlockIndexer, PoolIndexer
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from augury.backends.numba_cuda.device import Arguments
    from augury.backends.numba_cuda.tape import Tape
    from augury.blocks import Indexer, Linear
    from augury.types import ModelOptions

__all__ = ["Chooser", "choice", "chooser_of"]


class Chooser(ABC):
    """Scores positions, or blocks of them, and writes down which are chosen, until another one does.

    Attributes:
        linears: Whose products it compares, side by side: first of what attention's queries are made of, then of norm(x).
        caches: What it keeps.
        size: Positions of a block.
        n_lists: Choices of a token: one, or one for each KV head.
        n_blocks: Of a choice.
    """

    linears: list[Linear]
    caches: list[Cache]
    n_lists = 1

    def __init__(self, size: int, options: ModelOptions) -> None:
        self.size, self.n_ctx = size, options.n_ctx
        self.n_blocks = options.n_ctx // size + 1

    def buffers(self, n_splits: int) -> dict[str, int]:
        """See `Emitter.buffers`."""
        n_bytes = 4 * tokens_of(n_splits) * self.n_lists * self.n_blocks
        return {**dict.fromkeys(("scores of blocks", "chosen blocks"), n_bytes), "tokens' counters": 4 * MAX_TOKENS}

    @abstractmethod
    def emit(self, tape: Tape, rows: Rows) -> None:
        """Write the choice, once rows begin with the products."""


class BlockChooser(Chooser):
    """Keeps a key of every position; the score of a block is the largest of its positions'."""

    def __init__(self, block: BlockIndexer, options: ModelOptions) -> None:
        super().__init__(block.size, options)
        if not block.n_local:
            raise UnsupportedError(
                "an indexer that does not always choose the last block is not computed here; use backend reference"
            )
        self._block, self.linears = block, [block.q, block.k]
        self._cache = Cache("cache_type_k", 1, block.k.n_out, options)
        self.caches, self.n_lists = [self._cache], block.q.n_out // block.k.n_out

    def emit(self, tape: Tape, rows: Rows) -> None:
        """See `Chooser.emit`."""
        block, dim, cache = self._block, self._block.k.n_out, self._cache
        heads = (Heads(self.n_lists, dim, block.q_norm), Heads(1, dim, block.k_norm, cache))
        prepare(tape, rows, self.n_ctx, *heads, rope=block.rope)
        places: Arguments = {"q": rows.at, "stride": rows.width, "keys": cache.codes, "halves": cache.halves}
        made = {"scores": tape.buffers["scores of blocks"], "chosen": tape.buffers["chosen blocks"]}
        sizes = {"dim": dim, "size": block.size, "n_chosen": block.n_chosen, "n_local": block.n_local, "length": self.n_ctx}
        grid, lists = (self.n_lists, tape.size.n_tokens), {"n_groups": self.n_lists, "n_blocks": self.n_blocks}
        tape.launch(CHOOSE_BLOCKS[cache.kept_as], grid, THREADS, **places, **made, **sizes, **lists)


class PositionChooser(Chooser):
    """Keeps a key of every position."""

    def __init__(self, block: Indexer, options: ModelOptions) -> None:
        super().__init__(1, options)
        self._block, self.linears = block, [block.q, block.k, _unscaled(block.weights)]
        self._cache = Cache("cache_type_k", 1, block.k.n_out, options)
        self.caches = [self._cache]

    def emit(self, tape: Tape, rows: Rows) -> None:
        """See `Chooser.emit`."""
        block, dim = self._block, self._block.k.n_out
        heads = (Heads(block.q.n_out // dim, dim), Heads(1, dim, block.k_norm, self._cache))
        prepare(tape, rows, self.n_ctx, *heads, rope=block.rope)
        _choose(tape, self, rows, self._cache, dim, block.n_chosen, block.q.n_out + dim, block.weights.scale)


class PoolChooser(Chooser):
    """Keeps what is pooled, and pooled keys."""

    def __init__(self, block: PoolIndexer, options: ModelOptions) -> None:
        super().__init__(block.keys.size, options)
        self._block, self._pooler = block, Pooler(block.keys, "f32", options)
        self.linears = [block.q, *self._pooler.linears, *([] if block.weights is None else [_unscaled(block.weights)])]
        self.caches = self._pooler.caches

    def buffers(self, n_splits: int) -> dict[str, int]:
        """See `Emitter.buffers`."""
        return super().buffers(n_splits) | self._pooler.buffers()

    def emit(self, tape: Tape, rows: Rows) -> None:
        """See `Chooser.emit`."""
        block, dim, q = self._block, self._block.keys.width, self._block.q
        self._pooler.emit(tape, Rows(rows.at.at(4 * q.n_out), rows.width))
        prepare(tape, rows, self.n_ctx, Heads(q.n_out // dim, dim, block.q_norm), rope=block.rope)
        shares = 0 if block.weights is None else sum(each.n_out for each in self.linears[:-1])
        share = 1 / math.sqrt(dim) if block.weights is None else block.weights.scale
        _choose(tape, self, rows, self._pooler.rows, dim, block.n_chosen, shares, share)


def _unscaled(linear: Linear) -> Linear:
    """The same without a scale, so that it can follow others in one matrix: what chooses multiplies with it."""
    return evolve(linear, scale=1.0)


def _choose(tape: Tape, chooser: Chooser, rows: Rows, keys: Cache, dim: int, n_chosen: int, shares: int, share: float) -> None:
    """Write that blocks are scored by a key each, and chosen.

    Args:
        tape: Written on.
        chooser: Of blocks.
        rows: Beginning with queries.
        keys: A block's is in the cell of its last position.
        dim: Of keys.
        n_chosen: Blocks, at most.
        shares: The column where the weights of heads begin; 0: each is one.
        share: What weights are multiplied with.
    """
    n_heads, n_most = chooser.linears[0].n_out // dim, min(chooser.n_blocks, tape.size.n_splits * SPLIT // chooser.size)
    places: Arguments = {"rows": rows.at, "stride": rows.width, "keys": keys.codes, "halves": keys.halves}
    places |= {"shares": shares, "share": share}
    made = {"scores": tape.buffers["scores of blocks"], "chosen": tape.buffers["chosen blocks"]}
    sizes = {"n_heads": n_heads, "dim": dim, "size": chooser.size, "length": chooser.n_ctx, "n_blocks": chooser.n_blocks}
    grid, counters = (-(-n_most // THREADS), tape.size.n_tokens), tape.buffers["tokens' counters"]
    tape.launch(CHOOSE[keys.kept_as], grid, THREADS, counters=counters, n_chosen=n_chosen, **places, **made, **sizes)


def chooser_of(indexer: Indexer | BlockIndexer | PoolIndexer | None, options: ModelOptions) -> Chooser | None:
    """What chooses for an attention, if anything does."""
    if indexer is None:
        return None
    if isinstance(indexer, PoolIndexer):
        return PoolChooser(indexer, options)
    return BlockChooser(indexer, options) if isinstance(indexer, BlockIndexer) else PositionChooser(indexer, options)


def choice(tape: Tape, chooser: Chooser | None) -> Arguments:
    """What `attend` is told of a choice: where it is, the size of blocks, how far on a token's is, and a KV head's."""
    if chooser is None:
        return {}
    of_group = chooser.n_blocks if chooser.n_lists > 1 else 0
    strides = {"block_size": chooser.size, "chosen_stride": chooser.n_lists * chooser.n_blocks, "group_stride": of_group}
    return {"chosen": tape.buffers["chosen blocks"], **strides}
