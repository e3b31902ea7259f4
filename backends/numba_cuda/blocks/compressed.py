"""`CompressedAttention`: heads attend to one row of every token, and to one row of every block of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np

from augury.backends.numba_cuda.blocks.emitter import Emitter, Part
from augury.backends.numba_cuda.blocks.heads import Heads, prepare
from augury.backends.numba_cuda.blocks.indexer import choice, chooser_of
from augury.backends.numba_cuda.blocks.latent import emit_rows, tiles_of
from augury.backends.numba_cuda.blocks.pooling import Pooler
from augury.backends.numba_cuda.cache import Cache
from augury.backends.numba_cuda.kernels.attention import ATTEND, ATTEND_POOLED, ATTEND_THREADS
from augury.backends.numba_cuda.kernels.heads import MAX_DIM
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.latent import join_heads, split_heads
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.operations.attention import parts_bytes, shares_of
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Tape
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cuda.device import Arguments, Device, Launch, Pointer
    from augury.backends.numba_cuda.kernels.dialect import Kernel
    from augury.backends.numba_cuda.rows import Operand
    from augury.blocks import CompressedAttention
    from augury.types import ModelOptions

__all__ = ["CompressedAttentionEmitter"]


class CompressedAttentionEmitter(Emitter):
    """Keeps a row of every position, what is pooled, and pooled rows.

    What splits of positions give comes first among the parts of attention, then what splits of pooled rows give.
    """

    known = ("pooling", "indexer")
    block: CompressedAttention

    def __init__(self, block: CompressedAttention, options: ModelOptions) -> None:
        super().__init__(block, options)
        if block.head_dim % 8 or block.head_dim > MAX_DIM:
            expected = f"multiples of 8 up to {MAX_DIM}"
            raise UnsupportedError(
                f"heads of {block.head_dim} values, backend numba-cuda computes {expected}; choose another one"
            )
        self._rows = Cache("cache_type_k", 1, block.head_dim, options)
        self._pooler = None if block.pooling is None else Pooler(block.pooling, "cache_type_k", options)
        self._chooser = chooser_of(block.indexer, options)
        pooled = [] if self._pooler is None else self._pooler.linears
        chosen = [] if self._chooser is None else self._chooser.linears
        # products side by side: queries and keys, what is pooled, what queries are made of, what is compared
        self._linears = [block.q, block.kv, *pooled, block.q_down, *chosen]

    def buffers(self, n_splits: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block, n_mixed = self.block, self.block.n_heads * self.block.head_dim
        n_rows = MAX_TOKENS * block.groups.n + TILES[-1]  # a tile reads as many rows as it has room for
        widths = {"heads": sum(each.n_out for each in self._linears), "mixed heads": n_mixed}
        return {
            **({} if self._pooler is None else self._pooler.buffers()),
            **({} if self._chooser is None else self._chooser.buffers(n_splits)),
            **{name: 4 * MAX_TOKENS * width for name, width in widths.items()},
            "rows of heads": 4 * n_rows * block.groups.n_out,
            "parts of attention": parts_bytes(n_splits, self._part_bytes(n_splits)),
            "counters": 4 * MAX_TOKENS * block.n_heads,
            **Tape.operand_buffers("normed", block.q_down.n_in),
            **Tape.operand_buffers("low", block.q.n_in),
            **Tape.operand_buffers("split heads", block.groups.n_in, n_rows),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def bytes_per_position(self) -> int:
        """See `Emitter.bytes_per_position`."""
        return sum(cache.bytes_per_position() for cache in self._caches)

    def place(self, device: Device) -> None:
        """See `Emitter.place`."""
        for cache in self._caches:
            cache.place(device)

    @property
    def _caches(self) -> Sequence[Cache]:
        others = [each.caches for each in (self._pooler, self._chooser) if each is not None]
        return [self._rows, *(cache for caches in others for cache in caches)]

    def _n_pooled_splits(self, n_splits: int) -> int:
        """Splits of pooled rows, where there are so many of positions."""
        return 0 if self.block.pooling is None else -(-n_splits // self.block.pooling.size)

    def _part_bytes(self, n_splits: int) -> int:
        """Bytes of what splits give a token."""
        return 4 * self.block.n_heads * (n_splits + self._n_pooled_splits(n_splits)) * (self.block.head_dim + 2)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, n_ctx, n_mixed = self.block, tape.buffers, self.options.n_ctx, self.block.n_heads * self.block.head_dim
        columns = np.cumsum([0, *(each.n_out for each in self._linears)]).tolist()
        products, rows = [*zip(self._linears, columns, strict=False)], Rows(buffers["heads"], columns[-1])
        n_pooled = 0 if self._pooler is None else len(self._pooler.linears)
        at_pooled, at_down, at_chosen = (rows.at.at(4 * columns[i]) for i in (2, 2 + n_pooled, 3 + n_pooled))
        asking, others = [products[0], *products[3 + n_pooled :][:1]], [*products[1 : 3 + n_pooled], *products[4 + n_pooled :]]
        tape.multiply(tape.norm(block.norm, [each for each, _ in others]), others, rows)
        low = tape.operand("low", block.q.n_in, [each for each, _ in asking])
        tape.put(Rows(at_down, rows.width), block.q_down.n_out, low, block.q_norm)
        tape.multiply(low, asking, rows)
        heads = (Heads(block.n_heads, block.head_dim, block.head_norm), Heads(1, block.head_dim, block.kv_norm, self._rows))
        prepare(tape, rows, n_ctx, *heads, rope=block.rope)
        if self._pooler is not None:
            self._pooler.emit(tape, Rows(at_pooled, rows.width))
        if self._chooser is not None:
            self._chooser.emit(tape, Rows(at_chosen, rows.width))
        mixed = Rows(buffers["mixed heads"], n_mixed)
        for first, n in shares_of(tape.size.n_tokens, self._part_bytes(tape.size.n_splits)):
            self._attend(tape, rows, mixed, first, n)
        back = attrs.evolve(block.rope, frequencies=-block.rope.frequencies)
        prepare(tape, mixed, n_ctx, Heads(block.n_heads, block.head_dim), rope=back)
        tape.add_product(self._join(tape, mixed), block.o)

    def _attend(self, tape: Tape, rows: Rows, mixed: Rows, first: int, n_tokens: int) -> None:
        """Write some tokens' attention to rows of tokens and to pooled ones, whose splits are merged together."""
        block, dim, n_splits = self.block, self.block.head_dim, tape.size.n_splits
        n_pooled = self._n_pooled_splits(n_splits)
        arguments: Arguments = {"rows": rows.at, "stride": rows.width, "scale": block.scale, "n_heads": block.n_heads}
        arguments |= {"n_kv_heads": 1, "head_dim": dim, "value_dim": dim, "length": self.options.n_ctx, "window": block.window}
        arguments |= {"n_splits": n_splits + n_pooled, "parts": tape.buffers["parts of attention"], "first_token": first}
        merged: Arguments = {"counters": tape.buffers["counters"], "sinks": tape.weights.vector(block.sinks), "has_sinks": True}
        merged |= {"out": mixed.at, "width": mixed.width, "as_floats": True}

        def attend(kernel: Kernel, cache: Cache, n: int, **more: Pointer | float) -> None:
            codes, halves = cache.codes, cache.halves
            kept = {"keys": codes, "key_halves": halves, "values": codes, "value_halves": halves}
            tape.launch(kernel, (n, block.n_heads, n_tokens), ATTEND_THREADS, **kept, **arguments, **more)

        own = ATTEND[self._rows.kept_as, self._rows.kept_as]
        if self._pooler is None or block.pooling is None:
            attend(own, self._rows, n_splits, pool=1, **merged)
            return
        attend(own, self._rows, n_splits, pool=1)
        cache, chosen = self._pooler.rows, choice(tape, self._chooser)
        chosen |= {"block_size": 1} if chosen else {}  # not of positions, but of blocks
        pooled = ATTEND_POOLED[cache.kept_as]
        attend(pooled, cache, n_pooled, pool=block.pooling.size, first_split=n_splits, **chosen, **merged)

    def _join(self, tape: Tape, mixed: Rows) -> Operand:
        """Write what comes of a matrix for each group of heads."""
        block, groups, n = self.block, self.block.groups, tape.size.n_tokens
        to, rows = tape.operand("split heads", groups.n_in, [groups]), Rows(tape.buffers["rows of heads"], groups.n_out)
        sizes = {"stride": mixed.width, "head_dim": groups.n_in, "size": groups.n_in}
        emit_rows(tape, split_heads, to, groups.n * n, x=mixed.at, **sizes)
        joined, tiles = tape.operand("mixed", block.o.n_in, [block.o]), tiles_of(tape, groups.n)
        if not tape.multiply_heads(to, groups, joined, tiles):
            tape.multiply_tiles(to, [groups], rows, tiles)
            emit_rows(tape, join_heads, joined, n, x=rows.at, size=rows.width, n_values=block.o.n_in)
        return joined

    def slot_memory(self, slot: int, n: int) -> Sequence[Part]:
        """See `Emitter.slot_memory`."""
        return [part for cache in self._caches for part in cache.slot_memory(slot, n)]

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """See `Emitter.moving`."""
        return [launch for cache in self._caches for launch in cache.moving(moves, n)]
