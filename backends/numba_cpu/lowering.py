"""A plan → tapes: records for the threads, with the addresses of weights and buffers filled in.

Two tapes do the same: one for passes of a token or two, where every thread norms and quantises for itself, and one for
longer passes, where the threads divide that work, too (see `kernels/step.py`). They share weights, KV cache and buffers.
A pass through the first layers alone is a shorter tape of the same records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import field, frozen

from augury.backends.numba_cpu import kernel_pass
from augury.backends.numba_cpu.kernels import attention_layer, step, team
from augury.backends.numba_cpu.kernels.attention import attend_kernel
from augury.backends.numba_cpu.kernels.attention_store import move_kernel, prepare_kernel
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.matmul import SCRATCH_BYTES
from augury.backends.numba_cpu.tape import GATED, RECORD, Buffers, Writer, bits
from augury.blocks import FeedForward

if TYPE_CHECKING:
    from augury.backends.numba_cpu.loading import Weights
    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.profile import Work
    from augury.blocks import Attention, ModelPlan, Rope
    from augury.types import ModelOptions

_NO_WINDOW = 1 << 40
_OVERREAD = 16  # floats that a kernel may read (never use) behind a table
_BLOCK = 64  # positions that a slot's memory is padded to: at least what attention scores at once


@frozen(eq=False)
class Lowered:
    """A model's tapes.

    Attributes:
        layers: (n_layers,) int64, addresses of what the attention kernels know of their layers.
        cache_types: of keys and values.
        outputs: the entries of the output matrix, where the address of the logits is to be put before a pass.
        logits_width: floats from one row of logits to the next.
    """

    layers: np.ndarray = field(repr=False)
    cache_types: tuple[str, str]
    outputs: tuple[np.ndarray, ...] = field(repr=False)
    logits_width: int
    _writers: tuple[Writer, ...] = field(repr=False)
    _tapes: dict[int | None, tuple[np.ndarray, ...]] = field(factory=dict, init=False, repr=False)

    def tapes(self, n_layers: int | None) -> tuple[np.ndarray, ...]:
        """The tapes of all layers, or of the first `n_layers` and the output, written when they are first asked for.

        Returns:
            (n_records, 16) int64, for passes of up to `tape.PRIVATE_TOKENS` tokens, and the same for longer ones.
        """
        if n_layers not in self._tapes:
            self._tapes[n_layers] = tuple(writer.tape(n_layers) for writer in self._writers)
        return self._tapes[n_layers]

    def works(self, n_layers: int | None) -> tuple[list[Work], ...]:
        """What the records of these tapes do."""
        return tuple(writer.works(n_layers) for writer in self._writers)

    def moving(self, moves: np.ndarray) -> np.ndarray:
        """A tape that copies states; `moves` (m, 3) int64 of slot, from, to, is to live as long."""
        kernel = address(move_kernel(*self.cache_types))  # compiled when it is first used: most models never move anything
        operands = [self.layers.ctypes.data, len(self.layers), moves.ctypes.data, len(moves)]
        return np.array([[kernel, 1, *operands, *[0] * (RECORD - 2 - len(operands))]], np.int64)


def kernels(plan: ModelPlan, options: ModelOptions) -> list[Any]:
    """The kernels of passes, beside those of the weights; first what takes longest to compile."""
    gated = {GATED[block.activation] for block in plan.blocks() if isinstance(block, FeedForward)}
    types = (options.cache_type_k, options.cache_type_v)
    heads = [attend_kernel(*types), prepare_kernel(*types)]
    steps = [step.embed, step.add_norm, step.quantize, step.multiply, *gated]
    return [*heads, team.lead, team.follow, team.dismiss, *steps, *kernel_pass.KERNELS]


def scratch_bytes(plan: ModelPlan) -> int:
    """Scratch memory that a thread needs, in whole cache lines."""
    needed = max(SCRATCH_BYTES, *(attention_layer.scratch_bytes(block.head_dim, block.value_dim) for block in _mixers(plan)))
    return _up(needed, 64) + 64


def bytes_per_position(plan: ModelPlan, options: ModelOptions) -> int:
    """What one position of one slot takes in the KV cache."""
    return sum(sum(_cache_bytes(block, options)) for block in _mixers(plan))


def state_bytes(plan: ModelPlan, options: ModelOptions) -> int:
    """What all slots' KV caches and the tables of positions take."""
    ropes = {(block.rope.frequencies.tobytes(), block.rope.magnitude): len(block.rope.frequencies) for block in _mixers(plan)}
    # of a table float64 angles, sines and cosines exist for a moment, beside the float32 that stay
    tables = options.n_ctx * sum(ropes.values()) * 8 * 5
    return options.n_slots * _up(options.n_ctx, _BLOCK) * bytes_per_position(plan, options) + tables


def lower(plan: ModelPlan, weights: Weights, options: ModelOptions, n_threads: int, arena: Arena) -> Lowered:
    """Write the tapes of a plan whose weights are loaded."""
    types = (options.cache_type_k, options.cache_type_v)
    tables: dict[tuple[bytes, float], int] = {}
    buffers = Buffers.make(plan, arena)
    value_dim = max(block.value_dim for block in _mixers(plan))
    parts = (
        arena.zeros(attention_layer.parts_bytes(value_dim, options.n_ctx, n_threads), "scratch"),
        arena.zeros(attention_layer.counts_bytes(n_threads), "scratch"),
    )
    layers = [_layer(block, weights, options, buffers, tables, arena, parts) for block in _mixers(plan)]
    writers = tuple(Writer(plan, weights, types, layers, buffers, arena, n) for n in (n_threads, 0))
    outputs = tuple(writer.write() for writer in writers)
    return Lowered(np.array(layers, np.int64), types, outputs, _up(plan.n_vocab, 32), writers)


def _layer(
    block: Attention,
    weights: Weights,
    options: ModelOptions,
    buffers: Buffers,
    tables: dict[tuple[bytes, float], int],
    arena: Arena,
    parts: tuple[int, int],
) -> int:
    """Write what the attention kernels need to know of a layer, in the order of their offsets; returns its address."""
    length = _up(options.n_ctx, _BLOCK)
    keys, values = (arena.zeros(options.n_slots * length * n_bytes, "KV cache") for n_bytes in _cache_bytes(block, options))
    (q_norm, q_eps), (k_norm, k_eps) = weights.norm(block.q_norm), weights.norm(block.k_norm)
    fields = [
        *(buffers.q, buffers.k, buffers.v),
        *(_up(linear.n_out, 32) for linear in (block.q, block.k, block.v)),
        *(block.head_dim, block.value_dim, block.n_heads, block.n_kv_heads),
        *(q_norm, bits(q_eps), k_norm, bits(k_eps)),
        *(_table(block.rope, options.n_ctx, tables, arena), len(block.rope.frequencies), int(block.rope.is_interleaved)),
        *(keys, values, length, bits(block.scale), block.window or _NO_WINDOW, buffers.mixed),
        *parts,
    ]
    return arena.keep(np.array(fields, np.int64), "scratch")


def _cache_bytes(block: Attention, options: ModelOptions) -> tuple[int, int]:
    """Bytes of keys and of values per position."""
    return (
        block.n_kv_heads * (block.head_dim * BYTES[options.cache_type_k]) // LANES,
        block.n_kv_heads * (_up(block.value_dim, LANES) // LANES * BYTES[options.cache_type_v]),
    )


def _table(rope: Rope, n_ctx: int, tables: dict[tuple[bytes, float], int], arena: Arena) -> int:
    """The address of the cosines and sines of every position, (n_ctx, 2, pairs) float32; layers share it."""
    key = (rope.frequencies.tobytes(), rope.magnitude)
    if key not in tables:
        angles = np.arange(n_ctx, dtype=np.float64)[:, None] * rope.frequencies
        turns = np.stack([np.cos(angles), np.sin(angles)], axis=1) * rope.magnitude
        turns = np.append(turns, np.zeros(_OVERREAD))
        tables[key] = arena.keep(turns.astype(np.float32), "rope tables")
    return tables[key]


def _mixers(plan: ModelPlan) -> list[Attention]:
    return [layer.mixer for layer in plan.layers]


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
