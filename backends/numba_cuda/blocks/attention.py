"""`Attention`: o(softmax(scale * q k^T) v) of q, k and v of norm(x), with a cache of keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cuda.blocks.emitter import Emitter, Part
from augury.backends.numba_cuda.blocks.first_products import FirstProducts, products
from augury.backends.numba_cuda.blocks.heads import Heads, prepare
from augury.backends.numba_cuda.blocks.indexer import choice, chooser_of
from augury.backends.numba_cuda.cache import Cache
from augury.backends.numba_cuda.kernels.attention import ATTEND, ATTEND_THREADS
from augury.backends.numba_cuda.kernels.formats import TILE_ROWS
from augury.backends.numba_cuda.kernels.heads import MAX_DIM
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Tape, tokens_of
from augury.blocks import GateKind
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from augury.backends.numba_cuda.device import Arguments, Device, Launch, Pointer
    from augury.blocks import Attention, Norm, Rope, Temperature
    from augury.types import ModelOptions

__all__ = ["FOREVER", "AttentionEmitter", "parts_bytes", "shares_of"]

FOREVER = 2**30  # a window that sees all
MOST_PARTS = 128 << 20  # bytes of what splits give, of which those of one token may be more


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
        self._chooser = chooser_of(block.indexer, options)
        before = [*([] if self._chooser is None else self._chooser.linears), *filter(None, [block.gate])]
        heads = [block.q, *(() if block.source is not None else (block.k, block.v))]
        self._linears = [*before, *heads]  # v last, which often has another type than all others
        self._columns = np.cumsum([0, *(each.n_out for each in before)]).tolist()
        self._heads_at = -(-self._columns.pop() // TILE_ROWS) * TILE_ROWS
        *columns, self._width = np.cumsum([self._heads_at, *(each.n_out for each in heads)]).tolist()
        self._columns += columns

    def buffers(self, n_splits: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block = self.block
        return {
            "heads": 4 * MAX_TOKENS * self._width,
            "parts of attention": parts_bytes(n_splits, self._part_bytes(n_splits)),
            "counters": 4 * MAX_TOKENS * block.n_heads,
            **({} if self._chooser is None else self._chooser.buffers(n_splits)),
            **Tape.operand_buffers("normed", block.q.n_in),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def _part_bytes(self, n_splits: int) -> int:
        """Bytes of what splits give a token."""
        return 4 * self.block.n_heads * n_splits * (self.block.value_dim + 2)

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
        return own if self._chooser is None else [*own, *self._chooser.caches]

    @property
    def norms(self) -> Sequence[Norm | None]:
        """See `Emitter.norms`."""
        return (self.block.norm,)

    @property
    def first_products(self) -> FirstProducts:
        """See `Emitter.first_products`."""
        return FirstProducts(self, "heads", list(zip(self._linears, self._columns, strict=True)), self._width)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block = self.block
        made = products(tape, tape.norm(block.norm, self._linears), self.first_products)
        rows = Rows(made.at.at(4 * self._heads_at), made.width)
        is_kept = block.source is None
        if block.has_joint_norms:
            if block.clamp is not None or block.is_rope_first:
                self._prepare(tape, rows, clamp=block.clamp, rope=block.rope if block.is_rope_first else None)
            k_norm = block.k_norm if is_kept else None
            tape.norm_parts(rows, ((block.q_norm, 0, block.q.n_out), (k_norm, block.q.n_out, block.k.n_out)))
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
        if self._chooser is not None:
            self._chooser.emit(tape, made)
        n_before = 0 if self._chooser is None else len(self._chooser.linears)
        self._attend(tape, rows, made.at.at(4 * self._columns[n_before]))

    def _attend(self, tape: Tape, rows: Rows, gates: Pointer) -> None:
        block, size, (keys, values) = self.block, tape.size, self.caches
        arguments: Arguments = {"rows": rows.at, "stride": rows.width, "scale": block.scale, "pool": 1}
        arguments["cap"] = block.softcap or 0.0
        arguments |= {"keys": keys.codes, "key_halves": keys.halves, "values": values.codes, "value_halves": values.halves}
        arguments |= {"n_heads": block.n_heads, "n_kv_heads": block.n_kv_heads, "length": self.options.n_ctx}
        arguments |= {"head_dim": block.head_dim, "value_dim": block.value_dim, "n_splits": size.n_splits}
        arguments |= {"window": min(block.window or 0, FOREVER), "chunk": min(block.chunk or 0, FOREVER)}
        arguments |= {"parts": tape.buffers["parts of attention"], "counters": tape.buffers["counters"]}
        arguments |= choice(tape, self._chooser)
        if block.slopes is not None:
            slopes = tape.weights.constant(("slopes", block.slopes), lambda: np.array(block.slopes, np.float32))
            arguments |= {"slopes": slopes, "has_slopes": True}
        if block.sinks is not None:
            arguments |= {"sinks": tape.weights.vector(block.sinks), "has_sinks": True}
        if block.gate is not None:
            arguments |= {"gates": gates, "gate_stride": rows.width, "gate_size": block.o.n_in // block.gate.n_out}
            arguments["is_softplus"] = block.gate_kind is GateKind.SOFTPLUS
        mixed = tape.operand("mixed", block.o.n_in, (block.o,))
        arguments |= mixed.before(block.out_norm).arguments
        kernel = ATTEND[keys.kept_as, values.kept_as]
        for first, n in shares_of(size.n_tokens, self._part_bytes(size.n_splits)):
            tape.launch(kernel, (size.n_splits, block.n_heads, n), ATTEND_THREADS, first_token=first, **arguments)
        tape.norm_operand(block.out_norm, mixed, block.o.n_in)
        tape.add_product(mixed, block.o, block.post_norm)

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
        block, n = self.block, self.block.n_kv_heads if self.block.source is None else 0
        kept = self.caches if keeps else (None, None)
        heads = [Heads(block.n_heads, block.head_dim, norms[0])]
        dims = (block.head_dim, block.value_dim)
        heads += [Heads(n, dim, norm, cache) for dim, norm, cache in zip(dims, norms[1:], kept, strict=True)]
        prepare(
            tape,
            rows,
            self.options.n_ctx,
            *heads,
            rope=rope,
            clamp=clamp,
            temperature=temperature,
            is_rope_first=block.is_rope_first,
        )

    def slot_memory(self, slot: int, n: int) -> Sequence[Part]:
        """See `Emitter.slot_memory`."""
        return [part for cache in self._own_caches for part in cache.slot_memory(slot, n)]

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """See `Emitter.moving`."""
        return [launch for cache in self._own_caches for launch in cache.moving(moves, n)]


def parts_bytes(n_splits: int, n_bytes: int) -> int:
    """Bytes of what splits give the tokens of a pass until that is merged, `n_bytes` each, as far as there is room."""
    return max(n_bytes, min(MOST_PARTS, tokens_of(n_splits) * n_bytes))


def shares_of(n_tokens: int, n_bytes: int) -> Iterator[tuple[int, int]]:
    """Which tokens attend at once, since there is room for what splits give them: the first, and how many."""
    n = max(1, MOST_PARTS // n_bytes)
    for first in range(0, n_tokens, n):
        yield first, min(n, n_tokens - first)
