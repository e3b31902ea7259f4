"""What blocks with a state per sequence have in common: where their states lie, and what is kept aside of drafted tokens."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from augury.backends.numba_cpu.blocks.emitter import MixerEmitter
from augury.backends.numba_cpu.kernels import convolution, recurrence, recurrent_ends
from augury.backends.numba_cpu.memory import memory_at, up
from augury.backends.numba_cpu.profile import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import Block, Convolution, LinearRecurrence, SequenceState
    from augury.types import ModelOptions

__all__ = ["FedRow", "PlacedRecurrence", "PlacedState", "RecurrentEmitter", "convolve", "place_convolution", "place_taps"]


@frozen
class PlacedState:
    """Addresses of a state of all slots: as it is, as it was saved, and what was kept aside to be taken in.

    Of a matrix, what is added to its columns lies apart from what is the same for all of them.
    """

    values: int
    saved: int
    aside: int
    added: int
    n_bytes: int  # of one slot


class RecurrentEmitter(MixerEmitter):
    """A block that keeps states of sequences, of float32, in rows of whole vectors."""

    def __init__(self, block: Block, options: ModelOptions) -> None:
        super().__init__(block, options)
        self.n_aside = max(options.draft_max, 1)
        self._placed: list[PlacedState] = []

    def bytes_per_sequence(self) -> int:
        """See `MixerEmitter.bytes_per_sequence`."""
        return sum(self._sizes())

    def state_bytes(self) -> int:
        """See `MixerEmitter.state_bytes`: of every slot the states, as they are and as they were saved, and what is aside."""
        aside = sum(sum(self._aside(state)) for state in self.block.states())
        return self.options.n_slots * (2 * self.bytes_per_sequence() + self.n_aside * aside)

    def place_states(self, arena: Arena) -> Sequence[PlacedState]:
        """Allocate the block's states, in their order."""
        n_slots = self.options.n_slots
        for state, n_bytes in zip(self.block.states(), self._sizes(), strict=True):
            values, saved = (arena.zeros(n_slots * n_bytes, purpose) for purpose in ("states", "saved states"))
            aside, added = (
                arena.zeros(n_slots * self.n_aside * n, "drafted tokens kept aside") if n else 0 for n in self._aside(state)
            )
            self._placed.append(PlacedState(values, saved, aside, added, n_bytes))
        return self._placed

    def slot_memory(self, slot: int, n: int) -> Sequence[np.ndarray]:  # noqa: ARG002 - as of blocks that keep positions
        """See `MixerEmitter.slot_memory`."""
        return [memory_at(state.values + slot * state.n_bytes, state.n_bytes) for state in self._placed]

    def scratch_bytes(self) -> int:
        """See `Emitter.scratch_bytes`."""
        sizes = [0]
        for state in self.block.states():
            if len(state.shape) == 2:  # a convolution's inputs
                sizes.append(convolution.scratch_bytes(state.shape[0] + 1, self.n_aside))
            else:
                sizes.append(recurrence.scratch_bytes(state.shape[1], self.n_aside))
        return max(sizes)

    @abstractmethod
    def emit_states(self, tape: Tape) -> None:
        """Write the records alone that bring states up to date, for a pass over no tokens."""

    @staticmethod
    def _aside(state: SequenceState) -> tuple[int, int]:
        """Bytes that are kept aside of a token: what is the same for all columns of a matrix, and what is added to each."""
        if len(state.shape) == 2:  # a convolution's inputs
            return 4 * up(state.n_fed, 16), 0
        n_heads, _, width = state.shape
        return 4 * up(state.n_fed - n_heads * width, 16), 4 * n_heads * up(width, recurrence.BLOCK_COLUMNS)

    def _sizes(self) -> list[int]:
        return [self._size(state) for state in self.block.states()]

    @staticmethod
    def _size(state: SequenceState) -> int:
        if len(state.shape) == 2:  # a convolution's inputs
            return 4 * state.shape[0] * up(state.shape[1], 16)
        n_heads, key_dim, width = state.shape
        return n_heads * -(-width // recurrence.BLOCK_COLUMNS) * recurrence.block_bytes(key_dim)


def place_convolution(
    conv: Convolution,
    state: PlacedState,
    n_aside: int,
    weights: Weights,
    arena: Arena,
    *,
    x: tuple[int, int],
    y: tuple[int, int],
    gates: tuple[int, int] = (0, 0),
    has_silu: bool = False,
) -> int:
    """Write what `convolve` needs to know of a layer, in the order of its offsets.

    Args:
        conv: The part of the plan.
        state: Of its inputs.
        n_aside: Drafted tokens of a slot that there is room for.
        weights: Of the plan.
        arena: Where the record is kept.
        x: Address of the inputs' rows, and how many floats they are apart.
        y: Likewise of the outputs.
        gates: Addresses of what is multiplied with inputs and outputs, in rows as far apart as the inputs; 0: nothing.
        has_silu: Whether outputs go through SiLU.

    Returns:
        The record's address.
    """
    taps = conv.taps(weights.values(conv.weight, conv.shapes[conv.weight]))
    bias = 0 if conv.bias is None else weights.vector(conv.bias, conv.n_channels)
    return place_taps(taps, state, n_aside, arena, x=x, y=y, gates=gates, bias=bias, has_silu=has_silu)


def place_taps(
    taps: np.ndarray,
    state: PlacedState,
    n_aside: int,
    arena: Arena,
    *,
    x: tuple[int, int],
    y: tuple[int, int],
    gates: tuple[int, int] = (0, 0),
    bias: int = 0,
    has_silu: bool = False,
) -> int:
    """Likewise, of taps (inputs, channels) and the address of a bias."""
    size, n_channels = taps.shape
    width = up(n_channels, 16)
    padded = np.zeros((size, width), np.float32)
    padded[:, :n_channels] = taps
    fields = [
        *(*x, *gates, *y, n_channels, width, size),
        *(arena.keep(padded, "weights"), bias, int(has_silu), state.values, state.saved, state.aside, n_aside),
    ]
    return arena.keep(np.array(fields, np.int64), "scratch")


def convolve(tape: Tape, layer: int) -> None:
    """Write the record of a convolution."""
    tape.add(Work("convolution"), convolution.convolve, layer)


@frozen
class FedRow:
    """Where in a row of floats lies what a token feeds a recurrence, and what reads it."""

    address: int
    stride: int  # floats from one row to the next
    query: int
    key: int
    value: int
    decay: int
    beta: int
    decayed: int = 0  # keys times decays, where these are by key


class PlacedRecurrence:
    """A linear recurrence with its place in memory, and what comes before and after it.

    Attributes:
        layer: The address of what its kernels know of it.
        row: Where what it is fed lies.
    """

    def __init__(
        self, block: LinearRecurrence, state: PlacedState, n_aside: int, arena: Arena, row: FedRow, y: int, table: int = 0
    ) -> None:
        """Write the record, in the order of the kernels' offsets.

        Args:
            block: The part of the plan.
            state: Of its matrices.
            n_aside: Drafted tokens of a slot that there is room for.
            arena: Where records are kept.
            row: What it is fed.
            y: Address of the outputs' rows, which lie close together.
            table: Address of what makes decays by channel.
        """
        self.row = row
        self._kernel = _kernel(block)
        self._arena = arena
        self._decays = 0
        self._y, self._size = y, block.n_heads * block.value_dim
        step, n_steps = (row.beta, block.value_dim) if block.is_by_channel else (row.decay, block.n_heads)
        n_steps *= block.key_dim if block.is_by_key else 1
        fields = [
            *(row.address, row.stride, y, self._size, block.n_heads, block.n_key_heads, block.key_dim, block.value_dim),
            *(int(block.is_tiled), *(4 * at for at in (row.query, row.key, row.value, step, row.beta)), n_steps),
            *(4 * up(block.state.n_fed - self._size, 16), state.values, state.saved, state.aside, state.added, n_aside, table),
            4 * row.decayed,
        ]
        self.layer = arena.keep(np.array(fields, np.int64), "scratch")

    def place_decays(self, size: int, t: tuple[int, int], b: tuple[int, int] = (0, 0), *, dt: int = 0, a: int = 0) -> None:
        """Say what decays and betas of a token are made of; see `recurrent_ends.decay`."""
        fields = [self.row.address, self.row.stride, *t, *b, dt, a, size, 4 * self.row.decay, 4 * self.row.beta]
        self._decays = self._arena.keep(np.array(fields, np.int64), "scratch")

    def place_gate(
        self,
        gates: tuple[int, int],
        norm: int,
        group: int,
        *,
        skip: np.ndarray | None = None,
        is_gated_first: bool = False,
        is_sigmoid: bool = False,
    ) -> None:
        """Say what becomes of the outputs; see `recurrent_ends.gate`. `skip` (H V,) are factors of values."""
        skips = 0 if skip is None else self._arena.keep(np.ascontiguousarray(skip, np.float32), "weights")
        values = (self.row.address + 4 * self.row.value, self.row.stride)
        fields = [self._y, self._size, self._size, skips, *values, *gates, norm, group, int(is_gated_first), int(is_sigmoid)]
        self._gate = self._arena.keep(np.array(fields, np.int64), "scratch")

    def emit_states(self, tape: Tape) -> None:
        """Write the record of the recurrence."""
        tape.add(Work("recurrence"), self._kernel, self.layer)

    def emit(self, tape: Tape) -> None:
        """Write the records from decays to gates; drafted tokens are kept aside once all threads have taken in those before."""
        if self._decays:
            tape.add(Work("decays"), recurrent_ends.decay, self._decays)
        self.emit_states(tape)
        tape.add(Work("keeping drafted tokens aside"), recurrence.keep, self.layer, is_private=True)
        tape.add(Work("gates"), recurrent_ends.gate, self._gate)

    @staticmethod
    def kernels(block: LinearRecurrence) -> Sequence[Any]:
        """The kernels of its records, and of a convolution before it."""
        decay = recurrent_ends.decay_keys if block.is_by_key else recurrent_ends.decay
        return (_kernel(block), convolution.convolve, recurrence.keep, decay, recurrent_ends.gate)


def _kernel(block: LinearRecurrence) -> Any:
    return recurrence.recurrence_kernel(has_delta=block.has_delta, is_by_channel=block.is_by_channel, is_by_key=block.is_by_key)
