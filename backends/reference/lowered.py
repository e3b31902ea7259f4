"""States of sequences, which follow the tokens of a pass, and a block with these, its caches, and its values in a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from attrs import field, frozen

from augury import blocks
from augury.backends.reference.cache import LayerCache
from augury.backends.reference.formula import products, sigmoid
from augury.backends.reference.weights import Weights
from augury.batch import Batch, Tree
from augury.blocks import Block
from augury.errors import CapacityError
from augury.lowering import Attend, Convolve, PrepareHeads, Recur, Value
from augury.types import ModelOptions

Advance = Callable[[np.ndarray, np.ndarray], np.ndarray]


class State:
    """One state of all slots, and the function that takes a token into it."""

    def __init__(self, state: blocks.SequenceState, advance: Advance, options: ModelOptions) -> None:
        self._advance = advance
        self.values = np.zeros((options.n_slots, *state.shape))  # after certain tokens
        self._saved = np.zeros_like(self.values)
        self._aside = np.zeros((options.n_slots, max(options.draft_max, 1), state.n_fed))

    @property
    def n_bytes(self) -> int:
        """Bytes of the states, of their copies, and of inputs kept aside."""
        return self.values.nbytes + self._saved.nbytes + self._aside.nbytes

    def begin(self, batch: Batch) -> None:
        """Restore, take in accepted tokens, empty the slots that start, and save states as they are before any token."""
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


def convolved(
    conv: blocks.Convolution, weights: Weights, state: State, batch: Batch, tree: Tree | None, inputs: np.ndarray
) -> np.ndarray:
    """The convolution of inputs (n, C) with those before, of which the state has the last `size - 1`."""
    taps = conv.taps(weights.vector(conv.weight))
    y = np.empty_like(inputs)
    for token, (before, _) in enumerate(state.follow(batch, tree, inputs)):
        y[token] = (np.vstack([before, inputs[token]]) * taps).sum(axis=0)
    return y if conv.bias is None else y + weights.vector(conv.bias)


def shift(window: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The last inputs of a convolution (size - 1, C) when another is added."""
    return np.vstack([window[1:], row])


def recurred(
    heads: blocks.LinearRecurrence, state: State, batch: Batch, tree: Tree | None, queries: np.ndarray, fed: np.ndarray
) -> np.ndarray:
    """The heads' output (n, H, V) for queries (n, G, K) after each token, with the inputs `fed`."""
    y = np.empty((len(fed), heads.n_heads, heads.value_dim))
    for token, (_, after) in enumerate(state.follow(batch, tree, fed)):
        y[token] = _read(after, _of_heads(heads, queries[token]))
    return y


def advance_heads(heads: blocks.LinearRecurrence, a: np.ndarray | None, state: np.ndarray, fed: np.ndarray) -> np.ndarray:
    """The matrices of the heads (H, K, V) after a token; `a` (K, V) where decays are by channel."""
    n_keys, n_values = heads.n_key_heads * heads.key_dim, heads.n_heads * heads.value_dim
    keys = _of_heads(heads, fed[:n_keys].reshape(-1, heads.key_dim))
    values = fed[n_keys : n_keys + n_values].reshape(-1, heads.value_dim)
    if a is not None:
        betas = fed[n_keys + n_values :]
        decayed = state * np.exp(a * betas)
    elif heads.is_by_key:
        betas = fed[-heads.n_heads :, None]
        decayed = state * fed[n_keys + n_values : -heads.n_heads].reshape(heads.n_heads, -1, 1)
    else:
        decays, betas = fed[n_keys + n_values :].reshape(2, -1, 1)
        decayed = state * decays[:, :, None]
    if heads.has_delta:
        values = values - _read(decayed, keys)
    return decayed + keys[:, :, None] * (betas * values)[:, None, :]


def _of_heads(heads: blocks.LinearRecurrence, rows: np.ndarray) -> np.ndarray:
    """The query or key of each head, (H, K), from groups' (G, K)."""
    n = heads.n_heads // heads.n_key_heads
    return np.tile(rows, (n, 1)) if heads.is_tiled else np.repeat(rows, n, axis=0)


def _read(state: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """S^T q of each head: (H, K, V) and (H, K) → (H, V)."""
    return products(state.swapaxes(1, 2), rows)


def of_length_one(rows: np.ndarray, eps: float) -> np.ndarray:
    """Rows (..., K), each divided by its length."""
    return rows / np.sqrt((rows * rows).sum(axis=-1, keepdims=True) + eps)


def silu(x: np.ndarray) -> np.ndarray:
    """X * sigmoid(x)."""
    return x * sigmoid(x)


def softplus(x: np.ndarray) -> np.ndarray:
    """ln(1 + e^x)."""
    return np.logaddexp(0.0, x)


ChosenPositions = list[tuple[np.ndarray, np.ndarray]]
"""For each token the positions that take part (lists, T), and the last positions of blocks whose pooled rows do."""


class LoweredBlock:
    """A block's operations, with their caches and states of slots."""

    def __init__(self, block: Block, options: ModelOptions, weights: Weights, n_embd: int) -> None:
        """Lower a block, and allocate its caches and states. Raises CapacityError: there is no memory for them."""
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
        self.sources = {  # layers whose caches it reads or writes
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
