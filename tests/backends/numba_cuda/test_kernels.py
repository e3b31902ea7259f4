"""Kernels at what whole tiny models do not reach: several splits of a context, all activations, ties among logits."""

import numpy as np
import pytest
from cuda_simulator.device import SimulatedDevice
from oracles.cuda_latents import error_of_latents
from oracles.cuda_products import in_order

from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels import inputs
from augury.backends.numba_cuda.kernels.activation import NUMBERS, GateArgs, gate
from augury.backends.numba_cuda.kernels.attention import ATTEND, ATTEND_POOLED, AttendArgs, ChoiceArgs
from augury.backends.numba_cuda.kernels.cells import TYPES, CacheArgs, StoreArgs
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.fragments import ATTEND_THREADS, HEADS
from augury.backends.numba_cuda.kernels.heads import HeadsArgs, prepare_heads
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.splits import MergeArgs
from augury.backends.numba_cuda.operations.attention import doublings_of_tile
from augury.backends.reference.cache import TYPES as REFERENCE_TYPES
from augury.backends.reference.formula import gated
from augury.blocks import Activation

N_CTX, N_HEADS, N_KV_HEADS = 640, 2, 1
RNG = np.random.default_rng(6)


class Memory:
    """Arrays on a simulated device, by name."""

    def __init__(self, **arrays):
        self.device = SimulatedDevice()
        self.at = {name: self.device.allocate(array.nbytes, name) for name, array in arrays.items()}
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


def kept(values, kind):
    """Values as a cache type keeps them, codes first, and as they are read back."""
    encode, decode = REFERENCE_TYPES[kind]
    arrays = encode(values.astype(np.float64))
    return [np.ascontiguousarray(array) for array in reversed(arrays)], decode(*arrays)


CASES = {
    "f16": ("f16", "f16", 16, 8, {}),
    "f16, window and sinks": ("f16", "f16", 24, 16, {"window": 300, "sinks": True}),
    "q8_0 and q4_0, chunk, caps and gates": ("q8_0", "q4_0", 32, 64, {"chunk": 290, "cap": 1.5, "gate_size": 64}),
    "q4_0 and q8_0, slopes and gates": ("q4_0", "q8_0", 64, 32, {"slopes": True, "gate_size": 1}),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CASES)
def test_attention_over_several_splits(name):
    type_k, type_v, key_dim, value_dim, params = CASES[name]
    window, chunk, cap, gate_size = (params.get(key, 0) for key in ("window", "chunk", "cap", "gate_size"))
    slots, n = 2, 5
    key_planes, keys = kept(RNG.standard_normal((slots, N_KV_HEADS, N_CTX, key_dim)), type_k)
    value_planes, values = kept(RNG.standard_normal((slots, N_KV_HEADS, N_CTX, value_dim)), type_v)
    # the last token is one of a tree: from position 500 on it sees other cells than those of their numbers
    positions, of_slot, path = [0, 255, 256, 600, 601], [0, 1, 0, 1, 0], np.arange(639, 537, -1)
    branches = [1, 256, 257, 601, 500]
    queries = RNG.standard_normal((n, N_HEADS * key_dim)).astype(np.float32)
    slopes, sinks = np.float32([0.5, 0.01]), np.float32([1.0, -2.0])
    gates = RNG.standard_normal((n, N_HEADS * value_dim // gate_size if gate_size else 1)).astype(np.float32)
    width, n_splits = 32 * -(-N_HEADS * value_dim // 32), 3
    memory = Memory(
        inputs=told(positions, of_slot, branches, [[], [], [], [], path]),
        rows=queries,
        keys=key_planes[0],
        key_halves=key_planes[-1],
        values=value_planes[0],
        value_halves=value_planes[-1],
        slopes=slopes,
        sinks=sinks,
        gates=gates,
        parts=np.full(n * N_HEADS * n_splits * (value_dim + 2), np.nan, np.float32),
        counters=np.zeros(n * N_HEADS, np.uint32),
        out=np.zeros((n, width), np.float32),
        bytes=np.zeros((n, width), np.int8),
        factors=np.zeros((n, width // 32), np.float32),
        sums=np.zeros((n, width // 32), np.float32),
        halves=np.zeros((n, width // 16), np.int32),
    )
    at = memory.at
    places = {name: at[name] for name in ("rows", "slopes", "parts", "counters")}
    sizes = {"stride": N_HEADS * key_dim, "n_heads": N_HEADS, "n_kv_heads": N_KV_HEADS, "head_dim": key_dim, "length": N_CTX}
    sizes |= {"value_dim": value_dim, "window": window, "chunk": chunk, "n_splits": n_splits, "has_slopes": "slopes" in params}
    sizes |= {"n_of_group": N_HEADS // N_KV_HEADS, "n_doublings": doublings_of_tile(N_HEADS // N_KV_HEADS, n)}
    given = {
        "params": AttendArgs(**places, **sizes, pool=1, scale=0.25, cap=cap),
        "keys": CacheArgs(at["keys"], at["key_halves"]),
    }
    given |= {"values": CacheArgs(at["values"], at["value_halves"])}
    given |= {"merge": MergeArgs(at["sinks"], at["gates"], "sinks" in params, gates.shape[1], gate_size)}
    given |= {"to": TargetArgs(at["out"], at["factors"], at["sums"], at["bytes"], at["halves"], width, 1, 1)}
    launch = Launch.of(ATTEND[type_k, type_v], (n_splits, N_KV_HEADS, n), ATTEND_THREADS, at["inputs"], **given)
    memory.device.launch(launch)
    found = memory.read("out", (n, width))
    memory.device.is_reversed = True
    memory.device.launch(launch)
    assert np.array_equal(memory.read("out", (n, width)), found), "whichever block is the last"
    assert not memory.read("counters", n * N_HEADS, np.uint32).any()
    for t, position in enumerate(positions):
        cells = np.arange(position + 1)
        if t == 4:
            cells[500:] = path
        first = max(position + 1 - window if window else 0, position // chunk * chunk if chunk else 0, 0)
        k, v = (cache[of_slot[t], 0, cells[first:]] for cache in (keys, values))
        for head in range(N_HEADS):
            scores = 0.25 * (k @ queries[t, head * key_dim : (head + 1) * key_dim])
            scores = cap * np.tanh(scores / cap) if cap else scores
            scores -= slopes[head] * np.arange(len(k) - 1, -1, -1) if "slopes" in params else 0
            weights, sink = np.exp(scores - scores.max()), np.exp(sinks[head] - scores.max()) if "sinks" in params else 0
            right = weights @ v / (weights.sum() + sink)
            if gate_size:
                right /= 1 + np.exp(-gates[t].repeat(gate_size)[head * value_dim : (head + 1) * value_dim])
            assert np.allclose(found[t, head * value_dim : (head + 1) * value_dim], right, rtol=1e-5, atol=1e-6)
    assert not found[:, N_HEADS * value_dim :].any()
    rounded = in_order(memory.read("bytes", (n, width), np.int8)) * memory.read("factors", (n, width // 32)).repeat(32, axis=1)
    assert np.abs(rounded - found).max() <= np.abs(found).max() / 127


@pytest.mark.sample(1)
@pytest.mark.parametrize(("n_of_group", "window"), [(5, 0), (1, 7), (18, 0)])
def test_tokens_that_share_what_they_read_attend_each_as_if_alone(n_of_group, window):
    dim, n_kv_heads, n_splits = 16, 2, 2
    n_heads, positions = n_of_group * n_kv_heads, np.arange(252, 260) if n_of_group < HEADS else np.arange(253, 258)
    n, width = len(positions), n_heads * dim
    caches = [kept(RNG.standard_normal((1, n_kv_heads, N_CTX, dim)), "f16")[0][0] for _ in range(2)]
    caches[1][0, 0, 257, 3], caches[1][0, 1, 254, 0] = np.float16(np.inf), np.float16(np.nan)
    memory = Memory(
        inputs=told(positions, [0] * n),
        rows=RNG.standard_normal((n, width)).astype(np.float32),
        keys=caches[0],
        values=caches[1],
        parts=np.full(n * n_heads * n_splits * (dim + 2), np.nan, np.float32),
        counters=np.zeros(n * n_heads, np.uint32),
        out=np.zeros((n, width), np.float32),
    )
    at, found = memory.at, []
    params = AttendArgs(
        at["rows"], parts=at["parts"], counters=at["counters"], stride=width, n_heads=n_heads, n_kv_heads=n_kv_heads
    )
    params = params._replace(n_of_group=n_of_group, head_dim=dim, value_dim=dim, length=N_CTX, window=window, n_splits=n_splits)
    given = {"keys": CacheArgs(at["keys"], at["keys"]), "values": CacheArgs(at["values"], at["values"])}
    given["to"] = TargetArgs(at["out"], width=width, as_floats=1)
    for n_doublings in {doublings_of_tile(n_of_group, n), 0}:
        of = params._replace(n_doublings=n_doublings, pool=1, scale=0.25)
        grid = (n_splits, n_kv_heads * -(-n_of_group // HEADS), n)
        memory.device.launch(Launch.of(ATTEND["f16", "f16"], grid, ATTEND_THREADS, at["inputs"], params=of, **given))
        found.append(memory.read("out", (n, width)))
    assert np.array_equal(found[0], found[-1], equal_nan=True)
    is_finite = np.isfinite(found[0].reshape(n, n_kv_heads, n_of_group, dim)).all(axis=2)
    assert np.array_equal(is_finite[:, 0, 3], positions < 257), "what comes later is seen"
    assert np.array_equal(is_finite[:, 1, 0], positions < 254)


@pytest.mark.sample(0)
@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_heads_that_share_what_they_read_attend_each_for_itself(kind):
    device = SimulatedDevice()
    device.is_reversed = True
    assert error_of_latents(device, kind, n_heads=18, n_latent=72, n_turned=24, position=300) < 1e-12


@pytest.mark.sample(0)
def test_attention_to_a_window_and_to_pooled_rows_over_several_splits():
    dim, window, pool, n_splits, n_pooled, positions = 32, 5, 2, 3, 2, [2, 0, 514, 639]
    n = len(positions)
    (row_halves,), rows = kept(RNG.standard_normal((1, 1, N_CTX, dim)), "f16")
    (pooled_halves,), pooled = kept(RNG.standard_normal((1, 1, N_CTX, dim)), "f16")
    queries, chosen = RNG.standard_normal((n, dim)).astype(np.float32), RNG.integers(0, 2, (n, N_CTX // pool)).astype(np.int32)
    parts, sinks = np.full(n * (n_splits + n_pooled) * (dim + 2), np.nan, np.float32), np.float32([0.7])
    arrays = {"inputs": told(positions, [0] * n), "q": queries, "rows": row_halves, "pooled": pooled_halves, "chosen": chosen}
    counters = np.zeros(n, np.uint32)
    memory = Memory(**arrays, parts=parts, counters=counters, sinks=sinks, out=np.zeros((n, dim), np.float32))
    at, run = memory.at, memory.device.launch
    params = AttendArgs(at["q"], parts=at["parts"], counters=at["counters"], stride=dim, n_heads=1, n_kv_heads=1, head_dim=dim)
    params = params._replace(
        value_dim=dim, length=N_CTX, window=window, n_splits=n_splits + n_pooled, pool=1, n_of_group=1, scale=0.25
    )
    merge = {"merge": MergeArgs(at["sinks"], has_sinks=1), "to": TargetArgs(at["out"], width=dim, as_floats=1)}
    merge |= {"choice": ChoiceArgs(at["chosen"], 1, N_CTX // pool)}
    for kernel, name, of, grid, more in (
        (ATTEND["f16", "f16"], "rows", params, n_splits, {}),
        (ATTEND_POOLED["f16"], "pooled", params._replace(pool=pool, first_split=n_splits), n_pooled, merge),
    ):
        cache = CacheArgs(at[name], at[name])
        run(Launch.of(kernel, (grid, 1, n), ATTEND_THREADS, at["inputs"], params=of, keys=cache, values=cache, **more))
    for t, position in enumerate(positions):
        ends = pool * np.arange((position + 1) // pool) + pool - 1
        last, blocks = rows[0, 0, max(0, position + 1 - window) : position + 1], pooled[0, 0, ends[chosen[t, ends // pool] > 0]]
        seen = np.concatenate([last, blocks])
        powers = np.exp(0.25 * (seen @ queries[t]))
        right = powers @ seen / (powers.sum() + np.exp(0.7))
        assert np.allclose(memory.read("out", (n, dim))[t], right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", TYPES)
def test_keys_and_values_are_kept_as_the_reference_keeps_them(kind):
    dims, n_heads, n_kv_heads, length, cells = (32, 64), 1, 2, 5, [3, 0, 4]
    width = n_heads * dims[0] + n_kv_heads * sum(dims)
    rows = RNG.standard_normal((3, width)).astype(np.float32)
    rows[1] = 0
    rows[2, dims[0] :] = 4.0 + np.arange(width - dims[0]) % 5 / 8  # no number is negative
    made = told(cells, [0, 1, 1])
    made[inputs.CELLS : inputs.CELLS + 3] = cells
    empty = [kept(np.zeros((2, n_kv_heads, length, dim)), kind)[0] for dim in dims]
    names = ("key_codes", "key_halves", "value_codes", "value_halves")
    planes = dict(zip(names, (plane for pair in empty for plane in (pair[0], pair[-1])), strict=True))
    memory = Memory(inputs=made, rows=rows, **planes)
    at = [memory.at[name] for name in names]
    caches = {"keys": StoreArgs(*at[:2], TYPES[kind]), "values": StoreArgs(*at[2:], TYPES[kind])}
    sizes = dict(zip(("n_heads", "n_kv_heads", "head_dim", "value_dim"), (n_heads, n_kv_heads, *dims), strict=True))
    params = HeadsArgs(memory.at["rows"], stride=width, length=length, limit=np.inf, **sizes)
    grid = (n_heads + 2 * n_kv_heads, 3)
    memory.device.launch(Launch.of(prepare_heads, grid, 32, memory.at["inputs"], params=params, **caches))
    start = n_heads * dims[0]
    for part, dim in enumerate(dims):
        heads = rows[:, start : start + n_kv_heads * dim].reshape(3, n_kv_heads, dim)
        start += n_kv_heads * dim
        right, _ = kept(heads, kind)  # halves have one plane
        for name, plane in zip(names[2 * part : 2 * part + 2][-len(right) :], right, strict=True):
            found = memory.read(name, planes[name].shape, planes[name].dtype)
            assert np.array_equal(found[[0, 1, 1], :, cells], plane)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "limits_activated"), [*((each.value, 1) for each in Activation), ("silu", 0)])
def test_activations_of_feed_forwards(name, limits_activated):
    size, width, limit = 40, 64, 3.0
    rows = RNG.standard_normal((2, 2 * size)).astype(np.float32) * 4
    rows[0, :3] = -11.5, 11.5, 0.0
    divisors, constants = RNG.uniform(1, 2, size).astype(np.float32), (0.7, 0.9, 0.5, -1e-6)
    made = told([0, 1], [0, 0])
    memory = Memory(inputs=made, rows=rows, divisors=divisors, out=np.full((2, width), np.nan, np.float32))
    at = memory.at
    given = {"rows": at["rows"], "ups": at["rows"].at(4 * size), "divisors": at["divisors"], "has_divisors": 1, "size": size}
    given |= {"stride": 2 * size, "up_stride": 2 * size, "to": TargetArgs(at["out"], width=width, as_floats=1)}
    params = GateArgs(NUMBERS[name], 1, limits_activated, limit, *constants)
    memory.device.launch(Launch.of(gate, (2, 2), 32, at["inputs"], params=params, **given))
    given = constants[:2] if name == "situ" else constants
    gates, ups = np.split(rows.astype(float), 2, axis=1)
    gates, ups = (gates, ups) if limits_activated else (np.minimum(gates, limit), ups.clip(-limit, limit))
    most = limit if limits_activated else np.inf
    right = [gated(g, up, Activation(name), most, given) for g, up in zip(gates, ups, strict=True)]
    found = memory.read("out", (2, width))
    assert np.allclose(found[:, :size], np.array(right) / divisors, rtol=1e-4, atol=1e-5)
    assert not found[:, size:].any()


def test_an_activation_leaves_alone_what_lies_beside_its_values():
    rows, width = RNG.standard_normal((3, 2)).astype(np.float32), 40
    memory = Memory(inputs=told([0, 1, 2], [0] * 3), rows=rows, out=np.full((3, width), np.nan, np.float32))
    at = memory.at
    to, params = TargetArgs(at["out"], width=width, as_floats=True), GateArgs(NUMBERS["relu"], limit=np.inf)
    memory.device.launch(
        Launch.of(gate, (1, 3), 4 * WARP, at["inputs"], rows=at["rows"], stride=2, size=2, params=params, to=to)
    )
    found = memory.read("out", (3, width))
    assert np.array_equal(found[:, :2], np.maximum(rows, 0))
    assert not found[:, 2:WARP].any()
    assert np.isnan(found[:, WARP:]).all(), "another warp of the block has written there"
