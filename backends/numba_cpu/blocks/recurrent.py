"""What blocks with a state per sequence have in common: where their states lie, and what is kept aside of drafted tokens."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.backends.numba_cpu.blocks.emitter import MixerEmitter
from augury.backends.numba_cpu.kernels import convolution, recurrence
from augury.backends.numba_cpu.kernels.struct import table
from augury.backends.numba_cpu.memory import memory_at, up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.operations.layout import Place
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import Block, Convolution, SequenceState
    from augury.types import ModelOptions

__all__ = ["PlacedState", "RecurrentEmitter", "place_convolution", "place_taps"]


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
    x: Place,
    y: Place,
    gates: tuple[int, int] = (0, 0),
    has_silu: bool = False,
) -> int:
    """Write what `convolve` needs to know of a layer.

    Args:
        conv: The part of the plan.
        state: Of its inputs.
        n_aside: Drafted tokens of a slot that there is room for.
        weights: Of the plan.
        arena: Where the record is kept.
        x: The inputs' rows.
        y: The outputs' rows.
        gates: Addresses of what is multiplied with inputs and outputs, in rows as far apart as the inputs; 0: nothing.
        has_silu: Whether outputs go through SiLU.

    Returns:
        The address of the `ConvolutionLayer`.
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
    x: Place,
    y: Place,
    gates: tuple[int, int] = (0, 0),
    bias: int = 0,
    has_silu: bool = False,
) -> int:
    """Likewise, of taps (inputs, channels) and the address of a bias."""
    size, n_channels = taps.shape
    width = up(n_channels, 16)
    padded = np.zeros((size, width), np.float32)
    padded[:, :n_channels] = taps
    layer = convolution.ConvolutionLayer(
        x=x,
        gate_in=gates[0],
        gate_out=gates[1],
        y=y,
        n_channels=n_channels,
        width=width,
        size=size,
        taps=arena.keep(padded, "weights"),
        bias=bias,
        has_silu=has_silu,
        state=state,
        n_aside=n_aside,
    )
    return arena.keep(table([layer]), "scratch")
