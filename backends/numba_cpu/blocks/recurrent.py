"""What blocks with a state per sequence have in common: where their states lie, and what is kept aside of drafted tokens."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.backends.numba_cpu.blocks.emitter import MixerEmitter
from augury.backends.numba_cpu.kernels import convolution
from augury.backends.numba_cpu.memory import memory_at, up
from augury.backends.numba_cpu.profile import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import Block, Convolution
    from augury.types import ModelOptions

__all__ = ["PlacedState", "RecurrentEmitter", "place_convolution"]


@frozen
class PlacedState:
    """Addresses of a state of all slots: as it is, as it was saved, and what was kept aside to be taken in."""

    values: int
    saved: int
    aside: int
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
        aside = sum(4 * self.n_aside * up(state.n_fed, 16) for state in self.block.states())
        return self.options.n_slots * (2 * self.bytes_per_sequence() + aside)

    def place_states(self, arena: Arena) -> Sequence[PlacedState]:
        """Allocate the block's states, in their order."""
        n_slots = self.options.n_slots
        for state, n_bytes in zip(self.block.states(), self._sizes(), strict=True):
            values, saved = (arena.zeros(n_slots * n_bytes, purpose) for purpose in ("states", "saved states"))
            aside = arena.zeros(n_slots * self.n_aside * 4 * up(state.n_fed, 16), "drafted tokens kept aside")
            self._placed.append(PlacedState(values, saved, aside, n_bytes))
        return self._placed

    def slot_memory(self, slot: int, n: int) -> Sequence[np.ndarray]:  # noqa: ARG002 - as of blocks that keep positions
        """See `MixerEmitter.slot_memory`."""
        return [memory_at(state.values + slot * state.n_bytes, state.n_bytes) for state in self._placed]

    @abstractmethod
    def emit_states(self, tape: Tape) -> None:
        """Write the records alone that bring states up to date, for a pass over no tokens."""

    def _sizes(self) -> list[int]:
        return [4 * state.size // state.shape[-1] * up(state.shape[-1], 16) for state in self.block.states()]


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
    width = up(conv.n_channels, 16)
    taps = np.zeros((conv.size, width), np.float32)
    taps[:, : conv.n_channels] = weights.values(conv.weight, conv.shapes[conv.weight]).T
    bias = 0 if conv.bias is None else weights.vector(conv.bias, conv.n_channels)
    fields = [
        *(*x, *gates, *y, conv.n_channels, width, conv.size),
        *(arena.keep(taps, "weights"), bias, int(has_silu), state.values, state.saved, state.aside, n_aside),
    ]
    return arena.keep(np.array(fields, np.int64), "scratch")


def convolve(tape: Tape, layer: int) -> None:
    """Write the record of a convolution."""
    tape.add(Work("convolution"), convolution.convolve, layer)
