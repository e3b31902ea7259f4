"""`Attention`: o(softmax(scale * q k^T) v) of q, k and v of norm(x), with a cache of keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cuda.blocks.emitter import Emitter, Part
from augury.backends.numba_cuda.blocks.indexer import BlockChooser
from augury.backends.numba_cuda.cache import Cache
from augury.backends.numba_cuda.kernels.attention import ATTEND, ATTEND_THREADS, merge_splits
from augury.backends.numba_cuda.kernels.cells import NOT_KEPT
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.heads import MAX_DIM, prepare_heads
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.norm import NOTHING
from augury.backends.numba_cuda.tape import WARPS, Rows, Tape, norm_kind, tokens_of, units_of, warps_of
from augury.blocks import BlockIndexer, GateKind, PoolIndexer
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cuda.device import Device, Launch, Pointer
    from augury.backends.numba_cuda.weights import Weights
    from augury.blocks import Attention, Norm, Rope, Temperature
    from augury.types import ModelOptions

__all__ = ["FOREVER", "AttentionEmitter", "factors_of", "turns_of"]

FOREVER = 2**30  # a window that sees all


class AttentionEmitter(Emitter):
    """Keeps keys and values of every position, or reads those of another layer.

    Attributes:
        caches: Of keys and of values.
    """

    known = (
        *("norm", "rope", "q_norm", "k_norm", "v_norm", "out_norm", "post_norm", "has_joint_norms", "is_rope_first"),
        *("window", "chunk", "clamp", "temperature", "softcap", "slopes", "sinks", "gate", "gate_kind", "source", "indexer"),
    )
    block: Attention

    def __init__(self, block: Attention, options: ModelOptions) -> None:
        super().__init__(block, options)
        dims = (block.head_dim, block.value_dim)
        for dim in dims:
            if dim % 8 or dim > MAX_DIM:
                raise UnsupportedError(
                    f"heads of {dim} values, backend numba-cuda computes multiples of 8 up to {MAX_DIM}; choose another one"
                )
        flags = ("cache_type_k", "cache_type_v")
        self.caches = [Cache(flag, block.n_kv_heads, dim, options) for flag, dim in zip(flags, dims, strict=True)]
        indexer = block.indexer
        assert not isinstance(indexer, PoolIndexer)  # which plans are refused for
        self._chooser = None if indexer is None else BlockChooser(indexer, options)
        self._linears = [block.q, *(() if block.source is not None else (block.k, block.v)), *filter(None, [block.gate])]
        self._linears += [] if indexer is None else [indexer.q, indexer.k]
        self._width = sum(each.n_out for each in self._linears)

    def buffers(self, n_splits: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block = self.block
        return {
            "heads": 4 * MAX_TOKENS * self._width,
            "parts of attention": 4 * tokens_of(n_splits) * block.n_heads * n_splits * (block.value_dim + 2),
            **({} if self._chooser is None else self._chooser.buffers(n_splits)),
            **Tape.operand_buffers("normed", block.q.n_in),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def bytes_per_position(self) -> int:
        """See `Emitter.bytes_per_position`."""
        return sum(cache.bytes_per_position() for cache in self._own_caches)

    def place(self, device: Device) -> None:
        """See `Emitter.place`."""
        for cache in self._own_caches:
            cache.place(device)

    @property
    def _own_caches(self) -> Sequence[Cache]:
        """What it keeps itself."""
        own = [] if self.block.source is not None else self.caches
        return own if self._chooser is None else [*own, self._chooser.cache]

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, rows = self.block, Rows(tape.buffers["heads"], self._width)
        columns = np.cumsum([0, *(each.n_out for each in self._linears)]).tolist()
        normed = tape.norm(block.norm, self._linears)
        tape.multiply(normed, list(zip(self._linears, columns[:-1], strict=True)), rows)
        is_kept = block.source is None
        if block.has_joint_norms:
            if block.clamp is not None or block.is_rope_first:
                self._prepare(tape, rows, clamp=block.clamp, rope=block.rope if block.is_rope_first else None)
            for norm, column in ((block.q_norm, 0), (block.k_norm, block.q.n_out))[: 2 if is_kept else 1]:
                if norm is not None:
                    tape.norm_in_place(norm, Rows(rows.at.at(4 * column), rows.width), norm.size)
            rope = None if block.is_rope_first else block.rope
            self._prepare(tape, rows, norms=(None, None, block.v_norm), rope=rope, temperature=block.temperature, keeps=is_kept)
        else:
            self._prepare(
                tape,
                rows,
                norms=(block.q_norm, block.k_norm, block.v_norm),
                clamp=block.clamp,
                rope=block.rope,
                temperature=block.temperature,
                keeps=is_kept,
            )
        places = [rows.at.at(4 * column) for column in columns]
        chosen = tape.inputs
        if self._chooser is not None and isinstance(block.indexer, BlockIndexer):
            q = Rows(places[-3], rows.width)
            self._prepare_compared(tape, q, block.indexer, self._chooser)
            chosen = self._chooser.emit(tape, q)
        self._attend(tape, rows, places[1 if block.source is not None else 3], chosen)

    def _attend(self, tape: Tape, rows: Rows, gates: Pointer, chosen: Pointer) -> None:
        block, size, (keys, values) = self.block, tape.size, self.caches
        parts = tape.buffers["parts of attention"]
        slopes, has_slopes = rows.at, block.slopes is not None
        if block.slopes is not None:
            slopes = tape.weights.constant(("slopes", block.slopes), lambda: np.array(block.slopes, np.float32))
        heads = (block.n_heads, block.n_kv_heads, block.head_dim, block.value_dim, self.options.n_ctx)
        window = (min(block.window or 0, FOREVER), min(block.chunk or 0, FOREVER))
        read = (rows.at, keys.codes, keys.halves, values.codes, values.halves, slopes, chosen)
        of_blocks = (0, 0) if self._chooser is None else (self._chooser.block.size, self._chooser.n_blocks)
        rest = (size.n_splits, int(has_slopes), *of_blocks, block.scale, block.softcap or 0.0)
        kernel, grid = ATTEND[keys.kept_as, values.kept_as], (size.n_splits, block.n_heads, size.n_tokens)
        tape.add(kernel, grid, ATTEND_THREADS, *read, parts, rows.width, *heads, *window, *rest)
        mixed = tape.operand("mixed", block.o.n_in, (block.o,))
        to = mixed.before(block.out_norm)
        sinks = parts if block.sinks is None else tape.weights.vector(block.sinks)
        places = (parts, sinks, to.floats, to.quantised, to.factors, to.sums, gates)
        gate_size = 0 if block.gate is None else block.o.n_in // block.gate.n_out
        sizes = (block.n_heads, block.value_dim, size.n_splits, *window, to.width)
        opened = (rows.width, gate_size, int(block.gate_kind is GateKind.SOFTPLUS))
        flags = (int(to.as_floats), int(to.as_bytes))
        grid = (warps_of(units_of(block.o.n_in)), size.n_tokens, 1)
        tape.add(merge_splits, grid, WARP * WARPS, *places, *sizes, int(block.sinks is not None), *opened, *flags)
        tape.norm_operand(block.out_norm, mixed, block.o.n_in)
        tape.leave(mixed, block.o, block.post_norm)

    def _prepare(
        self,
        tape: Tape,
        rows: Rows,
        *,
        norms: Sequence[Norm | None] = (None, None, None),
        clamp: float | None = None,
        rope: Rope | None = None,
        temperature: Temperature | None = None,
        keeps: bool = False,
    ) -> None:
        """Write what becomes of heads; of another layer's keys and values nothing."""
        block, weights, nothing, n_ctx = self.block, tape.weights, rows.at, self.options.n_ctx
        counts = (block.n_heads, block.n_kv_heads, block.n_kv_heads)
        weights_of = [nothing if each is None else weights.norm(each, n) for each, n in zip(norms, counts, strict=True)]
        kinds = [NOTHING if each is None else norm_kind(each) for each in norms]
        epsilons = [0.0 if each is None else each.eps for each in norms]
        turns, factors, n_pairs, is_interleaved = nothing, nothing, 0, 0
        if rope is not None:
            n_pairs, is_interleaved = len(rope.frequencies), int(rope.is_interleaved)
            turns = turns_of(weights, rope, n_ctx)
        if temperature is not None:
            factors = factors_of(weights, temperature, n_ctx)
        planes = [plane for cache in self.caches for plane in (cache.codes, cache.halves)] if keeps else [nothing] * 4
        sizes = (rows.width, block.n_heads, block.n_kv_heads, block.head_dim, block.value_dim)
        how = (n_pairs, is_interleaved, int(block.is_rope_first), *kinds, int(temperature is not None))
        kept = [cache.number if keeps else NOT_KEPT for cache in self.caches]
        limit = np.inf if clamp is None else clamp
        grid = (block.n_heads + (2 * block.n_kv_heads if block.source is None else 0), tape.size.n_tokens)
        places = (rows.at, *weights_of, turns, factors, *planes)
        tape.add(prepare_heads, grid, WARP, *places, *sizes, *how, *kept, n_ctx, limit, *epsilons)

    def _prepare_compared(self, tape: Tape, rows: Rows, indexer: BlockIndexer, chooser: BlockChooser) -> None:
        """Write what becomes of what an indexer compares: queries, and after them keys."""
        nothing, cache, dim, n_ctx = rows.at, chooser.cache, indexer.k.n_out, self.options.n_ctx
        norms = [tape.weights.norm(indexer.q_norm, chooser.n_groups), tape.weights.norm(indexer.k_norm), nothing]
        kinds = (norm_kind(indexer.q_norm), norm_kind(indexer.k_norm), NOTHING)
        places = (*norms, turns_of(tape.weights, indexer.rope, n_ctx), nothing, cache.codes, cache.halves, nothing, nothing)
        how = (len(indexer.rope.frequencies), int(indexer.rope.is_interleaved), 0, *kinds, 0, cache.number, NOT_KEPT, n_ctx)
        sizes, grid = (rows.width, chooser.n_groups, 1, dim, dim), (chooser.n_groups + 1, tape.size.n_tokens)
        limits = (np.inf, indexer.q_norm.eps, indexer.k_norm.eps, 0.0)
        tape.add(prepare_heads, grid, WARP, rows.at, *places, *sizes, *how, *limits)

    def slot_memory(self, slot: int, n: int) -> Sequence[Part]:
        """See `Emitter.slot_memory`."""
        return [part for cache in self._own_caches for part in cache.slot_memory(slot, n)]

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """See `Emitter.moving`."""
        return [launch for cache in self._own_caches for launch in cache.moving(moves, n)]


def turns_of(weights: Weights, rope: Rope, n_ctx: int) -> Pointer:
    """The cosine and the sine of every pair at every position, (n_ctx, pairs, 2) float32."""

    def make() -> np.ndarray:
        angles = np.arange(n_ctx, dtype=np.float64)[:, None] * rope.frequencies
        return (np.stack([np.cos(angles), np.sin(angles)], axis=2) * rope.magnitude).astype(np.float32)

    return weights.constant(("turns", rope.frequencies.tobytes(), rope.magnitude), make)


def factors_of(weights: Weights, temperature: Temperature, n_ctx: int) -> Pointer:
    """What queries of every position are multiplied with, (n_ctx,) float32."""

    def make() -> np.ndarray:
        periods = (np.arange(n_ctx) + temperature.offset) // temperature.period
        return (1.0 + temperature.scale * np.log1p(periods)).astype(np.float32)

    return weights.constant((temperature, n_ctx), make)
