"""`Attention`: o(softmax(scale * q k^T) v) of q, k and v of norm(x), with a cache of keys and values.

Its kernels have files of their own: `attention_store` puts keys and values into the cache, `attention` reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.emitter import MixerEmitter
from augury.backends.numba_cpu.blocks.indexer import choice_fields
from augury.backends.numba_cpu.blocks.pooling import chooser_of
from augury.backends.numba_cpu.heads import Ways, turns_key
from augury.backends.numba_cpu.kernels import attention_layer
from augury.backends.numba_cpu.kernels.activation import sigmoid, softplus
from augury.backends.numba_cpu.kernels.attention import attend_kernel
from augury.backends.numba_cpu.kernels.attention_store import move_kernel, prepare_kernel
from augury.backends.numba_cpu.kernels.bend import bend_scores
from augury.backends.numba_cpu.kernels.cache_type import BLOCK, BYTES, LANES
from augury.backends.numba_cpu.kernels.gate import gate_kernel
from augury.backends.numba_cpu.kernels.head import prepare_head, prepare_rows
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, place_columns
from augury.backends.numba_cpu.memory import bits, memory_at, up
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes
from augury.blocks import GateKind
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import Attention, Norm, Temperature
    from augury.types import ModelOptions

__all__ = ["GATES", "AttentionEmitter"]

GATES = {GateKind.SIGMOID: gate_kernel(sigmoid, "sigmoid"), GateKind.SOFTPLUS: gate_kernel(softplus, "softplus")}
_NO_WINDOW = 1 << 40
_BLOCK = 64  # positions that a slot's memory is padded to: at least what attention scores at once


class AttentionEmitter(MixerEmitter):
    """Keeps keys and values of every position, in cells that `Batch` names."""

    block: Attention

    def __init__(self, block: Attention, options: ModelOptions) -> None:
        super().__init__(block, options)
        self._types = (options.cache_type_k, options.cache_type_v)
        self._length = up(options.n_ctx, _BLOCK)
        self._bends_scores = block.softcap is not None or block.slopes is not None
        self._attend, self._chooser = attend_kernel(*self._types, is_sparse=block.indexer is not None), None
        if block.indexer is not None:
            _check_sparse(block)
            self._chooser = chooser_of(block.indexer, options, self._length, block.n_kv_heads)
        self.source: AttentionEmitter | None = None  # whose keys and values it reads

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        block = self.block
        own = (self._attend, prepare_kernel(*self._types), prepare_head)
        chooser = () if self._chooser is None else self._chooser.kernels()
        joined = () if block.embedded_norm is None else (place_columns,)
        rows = (prepare_rows,) if block.has_joint_norms or block.out_norm is not None or block.source is not None else ()
        gate = () if block.gate is None else (GATES[block.gate_kind],)
        return (*own, *joined, *rows, *gate, *((bend_scores,) if self._bends_scores else ()), *chooser)

    def buffers(self, n_threads: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block = self.block
        widths = {"q": block.q.n_out, "k": block.k.n_out, "v": block.v.n_out, "mixed": block.o.n_in}
        if block.gate is not None:
            widths["gate of attention"] = block.gate.n_out
        if block.embedded_norm is not None:
            widths["joined"] = block.q.n_in
        chooser = {} if self._chooser is None else self._chooser.buffers()
        return {**chooser, **{name: row_bytes(width) for name, width in widths.items()}} | {
            "parts of attention": attention_layer.parts_bytes(block.value_dim, self.options.n_ctx, n_threads),
            "counts of attention": attention_layer.counts_bytes(n_threads),
        }

    def scratch_bytes(self) -> int:
        """See `Emitter.scratch_bytes`."""
        chooser = 0 if self._chooser is None else self._chooser.scratch_bytes()
        return max(attention_layer.scratch_bytes(self.block.head_dim, self.block.value_dim), chooser)

    def bytes_per_position(self) -> int:
        """See `MixerEmitter.bytes_per_position`."""
        if self.block.source is not None:
            return 0
        return sum(self._cache_bytes()) + (0 if self._chooser is None else self._chooser.row_bytes)

    def state_bytes(self) -> int:
        """See `MixerEmitter.state_bytes`."""
        return self.options.n_slots * self._length * self.bytes_per_position()

    def tables(self) -> Mapping[Hashable, int]:
        """See `MixerEmitter.tables`: of every position's turns float64 exist for a moment, beside the float32 that stay."""
        rope = self.block.rope
        return {} if rope is None else {turns_key(rope): self.options.n_ctx * len(rope.frequencies) * 8 * 5}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """Write what the attention kernels need to know of the layer, in the order of their offsets."""
        block, length = self.block, self._length
        n_slots = self.options.n_slots
        if self.source is None:
            self.cache = [arena.zeros(n_slots * length * n_bytes, "KV cache") for n_bytes in self._cache_bytes()]
        else:
            self.cache = self.source.cache
        keys, values = self.cache
        ways = [self._ways(block.q_norm, block.temperature), self._ways(block.k_norm, None), (Ways(block.clamp, block.v_norm),)]
        placed = [[each.place(weights, arena, self.options.n_ctx) for each in steps] for steps in ways]
        self._prepared = []
        own = [(block.q, "q", placed[0]), (block.k, "k", placed[1])]
        for linear, name, steps in own if self.source is None else own[:1]:
            parts = (linear.n_out // block.head_dim, 1)
            row = (buffers[name], up(linear.n_out, PANEL_ROWS))
            self._prepared += [(*row, n, linear.n_out // n, way) for n, way in zip(parts, steps[:-1], strict=False) if way]
        if self.source is not None and placed[0][-1]:  # what storing keys would do to queries
            self._prepared.append((buffers["q"], up(block.q.n_out, PANEL_ROWS), block.n_heads, block.head_dim, placed[0][-1]))
        self._out_ways = Ways(norm=block.out_norm).place(weights, arena, self.options.n_ctx)
        slopes = 0 if block.slopes is None else arena.keep(np.array(block.slopes, np.float32), "scratch")
        fields = [
            *(buffers[name] for name in ("q", "k", "v")),
            *(up(linear.n_out, PANEL_ROWS) for linear in (block.q, block.k, block.v)),
            *(block.head_dim, block.value_dim, block.n_heads, block.n_kv_heads),
            *(address(prepare_head), *(steps[-1] for steps in placed), keys, values, length),
            *(bits(block.scale), block.window or _NO_WINDOW, block.chunk or 0, buffers["mixed"]),
            *(buffers["parts of attention"], buffers["counts of attention"]),
            0 if block.sinks is None else weights.vector(block.sinks.weight, block.sinks.size),
            *(address(bend_scores) if self._bends_scores else 0, bits(block.softcap or 0.0), slopes),
            *(up(block.value_dim, LANES), *self._place_chooser(weights, buffers, arena)),
        ]
        self.layer = arena.keep(np.array(fields, np.int64), "scratch")

    def _place_chooser(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> tuple[int, ...]:
        """What kernels need to know of it: see `attention_layer.CHOSEN` and what follows it."""
        if self._chooser is None:
            return (0,) * 6
        self._chooser.place(weights, buffers, arena)
        return (*choice_fields(self.options.n_ctx, buffers), self._chooser.kept, self._chooser.row_bytes)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers = self.block, tape.buffers
        rows = tape.norm(block.norm)
        if block.embedded_norm is not None and (embedded := tape.space.embedded) is not None:
            rows = tape.side_by_side((embedded, block.embedded_norm), (rows, None))
        products = [(block.q, buffers["q"])]
        if self.source is None:
            products += [(block.k, buffers["k"]), (block.v, buffers["v"])]
        if block.gate is not None:
            products.append((block.gate, buffers["gate of attention"]))
        if self._chooser is not None:
            products += self._chooser.products(buffers)
        tape.multiply("queries, keys, values", rows, products)
        if self._chooser is not None:
            self._chooser.emit(tape)
        for rows_prepared in self._prepared:
            tape.prepare(*rows_prepared)
        if self.source is None:
            tape.add(Work("storing keys and values"), prepare_kernel(*self._types), self.layer)
        tape.add(self._work(), self._attend, self.layer)
        if block.gate is not None:
            places = (buffers["mixed"], block.o.n_in, buffers["gate of attention"], block.gate.n_out)
            tape.add(Work("gate of attention"), GATES[block.gate_kind], *places)
        if self._out_ways:
            tape.prepare(buffers["mixed"], block.o.n_in, 1, block.o.n_in, self._out_ways)
        tape.multiply("attention's output", Rows(buffers["mixed"], 0, block.o.n_in), ((block.o, tape.y),))
        tape.leave(block.post_norm)

    def moving(self, layers: np.ndarray, moves: np.ndarray) -> Sequence[int]:
        """See `MixerEmitter.moving`. The kernel is compiled when it is first used: most models never move anything."""
        kernel = address(move_kernel(*self._types))
        return (kernel, 1, layers.ctypes.data, len(layers), moves.ctypes.data, len(moves))

    def slot_memory(self, slot: int, n: int) -> Sequence[np.ndarray]:
        """See `MixerEmitter.slot_memory`: of every head keys, which lie in blocks of 16, and values."""
        if self.source is not None:
            return ()
        block, (type_k, type_v), (keys, values) = self.block, self._types, self.cache
        key, value = block.head_dim * BYTES[type_k], up(block.value_dim, LANES) // LANES * BYTES[type_v]
        views = []
        for head in range(slot * block.n_kv_heads, (slot + 1) * block.n_kv_heads):
            views.append(memory_at(keys + key * (self._length // LANES) * head, key * (up(n, LANES) // LANES)))
            views.append(memory_at(values + value * self._length * head, value * n))
        if self._chooser is not None:
            n_bytes = self._chooser.row_bytes
            views.append(memory_at(self._chooser.kept + slot * self._length * n_bytes, n * n_bytes))
        return views

    def _ways(self, norm: Norm | None, temperature: Temperature | None) -> tuple[Ways, ...]:
        """What is done to heads of queries or keys: last, what is done when they are stored; first, what comes before a norm.

        A norm of all heads together is the second step of three.
        """
        block = self.block
        if norm is None or not block.has_joint_norms:
            return (Ways(block.clamp, norm, block.rope, temperature, is_rope_first=block.is_rope_first),)
        before, after = (block.rope, None) if block.is_rope_first else (None, block.rope)
        return (Ways(block.clamp, rope=before), Ways(norm=norm), Ways(rope=after, temperature=temperature))

    def _work(self) -> Work:
        block = self.block
        widths = (block.head_dim, block.value_dim)
        n_bytes = sum(block.n_kv_heads * width * BYTES[kind] // LANES for width, kind in zip(widths, self._types, strict=True))
        return Work("attention", bytes_per_position=n_bytes, multiply_adds_per_position=block.n_heads * sum(widths))

    def _cache_bytes(self) -> tuple[int, int]:
        """Bytes of keys and of values per position."""
        block, (type_k, type_v) = self.block, self._types
        return (
            block.n_kv_heads * (block.head_dim * BYTES[type_k]) // LANES,
            block.n_kv_heads * (up(block.value_dim, LANES) // LANES * BYTES[type_v]),
        )


def _check_sparse(block: Attention) -> None:
    """Refuse what goes by positions or sizes that a list of cells does not have."""
    odd = [name for name in ("window", "chunk", "slopes", "source") if getattr(block, name) is not None]
    if odd or block.head_dim % BLOCK or block.value_dim % BLOCK:
        found = f"with {odd[0]}" if odd else f"of heads of {block.head_dim} and {block.value_dim} values"
        raise UnsupportedError(
            f"attention {found} to what an indexer chooses, expected no window or slopes, and heads of a multiple of {BLOCK} "
            "values; use backend reference"
        )
