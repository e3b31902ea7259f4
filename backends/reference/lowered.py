"""A block as its operations: its caches and states, and its values in a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from attrs import field, frozen

from augury.backends.reference.cache import LayerCache
from augury.backends.reference.recurrent import State, advance_heads, shift
from augury.backends.reference.weights import Weights
from augury.batch import Batch, Tree
from augury.blocks import Block
from augury.errors import CapacityError
from augury.lowering import Attend, Convolve, PrepareHeads, Recur, Value
from augury.types import ModelOptions

ChosenPositions = list[tuple[np.ndarray, np.ndarray]]
"""For each token the positions that take part (lists, T), and the last positions of blocks whose pooled rows do."""


class LoweredBlock:
    """A block's operations, with their caches and states of slots.

    Attributes:
        cache: The cache of positions, as `Block.cached` says.
        states: The states of sequences, as `Block.states` says.
        sources: Layers whose caches it reads or writes.
    """

    def __init__(self, block: Block, options: ModelOptions, weights: Weights, n_embd: int) -> None:
        """Lower a block, and allocate its caches and states.

        Raises:
            CapacityError: There is no memory for them.
        """
        build = block.lowered(n_embd)
        self.x, self.before, self.embedded = build.x, build.before, build.embedded
        self.operations = build.operations
        advances = {state: shift for each in self.operations if isinstance(each, Convolve) for state in each.states}
        for each in self.operations:
            if isinstance(each, Recur):
                a = None if each.a is None else weights.vector(each.a.weight).T
                advances[each.state] = partial(advance_heads, each.heads, a)
        self.cache = LayerCache(block, options)
        try:
            self.states = [State(state, advances[i], options) for i, state in enumerate(block.states())]
        except (MemoryError, ValueError) as error:
            raise CapacityError(f"no memory for the states of {options.n_slots} slots; ask for fewer") from error
        self.sources = {
            each.source for each in self.operations if isinstance(each, Attend | PrepareHeads) and each.source is not None
        }

    def begin(self, batch: Batch) -> None:
        """Begin a pass."""
        self.cache.begin(batch)
        for state in self.states:
            state.begin(batch)

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> list[np.ndarray]:
        """See `SlotStates.slot_memory`."""
        views = self.cache.slot_memory(slot, n, start or 0)
        return views if start is not None else [*views, *(state.values[slot] for state in self.states)]


@frozen(eq=False)
class Run:
    """One block in one pass: arrays (n, width) float64 by value."""

    weights: Weights
    block: LoweredBlock
    batch: Batch
    tree: Tree | None
    inputs: np.ndarray
    added: np.ndarray
    arrays: dict[Value, np.ndarray]
    sources: Mapping[int, LayerCache]  # caches of other layers
    chosen: list[ChosenPositions]  # by the last layer that chooses; it is put in its place
    choices: dict[Value, ChosenPositions] = field(factory=dict)
    routes: dict[Value, tuple[np.ndarray, np.ndarray]] = field(factory=dict)  # experts and their weights, (n, n_used) each
    given: list[np.ndarray] = field(factory=list)  # inputs of all layers side by side; the new streams; logits

    def choice(self, value: Value) -> ChosenPositions:
        """The chosen positions, of this block or of the last layer that chose."""
        return self.choices[value] if value in self.choices else self.chosen[0]

    def get(self, value: Value) -> np.ndarray:
        """The rows of a value."""
        array = self.arrays[value.root]
        return array if value.whole is None else array[:, value.first : value.first + value.width]

    def tokens(self) -> Iterator[tuple[int, int, int, np.ndarray]]:
        """For each token of the pass: slot, position, cell, and the cells (T,) of all positions up to its own."""
        batch, tree = self.batch, self.tree
        cells = batch.positions if tree is None else tree.cells
        for i, (slot, position) in enumerate(zip(batch.slots.tolist(), batch.positions.tolist(), strict=True)):
            yield slot, position, int(cells[i]), np.arange(position + 1) if tree is None else np.asarray(tree.seen(i))

    def keep(self, cache: int, rows: np.ndarray, source: int | None = None) -> None:
        """Keep rows (n, G, D) of the tokens, in a cache of the block, or of a layer."""
        kept = self.block.cache if source is None else self.sources[source]
        for (slot, _, cell, _), row in zip(self.tokens(), rows, strict=True):
            kept.store(cache, slot, cell, row)

    def choose(self, out: Value, choice: ChosenPositions) -> None:
        """Set the chosen positions, for this block and later ones."""
        self.choices[out] = choice
        self.chosen[:] = [choice]
