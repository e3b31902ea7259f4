"""`LatentAttention`: all heads attend to the same rows, of which one is kept of every position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cuda.blocks.emitter import Emitter, Part
from augury.backends.numba_cuda.blocks.heads import factors_of, turned
from augury.backends.numba_cuda.blocks.indexer import choice, chooser_of
from augury.backends.numba_cuda.cache import Cache
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.latent import MAX_ROW, join_heads, merge_latents, prepare_latents
from augury.backends.numba_cuda.kernels.latent_attention import ATTEND_LATENT, MOST_MERGED
from augury.backends.numba_cuda.kernels.latent_fragments import HEADS, LATENT_THREADS, MAX_LATENT
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.operations.attention import FOREVER, parts_bytes, shares_of
from augury.backends.numba_cuda.rows import Rows, Tiles, units_of
from augury.backends.numba_cuda.tape import WARPS, Tape, norm_kind, warps_of
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cuda.device import Arguments, Device, Launch, Pointer
    from augury.backends.numba_cuda.kernels.dialect import Kernel
    from augury.backends.numba_cuda.rows import Operand
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
        if block.cached_dim % 8 or block.cached_dim > MAX_ROW or block.latent_dim > MAX_LATENT:
            expected = f"multiples of 8 up to {MAX_ROW}, of them latents up to {MAX_LATENT}"
            raise UnsupportedError(
                f"rows of {block.latent_dim} latents among {block.cached_dim} values, backend numba-cuda keeps {expected}; "
                "choose another one"
            )
        if block.window is not None and (block.indexer is not None or block.reuses_choice):
            raise UnsupportedError("a choice of what a window shows is not computed here; use backend reference")
        self._cache = Cache("cache_type_k", 1, block.cached_dim, options)
        self.chooser = self._own = chooser_of(block.indexer, options)
        compared = [] if self._own is None else self._own.linears
        # products side by side: first those of what queries are made of
        self._linears = [block.q, *compared, block.kv, *filter(None, [block.gate, block.q_down])]

    def buffers(self, n_splits: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block, n_heads = self.block, self.block.n_heads
        n_rows = MAX_TOKENS * n_heads + TILES[-1]  # a tile reads as many rows as it has room for
        return {
            **({} if self._own is None else self._own.buffers(n_splits)),
            "heads": 4 * MAX_TOKENS * sum(each.n_out for each in self._linears),
            "rows of heads": 4 * n_rows * max(block.latent_dim, block.values.n_out),
            "counters": 4 * MAX_TOKENS * n_heads,
            "parts of attention": parts_bytes(n_splits, self._part_bytes(n_splits)),
            **Tape.operand_buffers("normed", block.kv.n_in),
            **Tape.operand_buffers("low", block.q.n_in),
            **Tape.operand_buffers("split heads", max(block.keys.n_in, block.latent_dim), n_rows),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def _part_bytes(self, n_splits: int) -> int:
        """Bytes of what splits give a token."""
        return 4 * self.block.n_heads * n_splits * (self.block.latent_dim + 2)

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
        block, n = self.block, tape.size.n_tokens
        columns = np.cumsum([0, *(each.n_out for each in self._linears)]).tolist()
        heads, n_compared = Rows(tape.buffers["heads"], columns[-1]), 0 if self._own is None else len(self._own.linears)
        self._multiply(tape, heads, columns)
        to = tape.operand("split heads", block.keys.n_in, [block.keys])
        self._prepare(tape, heads, columns[1 + n_compared], to)
        if self._own is not None:
            self._own.emit(tape, Rows(heads.at.at(4 * block.q.n_out), heads.width))
        rows, tiles = tape.buffers["rows of heads"], tiles_of(tape, block.n_heads)
        absorbed = rows
        if block.keys.n_in:
            tape.multiply_tiles(to, [block.keys], Rows(rows, block.latent_dim), tiles)
        else:
            n_bytes = 4 * MAX_TOKENS * block.n_heads * block.latent_dim
            absorbed = tape.weights.constant(("zeros", n_bytes), lambda: np.zeros(n_bytes, np.uint8))
        to = tape.operand("split heads", block.latent_dim, [block.values])
        for first, n_merged in shares_of(n, self._part_bytes(tape.size.n_splits)):
            self._attend(tape, heads, absorbed, to, first, n_merged)
        mixed = tape.operand("mixed", block.o.n_in, [block.o])
        if block.gate is not None or not tape.multiply_heads(to, block.values, mixed, tiles):
            tape.multiply_tiles(to, [block.values], Rows(rows, block.values.n_out), tiles)
            gates: Arguments = {}
            if block.gate is not None:
                gates = {"gates": heads.at.at(4 * columns[2 + n_compared]), "gate_stride": heads.width}
                gates["gate_size"] = block.o.n_in // block.gate.n_out
            emit_rows(tape, join_heads, mixed, n, x=rows, size=block.values.n_out, n_values=block.o.n_in, **gates)
        tape.add_product(mixed, block.o)

    def _multiply(self, tape: Tape, heads: Rows, columns: Sequence[int]) -> None:
        """Write the products of norm(x), and of what queries are made of."""
        block, products = self.block, [*zip(self._linears, columns, strict=False)]
        if block.q_down is None:
            tape.multiply(tape.norm(block.norm, self._linears), products, heads)
            return
        n_asking = 1 if self._own is None else 2
        tape.multiply(tape.norm(block.norm, self._linears[n_asking:]), products[n_asking:], heads)
        low = tape.operand("low", block.q.n_in, self._linears[:n_asking])
        tape.put(Rows(heads.at.at(4 * columns[-2]), heads.width), block.q.n_in, low, block.q_norm)
        tape.multiply(low, products[:n_asking], heads)

    def _prepare(self, tape: Tape, heads: Rows, column: int, to: Operand) -> None:
        """Write what is kept of tokens, and what the first parts of queries are multiplied as."""
        block, weights, cache, n = self.block, tape.weights, self._cache, tape.size.n_tokens
        arguments: Arguments = {"rows": heads.at.at(4 * column), "heads": heads.at, "stride": heads.width, "n": n}
        arguments |= {"n_latent": block.latent_dim, "n_turned": block.cached_dim - block.latent_dim}
        arguments |= {
            "length": self.options.n_ctx,
            "head_dim": self._head_dim,
            "size": block.keys.n_in,
            "codes": cache.codes,
            "halves": cache.halves,
        }
        arguments["kept_as"] = cache.number
        for name, norm in (("latent", block.kv_norm), ("turned", block.turned_norm)):
            if norm is not None:
                arguments |= {f"{name}_norm": weights.norm(norm), f"{name}_kind": norm_kind(norm), f"{name}_eps": norm.eps}
        grid = (1 + (block.n_heads if block.keys.n_in else 0), n)
        rope = turned(weights, block.rope, self.options.n_ctx)
        tape.launch(prepare_latents, grid, WARP, **arguments, **rope, **to.arguments)

    @property
    def _head_dim(self) -> int:
        return self.block.q.n_out // self.block.n_heads

    def _attend(self, tape: Tape, heads: Rows, absorbed: Pointer, to: Operand, first: int, n: int) -> None:
        """Write attention of some tokens."""
        block, cache, n_splits, n_ctx = self.block, self._cache, tape.size.n_splits, self.options.n_ctx
        is_merged, window = n_splits <= MOST_MERGED, min(block.window or 0, FOREVER)
        n_rows = 2 if block.n_heads > HEADS and not is_merged and (cache.kept_as, 2) in ATTEND_LATENT else 1
        common: Arguments = {"n_heads": block.n_heads, "n_splits": n_splits, "window": window, "n": tape.size.n_tokens}
        common |= {"parts": tape.buffers["parts of attention"], "n_latent": block.latent_dim, "first_token": first}
        if block.sinks is not None:
            common |= {"sinks": tape.weights.vector(block.sinks), "has_sinks": True}
        arguments: Arguments = {"absorbed": absorbed, "heads": heads.at, "stride": heads.width, "length": n_ctx}
        arguments |= {"words": cache.codes, "halves": cache.halves, "head_dim": self._head_dim, "dim": block.cached_dim}
        arguments |= {"counters": tape.buffers["counters"], "scale": block.scale}
        arguments |= choice(tape, self.chooser)
        arguments.pop("group_stride", None)  # all heads attend to the same
        if block.temperature is not None:
            arguments |= {"factors": factors_of(tape.weights, block.temperature, n_ctx), "has_factors": True}
        arguments |= {"unit_factors": to.factors, "unit_sums": to.sums, "out": to.floats, "quantised": to.quantised}
        arguments |= {"as_floats": to.as_floats, "as_bytes": to.as_bytes, "width": to.width if is_merged else 0}
        grid = (n_splits, -(-block.n_heads // (HEADS * n_rows)), n)
        rope, kernel = turned(tape.weights, block.rope, n_ctx), ATTEND_LATENT[cache.kept_as, n_rows]
        tape.launch(kernel, grid, LATENT_THREADS, **arguments, **common, **rope)
        if not is_merged:
            common["size"] = common.pop("n_latent")
            emit_rows(tape, merge_latents, to, block.n_heads * n, n_merged=n, **common)

    def slot_memory(self, slot: int, n: int) -> Sequence[Part]:
        """See `Emitter.slot_memory`."""
        return [part for cache in self._caches for part in cache.slot_memory(slot, n)]

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """See `Emitter.moving`."""
        return [launch for cache in self._caches for launch in cache.moving(moves, n)]


def emit_rows(tape: Tape, kernel: Kernel, to: Operand, n_rows: int, **arguments: Pointer | float) -> None:
    """Write a kernel that makes an operand of some rows."""
    grid = (warps_of(units_of(to.width)), n_rows)
    tape.launch(kernel, grid, WARP * WARPS, **{"n": tape.size.n_tokens, **arguments}, **to.arguments)


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
