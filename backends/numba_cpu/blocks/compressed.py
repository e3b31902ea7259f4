"""`CompressedAttention`: heads attend to one row of every token, and to one row of every block of tokens.

Rows lie in a slot's memory cell by cell; after those of tokens come pooled ones, by the cell of the last token of each block.
What tokens attend to is listed, see `kernels/pooling.py`, and `attention` reads it, as it reads latents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from augury.backends.numba_cpu.blocks.emitter import MixerEmitter
from augury.backends.numba_cpu.blocks.indexer import choice_buffers
from augury.backends.numba_cpu.blocks.latent import gathered, multiply_heads, quantise_heads
from augury.backends.numba_cpu.blocks.pooling import PoolChooser, Pooler, keep_record, list_fields
from augury.backends.numba_cpu.heads import Ways, turns_key
from augury.backends.numba_cpu.kernels import attention_layer, latent, pooling as kernels
from augury.backends.numba_cpu.kernels.attention import attend_kernel
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES
from augury.backends.numba_cpu.kernels.head import prepare_head, prepare_rows
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.latent import PART
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.memory import bits, memory_at, up
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import CompressedAttention
    from augury.types import ModelOptions

__all__ = ["CompressedAttentionEmitter"]

_BLOCK = 64  # positions that a slot's memory is padded to: at least what attention scores at once


class CompressedAttentionEmitter(MixerEmitter):
    """Keeps a row of every position, what is pooled, and pooled rows."""

    block: CompressedAttention

    def __init__(self, block: CompressedAttention, options: ModelOptions) -> None:
        super().__init__(block, options)
        self._type, self._length, self._size = options.cache_type_k, up(options.n_ctx, _BLOCK), block.head_dim
        if self._size % PART:
            raise UnsupportedError(
                f"heads of {self._size} values in tensor {block.kv.weight!r}, expected a multiple of {PART}; "
                "use backend reference"
            )
        self._row_bytes = self._size // LANES * BYTES[self._type]
        self._pooler = None if block.pooling is None else Pooler(block.pooling, options, self._length, "of attention")
        self._chooser = None if block.indexer is None else PoolChooser(block.indexer, options, self._length)
        self._attend = attend_kernel(self._type, self._type, is_latent=True, is_sparse=self._pooler is not None)
        self._n_cells = options.n_ctx + (0 if block.pooling is None else options.n_ctx // block.pooling.size)
        self._group_dim = up(block.groups.n_out, PANEL_ROWS)  # whole panels are written

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        own = (self._attend, kernels.store_kernel(self._type), prepare_head, prepare_rows)
        heads = (latent.multiply_heads, latent.quantize_heads, latent.gather_parts)
        pooler = () if self._pooler is None else (*self._pooler.kernels(self._type), kernels.list_cells)
        return (*own, *heads, *pooler, *(() if self._chooser is None else self._chooser.kernels()))

    def buffers(self, n_threads: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block, n_mixed = self.block, self.block.n_heads * self._size
        widths = {"down": block.q.n_in, "q": block.q.n_out, "kept": self._size, "mixed": n_mixed}
        widths |= {"values": block.groups.n * self._group_dim, "gathered": max(block.o.n_in, block.q.n_in)}
        needed = {name: row_bytes(width) for name, width in widths.items()}
        needed["parts of attention"] = attention_layer.parts_bytes(self._size, self._n_cells, n_threads)
        needed["counts of attention"] = attention_layer.counts_bytes(n_threads)
        if self._pooler is not None:
            needed |= self._pooler.buffers()
        if self._chooser is not None:
            needed |= self._chooser.buffers()
        return needed if self._pooler is None else {**needed, **choice_buffers(self._n_cells)}

    def scratch_bytes(self) -> int:
        """See `Emitter.scratch_bytes`."""
        parts = [each.scratch_bytes() for each in (self._pooler, self._chooser) if each is not None]
        return max(attention_layer.scratch_bytes(self._size, self._size), 4 * MAX_TOKENS * self.block.groups.n_in, *parts, 256)

    def bytes_per_position(self) -> int:
        """See `MixerEmitter.bytes_per_position`."""
        others = sum(each.row_bytes for each in (self._pooler, self._chooser) if each is not None)
        return self._row_bytes * (1 if self._pooler is None else 2) + others

    def state_bytes(self) -> int:
        """See `MixerEmitter.state_bytes`."""
        return self.options.n_slots * self._length * self.bytes_per_position()

    def tables(self) -> Mapping[Hashable, int]:
        """See `AttentionEmitter.tables`: of turns, there and back."""
        rope, n_bytes = self.block.rope, self.options.n_ctx * len(self.block.rope.frequencies) * 8 * 5
        return {turns_key(rope): n_bytes, turns_key(attrs.evolve(rope, frequencies=-rope.frequencies)): n_bytes}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """Write what the kernels need to know of the layer."""
        block, n_ctx, n_slots, self._arena = self.block, self.options.n_ctx, self.options.n_slots, arena
        n_rows = self._length * (1 if self._pooler is None else 2)
        self._rows = arena.zeros(n_slots * n_rows * self._row_bytes, "KV cache")
        back = attrs.evolve(block.rope, frequencies=-block.rope.frequencies)
        ways = (Ways(norm=block.q_norm), Ways(norm=block.head_norm, rope=block.rope), Ways(rope=back))
        self._down_ways, self._q_ways, self._back_ways = (each.place(weights, arena, n_ctx) for each in ways)
        fields = {
            attention_layer.Q: buffers["q"],
            attention_layer.LDQ: up(block.q.n_out, PANEL_ROWS),
            attention_layer.D: self._size,
            attention_layer.DV: self._size,
            attention_layer.VALUE_ROW: self._size,
            attention_layer.H: block.n_heads,
            attention_layer.G: 1,
            attention_layer.KEYS: self._rows,
            attention_layer.VALUES: self._rows,
            attention_layer.T: n_rows,
            attention_layer.SCALE: bits(block.scale),
            attention_layer.WINDOW: block.window if self._pooler is None else 1 << 40,  # a list has what is seen alone
            attention_layer.OUT: buffers["mixed"],
            attention_layer.PARTS: buffers["parts of attention"],
            attention_layer.COUNTS: buffers["counts of attention"],
            attention_layer.SINKS: weights.vector(block.sinks.weight, block.sinks.size),
            kernels.ROWS: buffers["kept"],
            kernels.LD_ROWS: up(self._size, PANEL_ROWS),
            kernels.WAYS: Ways(norm=block.kv_norm, rope=block.rope).place(weights, arena, n_ctx),
            kernels.N_CELLS: self._length,
        }
        if self._pooler is not None:
            fields |= self._place_pooler(self._pooler, weights, buffers, arena)
        record = np.zeros(kernels.TO_POOL_BYTES // 8 + 1, np.int64)
        record[[offset // 8 for offset in fields]] = list(fields.values())
        self.layer = arena.keep(record, "scratch")

    def _place_pooler(self, pooler: Pooler, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> dict[int, int]:
        """Place what pools and what chooses; returns the fields of the layer that say where."""
        lists = list_fields(self._n_cells, buffers)
        lists |= {kernels.WINDOW: self.block.window, kernels.FIRST_LISTED: self._length, kernels.N_LISTS: 1}
        pooler.kept = arena.zeros(self.options.n_slots * self._length * pooler.row_bytes, "KV cache")
        pooled = (self._rows, self._row_bytes, 2 * self._length, self._length)
        self._pooling = keep_record(pooler.fields(weights, buffers, arena, pooled) | lists, arena)
        chosen = {attention_layer.CHOSEN + 8 * i: lists[kernels.CHOSEN + 8 * i] for i in range(4)}
        kept = {kernels.FIRST_POOLED: self._length, kernels.TO_POOL: pooler.kept, kernels.TO_POOL_BYTES: pooler.row_bytes}
        if self._chooser is not None:
            self._chooser.place_kept(weights, buffers, arena)
            self._chooser.complete(lists, arena)
            kept |= {attention_layer.COMPARED: self._chooser.kept, attention_layer.COMPARED_BYTES: self._chooser.row_bytes}
        return {**chosen, **kept}

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, size = self.block, tape.buffers, self._size
        rows, queries = tape.norm(block.norm), [(block.q, buffers["q"])]
        products = [(block.q_down, buffers["down"]), (block.kv, buffers["kept"])]
        if self._pooler is not None:
            products += self._pooler.products(buffers)
        if self._chooser is not None:
            query, *others = self._chooser.products(buffers)
            queries.append(query)
            products += others
        tape.multiply("queries, rows", rows, products)
        n_low, ld = block.q.n_in, up(block.q.n_out, PANEL_ROWS)
        tape.prepare(buffers["down"], up(n_low, PANEL_ROWS), 1, n_low, self._down_ways)
        tape.multiply("queries", Rows(gathered(tape, "down", 1, n_low), 0, n_low), queries)
        tape.prepare(buffers["q"], ld, block.n_heads, size, self._q_ways)
        tape.add(Work("storing rows"), kernels.store_kernel(self._type), self.layer, address(prepare_head))
        if self._pooler is not None:
            self._pooler.emit(tape, self._pooling, self._type)
            if self._chooser is None:
                tape.add(Work("choosing"), kernels.list_cells, self._pooling)
            else:
                self._chooser.emit(tape)
        work = Work("attention", bytes_per_position=self._row_bytes, multiply_adds_per_position=2 * block.n_heads * size)
        tape.add(work, self._attend, self.layer)
        n_mixed = block.n_heads * size
        tape.prepare(buffers["mixed"], n_mixed, block.n_heads, size, self._back_ways)
        mixed, values = (buffers["mixed"], n_mixed, block.groups.n_in), (buffers["values"], self._group_dim)
        multiply_heads(tape, block.groups, quantise_heads(tape, self._arena, block.groups, mixed, values))
        made = gathered(tape, "values", block.groups.n, block.groups.n_out)
        tape.multiply("attention's output", Rows(made, 0, block.o.n_in), ((block.o, tape.y),))
        tape.leave(None)

    def moving(self, layers: np.ndarray, moves: np.ndarray) -> Sequence[int]:
        """See `MixerEmitter.moving`."""
        return (address(kernels.move_kernel(self._type)), 1, layers.ctypes.data, len(layers), moves.ctypes.data, len(moves))

    def slot_memory(self, slot: int, n: int) -> Sequence[np.ndarray]:
        """See `MixerEmitter.slot_memory`."""
        n_rows, size = self._length * (1 if self._pooler is None else 2), self._row_bytes
        starts = [slot * n_rows, *([] if self._pooler is None else [slot * n_rows + self._length])]
        views = [memory_at(self._rows + start * size, n * size) for start in starts]
        kept = [(each.kept, each.row_bytes) for each in (self._pooler, self._chooser) if each is not None]
        return [*views, *(memory_at(place + slot * self._length * size, n * size) for place, size in kept)]
