"""Blocks that keep a state per sequence, and how their states follow the tokens of a pass."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.reference.blocks import each_normed
from augury.blocks import Convolution, ShortConvolution
from augury.errors import CapacityError

if TYPE_CHECKING:
    from augury.backends.reference.weights import Weights
    from augury.batch import Batch, Tree
    from augury.blocks import Block, SequenceState
    from augury.types import ModelOptions

__all__ = ["KNOWN", "MIXERS", "LayerStates"]

Advance = Callable[[np.ndarray, np.ndarray], np.ndarray]


class _State:
    """One state of all slots, and what takes a token into it.

    Attributes:
        values: (S, *shape), of each slot after its certain tokens.
    """

    def __init__(self, state: SequenceState, advance: Advance, options: ModelOptions) -> None:
        self._advance = advance
        self.values = np.zeros((options.n_slots, *state.shape))
        self._saved = np.zeros_like(self.values)
        self._aside = np.zeros((options.n_slots, max(options.draft_max, 1), state.n_fed))

    @property
    def n_bytes(self) -> int:
        return self.values.nbytes + self._saved.nbytes + self._aside.nbytes

    def begin(self, batch: Batch) -> None:
        """Restore, take in what was accepted, empty the slots that start, and save what is to be saved before any token."""
        for slot in batch.restores.tolist() if batch.restores is not None else ():
            self.values[slot] = self._saved[slot]
        for slot, cell, _ in batch.accepted.tolist() if batch.accepted is not None else ():
            self.values[slot] = self._advance(self.values[slot], self._aside[slot, cell % self._aside.shape[1]])
        self.values[batch.slots[batch.positions == 0]] = 0.0
        for slot, n in batch.saves.tolist() if batch.saves is not None else ():
            if n == 0:
                self._saved[slot] = self.values[slot]

    def follow(self, batch: Batch, tree: Tree | None, fed: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The state before and after every token of the pass, of which it is fed `fed` (n, n_fed)."""
        saves = set() if batch.saves is None else set(map(tuple, batch.saves.tolist()))
        cells = (batch.positions if tree is None else tree.cells).tolist()
        held: dict[int, np.ndarray] = {}  # by place in the pass
        last: dict[int, int] = {}  # by slot: the place of its last token
        n_certain: dict[int, int] = {}
        for i, slot in enumerate(batch.slots.tolist()):
            above = last.get(slot, -1) if tree is None else int(tree.parents[i])
            if slot not in last:
                held[-1 - slot] = self.values[slot].copy()
            before = held[above if above >= 0 else -1 - slot]
            held[i] = self._advance(before, fed[i])
            if batch.is_drafted is not None and batch.is_drafted[i]:
                self._aside[slot, cells[i] % self._aside.shape[1]] = fed[i]
            else:
                self.values[slot] = held[i]
                n_certain[slot] = n_certain.get(slot, 0) + 1
                if (slot, n_certain[slot]) in saves:
                    self._saved[slot] = held[i]
            if tree is None:  # nobody else follows it
                held.pop(last.get(slot, -1 - slot), None)
            last[slot] = i
            yield before, held[i]


class LayerStates:
    """What a block keeps of its slots' sequences: a state after the other."""

    purpose = "states"

    def __init__(self, block: Block, options: ModelOptions) -> None:
        try:
            self.states = [
                _State(state, advance, options)
                for state, advance in zip(block.states(), _ADVANCES[type(block)](block), strict=True)
            ]
        except (MemoryError, ValueError) as error:
            raise CapacityError(f"no memory for the states of {options.n_slots} slots; ask for fewer") from error

    @staticmethod
    def bytes_per_position(block: Block, options: ModelOptions) -> int:  # noqa: ARG004 - as caches' that have some
        """None."""
        return 0

    @property
    def n_bytes(self) -> int:
        """Bytes of states, of their copies, and of what is kept aside."""
        return sum(state.n_bytes for state in self.states)

    def begin(self, batch: Batch) -> None:
        """Do what a pass begins with."""
        for state in self.states:
            state.begin(batch)

    def slot_memory(self, slot: int, n: int) -> list[np.ndarray]:  # noqa: ARG002 - as caches' that keep positions
        """Views of the states of a slot."""
        return [state.values[slot] for state in self.states]


def short_convolution(
    block: ShortConvolution, weights: Weights, states: LayerStates, batch: Batch, tree: Tree | None, x: np.ndarray
) -> np.ndarray:
    """What a gated short convolution adds to x (n, E): o(c * conv(b * v))."""
    b, c, v = np.split(weights.product(block.inputs, each_normed(x, block.norm, weights)), 3, axis=1)
    return weights.product(block.o, c * _convolved(block.conv, weights, states.states[0], batch, tree, b * v))


def _convolved(
    conv: Convolution, weights: Weights, state: _State, batch: Batch, tree: Tree | None, inputs: np.ndarray
) -> np.ndarray:
    """The convolution of inputs (n, C) with those before, of which the state has the last `size - 1`."""
    taps = weights.vector(conv.weight).T
    y = np.empty_like(inputs)
    for token, (before, _) in enumerate(state.follow(batch, tree, inputs)):
        y[token] = (np.vstack([before, inputs[token]]) * taps).sum(axis=0)
    return y if conv.bias is None else y + weights.vector(conv.bias)


def _shift(window: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The last inputs of a convolution (size - 1, C) when another is added."""
    return np.vstack([window[1:], row])


MIXERS: dict[type, Any] = {ShortConvolution: short_convolution}
"""What a block of this kind adds to x, by its type."""
KNOWN: dict[type, Container[Any]] = {ShortConvolution: (), Convolution: {"bias"}}
"""What is computed here; see `ModelPlan.check_blocks`."""
_ADVANCES: dict[type, Callable[[Any], Sequence[Advance]]] = {ShortConvolution: lambda _: (_shift,)}
"""What takes a token into each of a block's states: (state, what it is fed) → state."""
