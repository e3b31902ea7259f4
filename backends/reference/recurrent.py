"""Blocks that keep a state per sequence, and how their states follow the tokens of a pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from augury import blocks
from augury.backends.reference.formula import products, sigmoid
from augury.backends.reference.weights import Weights, each_normed
from augury.batch import Batch, Tree
from augury.errors import CapacityError
from augury.types import ModelOptions

Advance = Callable[[np.ndarray, np.ndarray], np.ndarray]


class _State:
    """One state of all slots, and the function that takes a token into it.

    Attributes:
        values: (S, *shape), of each slot after its certain tokens.
    """

    def __init__(self, state: blocks.SequenceState, advance: Advance, options: ModelOptions) -> None:
        self._advance = advance
        self.values = np.zeros((options.n_slots, *state.shape))
        self._saved = np.zeros_like(self.values)
        self._aside = np.zeros((options.n_slots, max(options.draft_max, 1), state.n_fed))

    @property
    def n_bytes(self) -> int:
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


class LayerStates:
    """A block's states of its slots' sequences: one after the other."""

    purpose = "states"

    def __init__(self, block: blocks.Block, options: ModelOptions, weights: Weights) -> None:
        self.start(block.states(), _advances(block, weights), options)

    def start(self, states: Sequence[blocks.SequenceState], advances: Sequence[Advance], options: ModelOptions) -> None:
        """Allocate states, each with the function that takes a token into it.

        Raises:
            CapacityError: There is no memory for them.
        """
        try:
            self.states = [_State(state, advance, options) for state, advance in zip(states, advances, strict=True)]
        except (MemoryError, ValueError) as error:
            raise CapacityError(f"no memory for the states of {options.n_slots} slots; ask for fewer") from error

    @property
    def n_bytes(self) -> int:
        """Bytes of states, of their copies, and of inputs kept aside."""
        return sum(state.n_bytes for state in self.states)

    def begin(self, batch: Batch) -> None:
        """Begin a pass."""
        for state in self.states:
            state.begin(batch)

    def slot_memory(self, slot: int, n: int) -> list[np.ndarray]:  # noqa: ARG002 - as caches' that keep positions
        """Views of the states of a slot."""
        return [state.values[slot] for state in self.states]


def short_convolution(
    block: blocks.ShortConvolution, weights: Weights, states: LayerStates, batch: Batch, tree: Tree | None, x: np.ndarray
) -> np.ndarray:
    """A gated short convolution's addition to x (n, E): o(c * conv(b * v))."""
    b, c, v = np.split(weights.product(block.inputs, each_normed(x, block.norm, weights)), 3, axis=1)
    return weights.product(block.o, c * convolved(block.conv, weights, states.states[0], batch, tree, b * v))


def convolved(
    conv: blocks.Convolution, weights: Weights, state: _State, batch: Batch, tree: Tree | None, inputs: np.ndarray
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


def gated_delta_net(
    block: blocks.GatedDeltaNet, weights: Weights, states: LayerStates, batch: Batch, tree: Tree | None, x: np.ndarray
) -> np.ndarray:
    """A gated delta net's addition to x (n, E): o(norm(y) * silu(gate))."""
    normed, heads = each_normed(x, block.norm, weights), block.recurrence
    n, n_keys = len(x), heads.n_key_heads * heads.key_dim
    inputs = weights.product(block.inputs, normed)
    rows = silu(convolved(block.conv, weights, states.states[0], batch, tree, inputs))
    queries = of_length_one(rows[:, :n_keys].reshape(n, -1, heads.key_dim), block.eps) / math.sqrt(heads.key_dim)
    keys = of_length_one(rows[:, n_keys : 2 * n_keys].reshape(n, -1, heads.key_dim), block.eps)
    steps = softplus(weights.product(block.alpha, normed) + weights.vector(block.dt.weight))
    decays, betas = np.exp(weights.vector(block.a.weight) * steps), sigmoid(weights.product(block.beta, normed))
    fed = np.hstack([keys.reshape(n, -1), rows[:, 2 * n_keys :], decays, betas])
    y = each_normed(recurred(heads, states.states[1], batch, tree, queries, fed), block.out_norm, weights)
    gates = weights.product(block.gate, normed)
    return weights.product(block.o, y.reshape(n, -1) * (sigmoid(gates) if block.has_sigmoid else silu(gates)))


def kimi_delta_attention(
    block: blocks.KimiDeltaAttention, weights: Weights, states: LayerStates, batch: Batch, tree: Tree | None, x: np.ndarray
) -> np.ndarray:
    """Kimi delta attention's addition to x (n, E): o(norm(y) * sigmoid(gate))."""
    normed, heads, n = each_normed(x, block.norm, weights), block.recurrence, len(x)
    convolutions = zip((block.q, block.k, block.v), (block.q_conv, block.k_conv, block.v_conv), states.states[:3], strict=True)
    queries, keys, values = (
        silu(convolved(conv, weights, state, batch, tree, weights.product(linear, normed)))
        for linear, conv, state in convolutions
    )
    queries, keys = (of_length_one(rows.reshape(n, -1, heads.key_dim), block.eps) for rows in (queries, keys))
    times, gates = (
        weights.product(linear, normed if down is None else weights.product(down, normed))
        for linear, down in ((block.decay, block.decay_down), (block.gate, block.gate_down))
    )
    a = np.repeat(weights.vector(block.a.weight).reshape(-1), heads.key_dim)
    decays = np.exp(a * softplus(times) if block.floor is None else block.floor * sigmoid(a * times))
    fed = np.hstack([keys.reshape(n, -1), values, decays, sigmoid(weights.product(block.beta, normed))])
    y = recurred(heads, states.states[3], batch, tree, queries / math.sqrt(heads.key_dim), fed)
    y = each_normed(y, block.out_norm, weights).reshape(n, -1)
    return weights.product(block.o, y * sigmoid(gates))


def mamba2(
    block: blocks.Mamba2, weights: Weights, states: LayerStates, batch: Batch, tree: Tree | None, x: np.ndarray
) -> np.ndarray:
    """A Mamba-2 block's addition to x (n, E): o(out_norm((y + d * value) * silu(gate)))."""
    heads, n = block.recurrence, len(x)
    n_values, n_keys = heads.n_heads * heads.value_dim, heads.n_key_heads * heads.key_dim
    inputs = weights.product(block.inputs, each_normed(x, block.norm, weights))
    gates, rows, times = np.split(inputs, [n_values, inputs.shape[1] - heads.n_heads], axis=1)
    values, keys, queries = np.split(
        silu(convolved(block.conv, weights, states.states[0], batch, tree, rows)), [n_values, n_values + n_keys], axis=1
    )
    steps = softplus(times + weights.vector(block.dt.weight))
    decays = np.exp(weights.vector(block.a.weight).reshape(-1) * steps)
    fed = np.hstack([keys, values, decays, steps])
    y = recurred(heads, states.states[1], batch, tree, queries.reshape(n, -1, heads.key_dim), fed)
    y += weights.vector(block.d.weight).reshape(-1, 1) * values.reshape(y.shape)
    return weights.product(block.o, each_normed(y.reshape(n, -1) * silu(gates), block.out_norm, weights))


def mamba(
    block: blocks.Mamba, weights: Weights, states: LayerStates, batch: Batch, tree: Tree | None, x: np.ndarray
) -> np.ndarray:
    """A Mamba block's addition to x (n, E): o((y + d * v) * silu(gate))."""
    heads, n, normed = block.recurrence, len(x), each_normed(x, block.norm, weights)
    values = weights.product(block.value, normed)
    values = silu(convolved(block.conv, weights, states.states[0], batch, tree, values))
    times, keys, queries = (
        each_normed(weights.product(linear, values), norm, weights)
        for linear, norm in ((block.t, block.t_norm), (block.key, block.key_norm), (block.query, block.query_norm))
    )
    steps = softplus(weights.product(block.dt, times))
    decays = [] if heads.is_by_channel else [np.exp(weights.vector(block.a.weight).reshape(-1) * steps)]
    fed = np.hstack([keys, values, *decays, steps])
    y = recurred(heads, states.states[1], batch, tree, queries[:, None], fed)
    skip = np.repeat(weights.vector(block.d.weight).reshape(-1), values.shape[1] // block.d.size)
    gates = silu(weights.product(block.gate, normed))
    return each_normed(weights.product(block.o, (y.reshape(n, -1) + skip * values) * gates), block.post_norm, weights)


def lightning_attention(
    block: blocks.LightningAttention, weights: Weights, states: LayerStates, batch: Batch, tree: Tree | None, x: np.ndarray
) -> np.ndarray:
    """Lightning attention's addition to x (n, E): o(out_norm(y) * sigmoid(gate))."""
    heads, n, normed = block.recurrence, len(x), each_normed(x, block.norm, weights)
    queries, keys, values = (silu(weights.product(linear, normed)) for linear in (block.q, block.k, block.v))
    fed = np.hstack([keys, values, np.tile(block.decays, (n, 1)), np.ones((n, heads.n_heads))])
    y = recurred(heads, states.states[0], batch, tree, queries.reshape(n, -1, heads.key_dim), fed).reshape(n, -1)
    return weights.product(block.o, each_normed(y, block.out_norm, weights) * sigmoid(weights.product(block.gate, normed)))


def recurred(
    heads: blocks.LinearRecurrence, state: _State, batch: Batch, tree: Tree | None, queries: np.ndarray, fed: np.ndarray
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


MIXERS: dict[type, Any] = {
    blocks.ShortConvolution: short_convolution,
    blocks.GatedDeltaNet: gated_delta_net,
    blocks.KimiDeltaAttention: kimi_delta_attention,
    blocks.Mamba: mamba,
    blocks.Mamba2: mamba2,
    blocks.LightningAttention: lightning_attention,
}
"""The addition to x of recurrent blocks, by type."""


def _advances(block: Any, weights: Weights) -> Sequence[Advance]:
    """The functions that take a token into each of a block's states: (state, input) → state."""
    if isinstance(block, blocks.ShortConvolution):
        return (shift,) * len(block.states())
    heads = block.recurrence
    if isinstance(block, blocks.LightningAttention):
        return (partial(advance_heads, heads, None),)
    a = weights.vector(block.a.weight).T if heads.is_by_channel else None
    return (*[shift] * (len(block.states()) - 1), partial(advance_heads, heads, a))
