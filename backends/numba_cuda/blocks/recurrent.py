"""What blocks with a state per sequence have in common: where their states lie, and what is kept aside of drafted tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.backends.numba_cuda.blocks.emitter import Emitter, Part
from augury.backends.numba_cuda.kernels import recurrence
from augury.backends.numba_cuda.kernels.convolution import CONVOLVE_THREADS, MAX_SIZE, convolve as kernel
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cuda.device import Arguments, Device, Pointer
    from augury.backends.numba_cuda.rows import Operand, Rows
    from augury.backends.numba_cuda.tape import Tape
    from augury.blocks import (
        Block,
        Convolution,
        SequenceState,
    )
    from augury.types import ModelOptions

__all__ = ["PlacedState", "RecurrentEmitter", "convolve"]


@frozen(eq=False)
class PlacedState:
    """Where a state of all slots is: as it is, as it was saved, and what was kept aside to be taken in."""

    values: Pointer
    saved: Pointer
    aside: Pointer
    added: Pointer  # of a matrix, what is added to its columns lies apart from what is the same for all of them
    n_bytes: int  # of one slot
    n_slots: int
    n_aside: int  # drafted tokens of a slot that there is room for


class RecurrentEmitter(Emitter):
    """A block that keeps states of sequences, of float32."""

    def __init__(self, block: Block, options: ModelOptions) -> None:
        super().__init__(block, options)
        self._n_aside = max(options.draft_max, 1)
        for state in self.states:
            is_matrix = len(state.shape) == 3
            if is_matrix and (state.shape[1] > recurrence.MAX_ROWS or state.shape[2] % recurrence.COLUMNS):
                expected = f"keys of {recurrence.MAX_ROWS} at most and values in fours"
                raise UnsupportedError(f"a state of {state.shape}, backend numba-cuda computes {expected}; choose another one")
            if not is_matrix and not 0 < state.shape[0] < MAX_SIZE:
                found = f"a convolution of {state.shape[0] + 1} inputs"
                raise UnsupportedError(f"{found}, backend numba-cuda computes 2 to {MAX_SIZE}; choose another one")

    @property
    def states(self) -> Sequence[SequenceState]:
        """What it keeps of a sequence."""
        states: Sequence[SequenceState] = self.block.states()
        return states

    def bytes_per_sequence(self) -> int:
        """See `Emitter.bytes_per_sequence`."""
        return sum(4 * state.size for state in self.states)

    def place(self, device: Device) -> None:
        """See `Emitter.place`."""
        self._placed = [self._place(state, device) for state in self.states]

    def _place(self, state: SequenceState, device: Device) -> PlacedState:
        n_slots, n_added = self.options.n_slots, 0 if len(state.shape) == 2 else state.shape[0] * state.shape[2]
        values, saved = (device.allocate(4 * n_slots * state.size, purpose).at(0) for purpose in ("states", "saved states"))
        sizes = (state.n_fed - n_added, n_added)
        aside, added = (
            device.allocate(4 * n_slots * self._n_aside * n, "drafted tokens kept aside").at(0) if n else values for n in sizes
        )
        return PlacedState(values, saved, aside, added, 4 * state.size, n_slots, self._n_aside)

    def slot_memory(self, slot: int, n: int) -> Sequence[Part]:  # noqa: ARG002 - as of blocks that keep positions
        """See `Emitter.slot_memory`."""
        return [(state.values.at(slot * state.n_bytes), state.n_bytes) for state in self._placed]


def convolve(
    tape: Tape,
    conv: Convolution,
    state: PlacedState,
    x: Rows,
    y: Rows,
    *,
    taps: Pointer | None = None,
    gates: Sequence[Rows] = (),
    has_silu: bool = False,
    to: Operand | None = None,
    n_steps: int = 0,
    steps: Arguments | None = None,
) -> None:
    """Write a convolution.

    Args:
        tape: Written on.
        conv: The part of the plan.
        state: Of its inputs.
        x: The inputs.
        y: The outputs.
        taps: Others than the file's.
        gates: What inputs and outputs are multiplied with, if anything, in rows as far apart as the inputs.
        has_silu: Whether outputs go through SiLU.
        to: Where outputs go as well, as matrices read them.
        n_steps: How many decays are made beside it, in rows of y.
        steps: The kernel's arguments for these.
    """
    arguments: Arguments = {"taps": taps or tape.weights.taps(conv), "size": conv.state.shape[0] + 1}
    arguments |= {"state": state.values, "saved": state.saved, "aside": state.aside, "n_aside": state.n_aside}
    arguments |= {"n_channels": conv.n_channels, "has_silu": has_silu, "n_steps": n_steps, **(steps or {})}
    if gates:
        arguments |= {"gate_in": gates[0].at, "gate_out": gates[1].at, "has_gates": True}
    if conv.bias is not None:
        arguments |= {"bias": tape.weights.flat(conv.bias, conv.shapes[conv.bias]), "has_bias": True}
    if to is not None:
        arguments |= to.arguments
    n_blocks = sum(-(-n // CONVOLVE_THREADS) for n in (conv.n_channels, n_steps))
    grid, rows = (n_blocks, min(tape.size.n_tokens, state.n_slots)), {"x": x.at, "y": y.at}
    tape.launch(kernel, grid, CONVOLVE_THREADS, **rows, x_stride=x.width, y_stride=y.width, **arguments)
