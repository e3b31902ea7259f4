"""`LatentAttention`: all heads attend to the same rows, of which one is kept of every position.

Its kernels: `latent` has the products of heads and what stores rows, `attention` reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.attention import GATES
from augury.backends.numba_cpu.blocks.emitter import MixerEmitter
from augury.backends.numba_cpu.blocks.indexer import choice_buffers, choice_fields
from augury.backends.numba_cpu.blocks.pooling import chooser_of
from augury.backends.numba_cpu.heads import Ways, turns_key
from augury.backends.numba_cpu.kernels import attention_layer, latent
from augury.backends.numba_cpu.kernels.attention import attend_kernel
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES
from augury.backends.numba_cpu.kernels.head import prepare_head, prepare_rows
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.latent import PART
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS, activation_bytes
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.memory import bits, memory_at, up
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes
from augury.backends.numba_cpu.weights import panels_of
from augury.blocks import GateKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import LatentAttention, Matrices
    from augury.types import ModelOptions

__all__ = ["LatentAttentionEmitter", "gathered", "multiply_heads", "quantise_heads"]

_NO_WINDOW = 1 << 40
_BLOCK = 64  # positions that a slot's memory is padded to: at least what attention scores at once


class LatentAttentionEmitter(MixerEmitter):
    """Keeps a row of every position, in cells that `Batch` names."""

    block: LatentAttention

    def __init__(self, block: LatentAttention, options: ModelOptions) -> None:
        super().__init__(block, options)
        self._type = options.cache_type_k
        self._length = up(options.n_ctx, _BLOCK)
        self._padded = up(block.latent_dim, PART)
        self._turned = block.cached_dim - block.latent_dim
        self._row = self._padded + up(self._turned, PART)
        self._row_bytes = self._row // LANES * BYTES[self._type]
        self._is_sparse = block.indexer is not None or block.reuses_choice
        self._attend = attend_kernel(self._type, self._type, is_latent=True, is_sparse=self._is_sparse)
        self._chooser = chooser_of(block.indexer, options, self._length)
        self._value_dim = up(block.values.n_out, PANEL_ROWS)  # whole panels are written

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        own = (self._attend, latent.prepare_kernel(self._type), prepare_head, prepare_rows)
        gate = () if self.block.gate is None else (GATES[GateKind.SIGMOID],)
        chooser = () if self._chooser is None else self._chooser.kernels()
        return (*own, latent.multiply_heads, latent.quantize_heads, latent.gather_parts, *gate, *chooser)

    def buffers(self, n_threads: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block = self.block
        widths = {"q": block.q.n_out, "kept": block.kv.n_out, "absorbed queries": block.n_heads * self._row}
        widths |= {"mixed": block.n_heads * max(self._padded, self._value_dim), "values": block.n_heads * self._value_dim}
        widths |= {"gathered": max(block.o.n_in, block.q.n_in), "down": block.q.n_in}
        widths |= {"gate of attention": 0 if block.gate is None else block.gate.n_out}
        chosen = {} if not self._is_sparse else choice_buffers(self.options.n_ctx)
        compared = {} if self._chooser is None else self._chooser.buffers()
        return (
            {**chosen, **compared}
            | {name: row_bytes(width) for name, width in widths.items()}
            | {
                "parts of attention": attention_layer.parts_bytes(self._padded, self.options.n_ctx, n_threads),
                "counts of attention": attention_layer.counts_bytes(n_threads),
            }
        )

    def scratch_bytes(self) -> int:
        """See `Emitter.scratch_bytes`: of attention, of rows that are quantised, or of a row that is stored."""
        gathered = 4 * MAX_TOKENS * max(self.block.keys.n_in, self.block.values.n_in)
        chooser = 0 if self._chooser is None else self._chooser.scratch_bytes()
        return max(attention_layer.scratch_bytes(self._row, self._padded), gathered, 4 * self._row + 256, chooser)

    def bytes_per_position(self) -> int:
        """See `MixerEmitter.bytes_per_position`."""
        return self._row_bytes + (0 if self._chooser is None else self._chooser.row_bytes)

    def state_bytes(self) -> int:
        """See `MixerEmitter.state_bytes`."""
        return self.options.n_slots * self._length * self.bytes_per_position()

    def tables(self) -> Mapping[Hashable, int]:
        """See `AttentionEmitter.tables`."""
        rope = self.block.rope
        return {} if rope is None else {turns_key(rope): self.options.n_ctx * len(rope.frequencies) * 8 * 5}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """Write what the kernels need to know of the layer."""
        block, n_ctx, self._arena = self.block, self.options.n_ctx, arena
        self._rows = arena.zeros(self.options.n_slots * self._length * self._row_bytes, "KV cache")
        ways = (Ways(norm=block.kv_norm), Ways(rope=block.rope), Ways(norm=block.turned_norm, rope=block.rope))
        norm, turn, turn_kept = (each.place(weights, arena, n_ctx) for each in ways)
        self._q_ways = Ways(norm=block.q_norm).place(weights, arena, n_ctx)
        self._sharpening = Ways(temperature=block.temperature).place(weights, arena, n_ctx)
        if self._chooser is not None:
            self._chooser.place(weights, buffers, arena)
        fields = {
            attention_layer.Q: buffers["absorbed queries"],
            attention_layer.LDQ: block.n_heads * self._row,
            attention_layer.D: self._row,
            attention_layer.DV: self._padded,
            attention_layer.VALUE_ROW: self._row,
            attention_layer.H: block.n_heads,
            attention_layer.G: 1,
            attention_layer.PREPARE_HEAD: address(prepare_head),
            attention_layer.KEYS: self._rows,
            attention_layer.VALUES: self._rows,
            attention_layer.T: self._length,
            attention_layer.SCALE: bits(block.scale),
            attention_layer.WINDOW: block.window or _NO_WINDOW,
            attention_layer.OUT: buffers["mixed"],
            attention_layer.SINKS: 0 if block.sinks is None else weights.vector(block.sinks.weight, block.sinks.size),
            attention_layer.PARTS: buffers["parts of attention"],
            attention_layer.COUNTS: buffers["counts of attention"],
            latent.HEADS: buffers["q"],
            latent.LDH: up(block.q.n_out, PANEL_ROWS),
            latent.HEAD_DIM: block.q.n_out // block.n_heads,
            latent.PLAIN: block.keys.n_in,
            latent.KEPT: buffers["kept"],
            latent.LDK: up(block.kv.n_out, PANEL_ROWS),
            latent.LATENT: block.latent_dim,
            latent.PADDED: self._padded,
            latent.TURNED: self._turned,
            latent.NORM: norm,
            latent.TURN: turn,
            latent.TURN_KEPT: turn_kept,
            attention_layer.COMPARED: 0 if self._chooser is None else self._chooser.kept,
            attention_layer.COMPARED_BYTES: 0 if self._chooser is None else self._chooser.row_bytes,
        }
        if self._is_sparse:
            fields |= {
                attention_layer.CHOSEN + 8 * i: field for i, field in enumerate(choice_fields(self.options.n_ctx, buffers))
            }
        record = np.zeros(latent.TURN_KEPT // 8 + 1, np.int64)
        record[[offset // 8 for offset in fields]] = list(fields.values())
        self.layer = arena.keep(record, "scratch")

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, n_heads = self.block, tape.buffers, self.block.n_heads
        rows, products = tape.norm(block.norm), [(block.kv, buffers["kept"])]
        if block.gate is not None:
            products.append((block.gate, buffers["gate of attention"]))
        queries = [(block.q, buffers["q"])]
        if self._chooser is not None:
            query, *others = self._chooser.products(buffers)
            queries.append(query)
            products += others
        if block.q_down is None:
            tape.multiply("queries, latents", rows, (*queries, *products))
        else:
            tape.multiply("queries, latents", rows, ((block.q_down, buffers["down"]), *products))
            size = block.q_down.n_out
            if self._q_ways:
                tape.prepare(buffers["down"], up(size, PANEL_ROWS), 1, size, self._q_ways)
            down = gathered(tape, "down", 1, size)
            tape.multiply("queries", Rows(down, 0, size), queries)
        if self._chooser is not None:
            self._chooser.emit(tape)
        head_dim, ld = block.q.n_out // n_heads, up(block.q.n_out, PANEL_ROWS)
        if self._sharpening:
            tape.prepare(buffers["q"], ld, n_heads, head_dim, self._sharpening)
        asked = (buffers["q"], ld, head_dim)
        keys = quantise_heads(tape, self._arena, block.keys, asked, (buffers["absorbed queries"], self._row))
        # without a barrier: the next record reads nothing of this one, or only what the same thread wrote
        tape.add(Work("storing latents"), latent.prepare_kernel(self._type), self.layer, is_private=True)
        multiply_heads(tape, block.keys, keys)
        work = Work(
            "attention",
            bytes_per_position=self._row_bytes,
            multiply_adds_per_position=n_heads * (self._row + self._padded),
        )
        tape.add(work, self._attend, self.layer)
        mixed = (buffers["mixed"], n_heads * self._padded, self._padded)
        multiply_heads(
            tape, block.values, quantise_heads(tape, self._arena, block.values, mixed, (buffers["values"], self._value_dim))
        )
        values = gathered(tape, "values", n_heads, block.values.n_out)
        if block.gate is not None:
            places = (values, block.o.n_in, buffers["gate of attention"], block.gate.n_out)
            tape.add(Work("gate of attention"), GATES[GateKind.SIGMOID], *places)
        tape.multiply("attention's output", Rows(values, 0, block.o.n_in), ((block.o, tape.y),))
        tape.leave(None)

    def moving(self, layers: np.ndarray, moves: np.ndarray) -> Sequence[int]:
        """See `MixerEmitter.moving`."""
        kernel = address(latent.move_kernel(self._type))
        return (kernel, 1, layers.ctypes.data, len(layers), moves.ctypes.data, len(moves))

    def slot_memory(self, slot: int, n: int) -> Sequence[np.ndarray]:
        """See `MixerEmitter.slot_memory`."""
        kept = [(self._rows, self._row_bytes)]
        if self._chooser is not None:
            kept.append((self._chooser.kept, self._chooser.row_bytes))
        return [memory_at(place + slot * self._length * n_bytes, n * n_bytes) for place, n_bytes in kept]


def quantise_heads(tape: Tape, arena: Arena, part: Matrices, x: tuple[int, int, int], y: tuple[int, int]) -> int:
    """Write what products of heads need first; returns what the products themselves need to know.

    Args:
        tape: To write on.
        arena: Where what they need to know is kept.
        part: A matrix for each head.
        x: Where heads begin, floats of a row, of a head.
        y: Where products go, floats of one in whole panels.
    """
    weights, private, (to, head_y) = tape.weights, tape.space.is_private, y
    matrix, (first, n_stored) = weights.matrix(part), panels_of(part)
    activation = weights.activation(part)
    operand = tape.space.operand(activation, part.n_in, part.n)
    table = [
        *(weights.address(matrix.kind, "matmul"), matrix.address, part.n_in, up(part.n_out, PANEL_ROWS) // PANEL_ROWS),
        *(n_stored, first, operand.address, operand.stride, activation_bytes(activation, 1, part.n_in)),
        *(to, part.n * head_y, head_y, part.n),
    ]
    place = arena.keep(np.array(table, np.int64), "scratch")
    quantize = (place, weights.address(matrix.kind, "quantize"), *x, int(private))
    tape.add(Work("quantising activations"), latent.quantize_heads, *quantize, is_private=private)
    return place


def multiply_heads(tape: Tape, part: Matrices, place: int) -> None:
    """Write the products of heads with their matrices."""
    matrix = tape.weights.matrix(part)
    n_bytes = matrix.n_bytes * (up(part.n_out, PANEL_ROWS) // PANEL_ROWS) // panels_of(part)[1]
    tape.add(Work(f"heads ({matrix.kind})", n_bytes, part.n * part.n_out * part.n_in), latent.multiply_heads, place)


def gathered(tape: Tape, name: str, n_parts: int, size: int) -> int:
    """Rows of products without the rest of their panels: where they are, or are put."""
    rows, part = tape.buffers[name], up(size, PANEL_ROWS)
    if part == size:
        return rows
    to = tape.buffers["gathered"]
    tape.add(Work("gathering rows"), latent.gather_parts, rows, n_parts * part, n_parts, part, size, to)
    return to
