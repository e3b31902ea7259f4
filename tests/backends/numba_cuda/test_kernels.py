"""Kernels at what whole tiny models do not reach: several splits of a context, other activations, ties among logits."""

import numpy as np
import pytest

from augury.backends.numba_cuda.device import Launch, SimulatedDevice
from augury.backends.numba_cuda.kernels import inputs
from augury.backends.numba_cuda.kernels.attention import ATTEND_THREADS, attend, merge_splits
from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.kernels.gate import GATE
from augury.backends.numba_cuda.kernels.sample import best_tokens

N_CTX, N_HEADS, N_KV_HEADS = 640, 2, 1
RNG = np.random.default_rng(6)


class Memory:
    """Arrays on a simulated device, by name."""

    def __init__(self, **arrays):
        self.device = SimulatedDevice()
        self.at = {name: self.device.allocate(array.nbytes, name).at(0) for name, array in arrays.items()}
        for name, array in arrays.items():
            self.device.write(self.at[name], array)

    def read(self, name, shape, dtype=np.float32):
        array = np.empty(shape, dtype)
        self.device.read(self.at[name], array)
        return array


def told(positions, slots, branches=None, paths=()):
    """What a pass of tokens at some positions is told; `paths` are the cells from their branches on."""
    made, n, end = np.zeros(inputs.SIZE, np.int32), len(positions), inputs.TABLE
    made[inputs.N_TOKENS] = n
    made[inputs.POSITIONS : inputs.POSITIONS + n], made[inputs.SLOTS : inputs.SLOTS + n] = positions, slots
    made[inputs.BRANCHES : inputs.BRANCHES + n] = np.array(positions) + 1 if branches is None else branches
    for t, path in enumerate(paths):
        made[inputs.PATHS + t] = end
        made[end : end + len(path)] = path
        end += len(path)
    return made


@pytest.mark.parametrize(("key_dim", "value_dim", "window"), [(16, 8, 0), (24, 16, 300)])
def test_attention_over_several_splits(key_dim, value_dim, window):
    slots = 2
    keys = RNG.standard_normal((slots, N_KV_HEADS, N_CTX, key_dim)).astype(np.float16)
    values = RNG.standard_normal((slots, N_KV_HEADS, N_CTX, value_dim)).astype(np.float16)
    # the last token is one of a tree: from position 500 on it sees other cells than those of their numbers
    positions, of_slot, path = [0, 255, 256, 600, 601], [0, 1, 0, 1, 0], np.arange(639, 537, -1)
    branches = [1, 256, 257, 601, 500]
    queries = RNG.standard_normal((5, N_HEADS * key_dim)).astype(np.float32)
    width, n_splits = 32, 3
    made = told(positions, of_slot, branches, [[], [], [], [], path])
    parts = np.full(5 * N_HEADS * n_splits * (value_dim + 2), np.nan, np.float32)
    memory = Memory(
        inputs=made,
        rows=queries,
        keys=keys,
        values=values,
        parts=parts,
        out=np.zeros((5, width), np.float32),
        bytes=np.zeros((5, width), np.int8),
        factors=np.zeros(5, np.float32),
        sums=np.zeros(10, np.int32),
    )
    at, sizes = memory.at, (N_HEADS, N_KV_HEADS, key_dim, value_dim, N_CTX, window, n_splits, 0.25)
    places = [at[name] for name in ("inputs", "rows", "keys", "values", "parts")]
    memory.device.launch(Launch(attend, (n_splits, N_HEADS, 5), ATTEND_THREADS, (*places, N_HEADS * key_dim, *sizes)))
    places = [at[name] for name in ("inputs", "parts", "out", "bytes", "factors", "sums")]
    memory.device.launch(Launch(merge_splits, (1, 5, 1), 32, (*places, N_HEADS, value_dim, n_splits, window, width, 1, 1)))
    found = memory.read("out", (5, width))
    for t, position in enumerate(positions):
        cells = np.arange(position + 1)
        if t == 4:
            cells[500:] = path
        cells = cells[max(0, position + 1 - window) if window else 0 :]
        k, v = (cache[of_slot[t], 0, cells].astype(np.float64) for cache in (keys, values))
        for head in range(N_HEADS):
            scores = 0.25 * (k @ queries[t, head * key_dim : (head + 1) * key_dim])
            weights = np.exp(scores - scores.max())
            right = weights @ v / weights.sum()
            assert np.allclose(found[t, head * value_dim : (head + 1) * value_dim], right, rtol=1e-5, atol=1e-6)
    assert not found[:, N_HEADS * value_dim :].any()
    rounded = memory.read("bytes", (5, width), np.int8) * memory.read("factors", (5, 1))
    assert np.abs(rounded - found).max() <= np.abs(found).max() / 127


@pytest.mark.parametrize(
    ("name", "limit", "activated"), [*((name, 0.0, 0) for name in sorted(GATE)), ("silu", 1.5, 0), ("silu", 1.5, 1)]
)
def test_activations_of_feed_forwards(name, limit, activated):
    size, width = 40, 64
    rows = RNG.standard_normal((2, 2 * size)).astype(np.float32) * 4
    memory = Memory(inputs=told([0, 1], [0, 0]), rows=rows, out=np.full((2, width), np.nan, np.float32))
    nothing = memory.at["out"]
    places = (memory.at["inputs"], memory.at["rows"], memory.at["out"], nothing, nothing, nothing)
    memory.device.launch(Launch(GATE[name], (2, 2, 1), 32, (*places, 2 * size, size, size, width, 1, 1, 0, activated, limit)))
    g, up = rows[:, :size].astype(np.float64), rows[:, size:]
    if limit:
        g, up = g if activated else np.minimum(g, limit), up.clip(-limit, limit)
    right = {
        "silu": g / (1 + np.exp(-g)),
        "gelu": 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))),
        "relu": np.maximum(g, 0),
        "relu_squared": np.maximum(g, 0) ** 2,
        "swiglu_oai": np.minimum(g, 7) / (1 + np.exp(-1.702 * np.minimum(g, 7))),
    }[name]
    found = memory.read("out", (2, width))
    factors = np.clip(up, -7, 7) + 1 if name == "swiglu_oai" else up
    right = np.minimum(right, limit) if activated else right
    assert np.allclose(found[:, :size], right * factors, rtol=1e-4, atol=1e-5)
    assert not found[:, size:].any()


def test_best_tokens_are_in_order_and_of_equals_the_lowest_comes_first():
    logits = RNG.integers(0, 40, (4, 150)).astype(np.float32)
    logits[1, 77], logits[2, :], logits[3, 5:] = np.nan, -np.inf, -np.inf
    n, k = 140, 9  # those after n are no tokens
    memory = Memory(
        inputs=told([], []),
        logits=logits,
        rows=np.array([3, 0, 1, 2], np.int32),
        ids=np.zeros(36, np.int32),
        best=np.zeros(36, np.float32),
    )
    places = [memory.at[name] for name in ("inputs", "logits", "rows", "ids", "best")]
    memory.device.launch(Launch(best_tokens, (4, 1, 1), THREADS, (*places, n, 150, k, 0)))
    ids, best = memory.read("ids", (4, k), np.int32), memory.read("best", (4, k))
    for i, row in ((0, 3), (1, 0), (3, 2)):
        order = np.lexsort((np.arange(n), -logits[row, :n]))[:k]
        assert np.array_equal(ids[i], order)
        assert np.array_equal(best[i], logits[row, order])
    assert (ids[2] == -1).all(), "of a row with a NaN"
