"""`LatentAttention`: all heads attend to the same rows, of which one is kept of every position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cuda.blocks.attention import FOREVER, NOT_MERGED, parts_bytes, shares_of
from augury.backends.numba_cuda.blocks.emitter import Emitter, Part
from augury.backends.numba_cuda.blocks.heads import factors_of, turns_of
from augury.backends.numba_cuda.blocks.indexer import choice, chooser_of, emit_choice
from augury.backends.numba_cuda.cache import Cache
from augury.backends.numba_cuda.kernels.attention import ATTEND, ATTEND_THREADS
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.latent import MAX_ROW, join_heads, merge_latents, prepare_latents, split_heads
from augury.backends.numba_cuda.kernels.matmul import TILES
from augury.backends.numba_cuda.kernels.norm import NOTHING
from augury.backends.numba_cuda.tape import WARPS, Rows, Tape, Tiles, norm_kind, units_of, warps_of
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cuda.device import Device, Launch, Pointer
    from augury.backends.numba_cuda.kernels.dialect import Kernel
    from augury.backends.numba_cuda.tape import Operand
    from augury.blocks import LatentAttention
    from augury.types import ModelOptions

__all__ = ["LatentAttentionEmitter", "emit_rows", "tiles_of"]


class LatentAttentionEmitter(Emitter):
    """Keeps latents and turned values of every position, in cells that `Batch` names: (slots, n_ctx, L + R).

    Attributes:
        chooser: What chooses the positions that it attends to, its own or that of a layer before; None: all are.
    """

    known = ("rope", "q_down", "q_norm", "temperature", "turned_norm", "window", "gate", "indexer", "reuses_choice", "sinks")
    block: LatentAttention

    def __init__(self, block: LatentAttention, options: ModelOptions) -> None:
        super().__init__(block, options)
        if block.cached_dim % 8 or block.cached_dim > MAX_ROW:
            expected = f"multiples of 8 up to {MAX_ROW}"
            raise UnsupportedError(
                f"rows of {block.cached_dim} values, backend numba-cuda keeps {expected}; choose another one"
            )
        if block.window is not None and (block.indexer is not None or block.reuses_choice):
            raise UnsupportedError("a choice of what a window shows is not computed here; use backend reference")
        self._cache = Cache("cache_type_k", 1, block.cached_dim, options)
        self.chooser = self._own = chooser_of(block.indexer, options)

    def buffers(self, n_splits: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block, n_heads = self.block, self.block.n_heads
        n_rows = MAX_TOKENS * n_heads + TILES[-1]  # a tile reads as many rows as it has room for
        widths = {"kept": block.kv.n_out, "heads": block.q.n_out, "queries": n_heads * block.cached_dim}
        widths |= {"down": 0 if block.q_down is None else block.q_down.n_out}
        widths |= {"gates": 0 if block.gate is None else block.gate.n_out}
        widths |= {"compared": 0 if self._own is None else sum(each.n_out for each in self._own.linears)}
        return {
            **({} if self._own is None else self._own.buffers(n_splits)),
            **{name: 4 * MAX_TOKENS * width for name, width in widths.items()},
            "rows of heads": 4 * n_rows * max(block.latent_dim, block.values.n_out),
            "parts of attention": parts_bytes(n_splits, self._part_bytes(n_splits)),
            **Tape.operand_buffers("normed", block.kv.n_in),
            **Tape.operand_buffers("low", block.q.n_in),
            **Tape.operand_buffers("split heads", max(block.keys.n_in, block.latent_dim), n_rows),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def _part_bytes(self, n_splits: int) -> int:
        """Bytes of what splits give a token."""
        return 4 * self.block.n_heads * n_splits * (self.block.cached_dim + 2)

    def bytes_per_position(self) -> int:
        """See `Emitter.bytes_per_position`."""
        return sum(cache.bytes_per_position() for cache in self._caches)

    @property
    def _caches(self) -> Sequence[Cache]:
        return [self._cache, *(() if self._own is None else self._own.caches)]

    def place(self, device: Device) -> None:
        """See `Emitter.place`."""
        for cache in self._caches:
            cache.place(device)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, n = self.block, tape.buffers, tape.size.n_tokens
        kept, heads = Rows(buffers["kept"], block.kv.n_out), Rows(buffers["heads"], block.q.n_out)
        gates = Rows(buffers["gates"], 0 if block.gate is None else block.gate.n_out)
        parts = [block.q_down or block.q, block.kv, *([] if block.gate is None else [block.gate])]
        compared = [] if self._own is None else self._own.linears
        asked = [block.q, *compared[:1]]
        normed = asking = tape.norm(block.norm, [*parts, *compared[0 if block.q_down is None else 1 :]])
        tape.multiply(normed, ((block.kv, 0),), kept)
        if block.gate is not None:
            tape.multiply(normed, ((block.gate, 0),), gates)
        if block.q_down is not None:
            down = Rows(buffers["down"], block.q_down.n_out)
            tape.multiply(normed, ((block.q_down, 0),), down)
            asking = tape.operand("low", block.q.n_in, asked)
            tape.put(down, down.width, asking, block.q_norm)
        tape.multiply(asking, ((block.q, 0),), heads)
        if self._own is not None:
            emit_choice(tape, self._own, asking, normed)
        tiles = tiles_of(tape, block.n_heads)
        self._prepare(tape, kept, heads, self._absorb(tape, heads, tiles))
        to = tape.operand("split heads", block.latent_dim, [block.values])
        window = min(block.window or 0, FOREVER)
        sizes = (block.n_heads, block.cached_dim, tape.size.n_splits, window, block.latent_dim)
        sinks = tape.inputs if block.sinks is None else tape.weights.vector(block.sinks)
        places = (buffers["parts of attention"], sinks)
        for first, n_merged in shares_of(n, self._part_bytes(tape.size.n_splits)):
            self._attend(tape, first, n_merged)
            more = (int(block.sinks is not None), first, n_merged)
            emit_rows(tape, merge_latents, places, to, block.n_heads * n_merged, sizes, more)
        rows = Rows(buffers["rows of heads"], block.values.n_out)
        tape.multiply_tiles(to, [block.values], rows, tiles)
        mixed = tape.operand("mixed", block.o.n_in, [block.o])
        gate = (gates.width, 0 if block.gate is None else block.o.n_in // gates.width)
        emit_rows(tape, join_heads, (rows.at, gates.at), mixed, n, (rows.width, block.o.n_in), gate)
        tape.leave(mixed, block.o)

    def _absorb(self, tape: Tape, heads: Rows, tiles: Tiles) -> Pointer:
        """Write what the first parts of queries are multiplied to, head by head; where there are none, 0."""
        block, n_rows = self.block, tape.size.n_tokens * self.block.n_heads
        if block.keys.n_in == 0:
            n_bytes = 4 * MAX_TOKENS * block.n_heads * block.latent_dim
            return tape.weights.constant(("zeros", n_bytes), lambda: np.zeros(n_bytes, np.uint8))
        to, rows = (
            tape.operand("split heads", block.keys.n_in, [block.keys]),
            Rows(tape.buffers["rows of heads"], block.latent_dim),
        )
        sizes = (heads.width, heads.width // block.n_heads, block.keys.n_in)
        emit_rows(tape, split_heads, (heads.at,), to, n_rows, sizes)
        tape.multiply_tiles(to, [block.keys], rows, tiles)
        return rows.at

    def _prepare(self, tape: Tape, kept: Rows, heads: Rows, absorbed: Pointer) -> None:
        block, weights, cache, n_ctx = self.block, tape.weights, self._cache, self.options.n_ctx
        norms = (block.kv_norm, block.turned_norm)
        turns, factors, turned = kept.at, kept.at, (0, 0, 0)
        if block.rope is not None:
            turns = turns_of(weights, block.rope, n_ctx)
            turned = (len(block.rope.frequencies), block.rope.offset, int(block.rope.is_interleaved))
        if block.temperature is not None:
            factors = factors_of(weights, block.temperature, n_ctx)
        weights_of = [kept.at if norm is None else weights.norm(norm) for norm in norms]
        kinds = [NOTHING if norm is None else norm_kind(norm) for norm in norms]
        places = (kept.at, heads.at, absorbed, tape.buffers["queries"], *weights_of, turns, factors, cache.codes, cache.halves)
        sizes = (kept.width, heads.width, block.n_heads, heads.width // block.n_heads)
        dims = (block.latent_dim, block.cached_dim - block.latent_dim, *turned)
        rest = (int(block.temperature is not None), cache.number, n_ctx, tape.size.n_tokens)
        grid, eps = (block.n_heads + 1, tape.size.n_tokens), [0.0 if norm is None else norm.eps for norm in norms]
        tape.add(prepare_latents, grid, WARP, *places, *sizes, *dims, *kinds, *rest, *eps)

    def _attend(self, tape: Tape, first: int, n: int) -> None:
        """Write attention of some tokens, whose keys and values are the same rows."""
        block, cache, n_splits = self.block, self._cache, tape.size.n_splits
        queries, parts, dim = tape.buffers["queries"], tape.buffers["parts of attention"], block.cached_dim
        chosen, *of_blocks = choice(tape, self.chooser)
        places = (queries, cache.codes, cache.halves, cache.codes, cache.halves, queries, chosen, parts, *[parts] * 7)
        sizes = (block.n_heads * dim, block.n_heads, 1, dim, dim, self.options.n_ctx, min(block.window or 0, FOREVER), 0)
        grid = (n_splits, block.n_heads, n)
        kernel = ATTEND[cache.kept_as, cache.kept_as]
        tape.add(
            kernel, grid, ATTEND_THREADS, *places, *sizes, n_splits, 0, *of_blocks, 1, first, *NOT_MERGED, block.scale, 0.0
        )

    def slot_memory(self, slot: int, n: int) -> Sequence[Part]:
        """See `Emitter.slot_memory`."""
        return [part for cache in self._caches for part in cache.slot_memory(slot, n)]

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """See `Emitter.moving`."""
        return [launch for cache in self._caches for launch in cache.moving(moves, n)]


def emit_rows(
    tape: Tape,
    kernel: Kernel,
    places: Sequence[Pointer],
    to: Operand,
    n_rows: int,
    sizes: Sequence[int],
    more: Sequence[int] = (),
) -> None:
    """Write a kernel that makes an operand of some rows."""
    operand, flags = (to.floats, to.quantised, to.factors, to.sums), (int(to.as_floats), int(to.as_bytes))
    grid = (warps_of(units_of(to.width)), n_rows)
    tape.add(kernel, grid, WARP * WARPS, *places, *operand, *sizes, to.width, tape.size.n_tokens, *more, *flags)


def tiles_of(tape: Tape, n_heads: int) -> Tiles:
    """Which rows go through which head's matrix."""
    n = tape.size.n_tokens
    size = next((each for each in TILES if each >= n), TILES[-1])

    def make() -> np.ndarray:
        starts = np.arange(0, n, size)
        firsts = np.arange(n_heads)[:, None] * n + starts
        ends = np.arange(n_heads)[:, None] * n + np.minimum(starts + size, n)
        table = np.stack([np.broadcast_to(np.arange(n_heads)[:, None], firsts.shape), firsts, ends], axis=2)
        return np.array([firsts.size, *table.reshape(-1)], np.int32)

    return Tiles(tape.weights.constant(("tiles", n_heads, n), make), n_heads * -(-n // size), size)
