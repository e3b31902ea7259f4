"""Keys and values in every cache type, on every backend."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest
from oracles.models import nmse, tiny_file
from oracles.passes import joined, run_of, tree_of
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.errors import UnsupportedError
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.types import CACHE_TYPES, ModelOptions

REGISTRY = Registry.discover()
BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5}
PAIRS = [*((kind, kind) for kind in CACHE_TYPES), ("q8_0", "q4_0"), ("q4_0", "f16"), ("f16", "q8_0")]
# Mean squared error of the logits of `gemma3-dense` against those with a float32 cache, as a share of their mean square.
ERRORS = {"f32": 0, "f16": 2e-10, "bf16": 2e-8, "q8_0": 2e-7, "q4_0": 5e-5}
N_CTX = 320


def load(backend, pair, threads=2, file=None, name="llama-dense"):
    file = file or tiny_file(name)
    options = ModelOptions(n_slots=3, n_ctx=N_CTX, threads=threads, cache_type_k=pair[0], cache_type_v=pair[1])
    return make_backend(REGISTRY, backend).load(file, plan_of(file, REGISTRY), options, Progress())


@pytest.fixture(scope="module", params=cpu_backends(REGISTRY))
def models(request):
    """Models of one backend by cache types, loaded once for all tests."""
    loaded = {}

    def get(pair, threads=2):
        if (pair, threads) not in loaded:
            loaded[pair, threads] = load(request.param, pair, threads)
        return loaded[pair, threads]

    get.backend = request.param
    yield get
    for model in loaded.values():
        model.close()


def some_tokens(n, seed=7):
    return np.random.default_rng(seed).integers(0, 128, n).astype(np.int32)


def rows(model, batch):
    return model.forward(batch).rows().copy()


@pytest.mark.sample(4)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_logits_do_not_depend_on_pass_slot_or_threads(models, pair):
    model, n = models(pair), 300 if models.backend == "numba-cpu" else 40
    tokens = some_tokens(n)
    whole = rows(model, run_of(tokens))

    for sizes in ([1] * (n // 5) + [n - n // 5], [2, 3, n // 2, n - 5 - n // 2]):
        edges = [0, *itertools.accumulate(sizes)]
        parts = [rows(model, run_of(tokens[a:b], slot=1, start=a)) for a, b in itertools.pairwise(edges)]
        assert np.array_equal(np.concatenate(parts), whole)
    both = rows(models(pair, 1), joined(run_of(tokens[:9], slot=2), run_of(tokens, slot=0)))
    assert np.array_equal(both, np.concatenate([whole[:9], whole]))


@pytest.mark.sample(4)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_trees_and_moves_work_in_every_type(models, pair):
    model, context = models(pair), some_tokens(250 if models.backend == "numba-cpu" else 20)
    start, tokens, parents = len(context), some_tokens(20, 3), [-1, *[i // 2 for i in range(19)]]
    path = [0, 2, 5, 12]
    model.forward(run_of(context, slot=0, rows=[]))
    model.forward(run_of(context, slot=1, rows=[]))
    chain = rows(model, run_of(tokens[path], slot=1, start=start))

    tree = rows(model, tree_of(tokens, parents, slot=0, start=start))
    moves = np.array([(0, start + node, start + i) for i, node in enumerate(path)], np.int32)
    after = rows(model, attrs.evolve(run_of([7, 8], slot=0, start=start + 4), accepted=moves))

    assert np.array_equal(tree[path], chain)
    assert np.array_equal(after, rows(model, run_of([7, 8], slot=1, start=start + 4)))


@pytest.mark.parametrize("kind", CACHE_TYPES)
@pytest.mark.parametrize("side", [0, 1], ids=["keys", "values"])
def test_the_error_against_float32_is_as_small_as_the_type_allows(kind, side):
    tokens = some_tokens(60)
    pair = ("f32", kind) if side else (kind, "f32")
    exact, rounded = (load("reference", types, name="gemma3-dense") for types in (("f32", "f32"), pair))

    error = nmse(rows(rounded, run_of(tokens)), rows(exact, run_of(tokens)))

    assert ERRORS[kind] / 100 <= error <= ERRORS[kind]


def assert_backends_agree(pair, name):
    tokens = some_tokens(60)
    logits, right = (rows(load(backend, pair, name=name), run_of(tokens)) for backend in ("numba-cpu", "reference"))

    # not closer, for a number halfway between two codes may become either
    assert nmse(logits, right) <= max(2e-11, max(ERRORS[kind] for kind in pair) / 50)


@pytest.mark.sample(1)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_the_cpu_backend_agrees_with_the_reference(pair):
    assert_backends_agree(pair, "gemma3-dense")


@pytest.mark.sample(0)  # for each type, and each mixed pair, seconds of compiling
@pytest.mark.parametrize("name", ["deepseek2-moe", "minimax-m3-moe-3-of-12"])
@pytest.mark.parametrize("pair", PAIRS[:-2], ids="-".join)
def test_the_cpu_backend_s_other_attention_agrees_with_the_reference(pair, name):
    assert_backends_agree(pair, name)


@pytest.mark.sample(4)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_the_account_is_right(models, pair):
    model = models(pair)
    n_bytes = sum(2 * 2 * 128 * BITS[kind] // 8 for kind in pair)  # layers, KV heads, head size

    table = {line.purpose: line.n_bytes for line in model.memory_table()}

    assert model.state_spec.n_bytes_per_position == n_bytes
    assert table["KV cache"] == pytest.approx(3 * N_CTX * n_bytes, rel=0.01)


@pytest.mark.parametrize("flag", ["cache_type_k", "cache_type_v"])
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
def test_what_cannot_be_stored_is_refused(backend, flag):
    file = tiny_file("llama-dense")
    plan = plan_of(file, REGISTRY)
    odd = attrs.evolve(plan, layers=tuple(attrs.evolve(layer, mixer=narrowed(layer.mixer)) for layer in plan.layers))

    with pytest.raises(UnsupportedError, match=f"{flag} is 'q5_9', expected one of f16, f32, bf16, q8_0, q4_0"):
        make_backend(REGISTRY, backend).load(file, plan, ModelOptions(**{flag: "q5_9"}), Progress())
    with pytest.raises(UnsupportedError, match=f"{flag} is 'q4_0', which keeps 32 components together, but heads have 40"):
        make_backend(REGISTRY, backend).load(file, odd, ModelOptions(**{flag: "q4_0"}), Progress())


def narrowed(mixer):
    return attrs.evolve(mixer, head_dim=40, value_dim=40)
