"""`Attention`: o(softmax(scale * q k^T) v) of q, k and v of norm(x), with a cache of keys and values as halves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cuda.blocks.emitter import Emitter, Part
from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels.attention import ATTEND_THREADS, attend, merge_splits
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.heads import MAX_DIM, move_cells, prepare_heads
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.tape import WARPS, Rows, Tape, tokens_of, units_of, warps_of
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cuda.device import Device, Pointer
    from augury.blocks import Attention, Rope
    from augury.types import ModelOptions

__all__ = ["AttentionEmitter"]


class AttentionEmitter(Emitter):
    """Keeps keys and values of every position, in cells that `Batch` names: (slots, heads, n_ctx, dim)."""

    block: Attention

    def __init__(self, block: Attention, options: ModelOptions) -> None:
        super().__init__(block, options)
        for flag in ("cache_type_k", "cache_type_v"):
            if (found := getattr(options, flag)) != "f16":
                raise UnsupportedError(f"{flag} is {found!r}, backend numba-cuda keeps f16; leave the option out")
        for dim in (block.head_dim, block.value_dim):
            if dim % 8 or dim > MAX_DIM:
                raise UnsupportedError(
                    f"heads of {dim} values, backend numba-cuda computes multiples of 8 up to {MAX_DIM}; choose another one"
                )

    def buffers(self, n_splits: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block = self.block
        assert block.norm is not None
        return {
            "heads": 4 * MAX_TOKENS * self._width,
            "parts of attention": 4 * tokens_of(n_splits) * block.n_heads * n_splits * (block.value_dim + 2),
            **Tape.operand_buffers("normed", block.norm.size),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def bytes_per_position(self) -> int:
        """See `Emitter.bytes_per_position`."""
        return sum(2 * self.block.n_kv_heads * dim for dim in self._dims)

    def place(self, device: Device) -> None:
        """See `Emitter.place`."""
        n_cells = self.options.n_slots * self.block.n_kv_heads * self.options.n_ctx
        self._caches = [device.allocate(2 * n_cells * dim, "KV cache").at(0) for dim in self._dims]

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, size = self.block, tape.size
        assert block.norm is not None
        rows, (keys, values) = Rows(tape.buffers["heads"], self._width), self._caches
        linears = (block.q, block.k, block.v)
        columns = (0, block.q.n_out, block.q.n_out + block.k.n_out)
        tape.multiply(tape.norm(block.norm, linears), list(zip(linears, columns, strict=True)), rows)
        self._prepare(tape, rows)
        heads = (block.n_heads, block.n_kv_heads, block.head_dim, block.value_dim, self.options.n_ctx)
        window, parts = min(block.window or 0, 2**30), tape.buffers["parts of attention"]
        grid = (size.n_splits, block.n_heads, size.n_tokens)
        rest = (rows.width, *heads, window, size.n_splits, block.scale)
        tape.add(attend, grid, ATTEND_THREADS, rows.at, keys, values, parts, *rest)
        mixed = tape.operand("mixed", block.o.n_in, (block.o,))
        places = (parts, mixed.floats, mixed.quantised, mixed.factors, mixed.sums)
        sizes = (block.n_heads, block.value_dim, size.n_splits, window, mixed.width)
        flags = (int(mixed.as_floats), int(mixed.as_bytes))
        tape.add(merge_splits, (warps_of(units_of(block.o.n_in)), size.n_tokens), WARP * WARPS, *places, *sizes, *flags)
        tape.multiply(mixed, ((block.o, 0),), tape.x, adds=True)

    def _prepare(self, tape: Tape, rows: Rows) -> None:
        block, weights, nothing = self.block, tape.weights, rows.at
        norms = [nothing if norm is None else weights.norm(norm) for norm in (block.q_norm, block.k_norm)]
        epsilons = [0.0 if norm is None else norm.eps for norm in (block.q_norm, block.k_norm)]
        turns, n_pairs, is_interleaved = nothing, 0, 0
        if (rope := block.rope) is not None:
            n_pairs, is_interleaved = len(rope.frequencies), int(rope.is_interleaved)
            key = ("turns", rope.frequencies.tobytes(), rope.magnitude)
            turns = weights.constant(key, lambda: _turns(rope, self.options.n_ctx))
        sizes = (rows.width, block.n_heads, block.n_kv_heads, block.head_dim, block.value_dim, n_pairs, is_interleaved)
        flags = (int(block.q_norm is not None), int(block.k_norm is not None), self.options.n_ctx)
        grid = (block.n_heads + 2 * block.n_kv_heads, tape.size.n_tokens)
        tape.add(prepare_heads, grid, WARP, rows.at, *norms, turns, *self._caches, *sizes, *flags, *epsilons)

    def slot_memory(self, slot: int, n: int) -> Sequence[Part]:
        """See `Emitter.slot_memory`."""
        n_ctx, heads = self.options.n_ctx, self.block.n_kv_heads
        return [
            (cache.at(2 * dim * n_ctx * (slot * heads + head)), 2 * dim * n)
            for cache, dim in zip(self._caches, self._dims, strict=True)
            for head in range(heads)
        ]

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """See `Emitter.moving`."""
        heads = self.block.n_kv_heads
        return [
            Launch(move_cells, (-(-heads * dim // WARP), 1, 1), WARP, (cache, moves, n, heads, dim, self.options.n_ctx))
            for cache, dim in zip(self._caches, self._dims, strict=True)
        ]

    @property
    def _dims(self) -> tuple[int, int]:
        return (self.block.head_dim, self.block.value_dim)

    @property
    def _width(self) -> int:
        return self.block.q.n_out + self.block.k.n_out + self.block.v.n_out


def _turns(rope: Rope, n_ctx: int) -> np.ndarray:
    """The cosine and the sine of every pair at every position, (n_ctx, pairs, 2) float32."""
    angles = np.arange(n_ctx, dtype=np.float64)[:, None] * rope.frequencies
    return (np.stack([np.cos(angles), np.sin(angles)], axis=2) * rope.magnitude).astype(np.float32)
