"""A pass that compiled code calls computes what `forward` does, and moves what `Batch.accepted` does."""

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles.models import tiny_file

from augury import Registry
from augury.backends.numba_cpu import NumbaCpu
from augury.batch import Batch
from augury.compiled import invoker
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

ROOM, K, N_PROMPT, V = 9, 3, 6, 128
REGISTRY = Registry.discover()


def load(name, **how):
    file = tiny_file(name)
    options = ModelOptions(**{"n_ctx": 64, "n_slots": 2, "threads": 2, **how})
    return NumbaCpu(NumbaCpu.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())


@pytest.fixture(scope="module", params=["llama-dense", "gemma3-dense", "llama-dense-q4_0"])
def models(request):
    with closing(load(request.param)) as one, closing(load(request.param)) as other:
        yield one, other


@pytest.fixture(scope="module")
def call():
    import numba

    invoke = invoker()

    @numba.njit
    def called(function, *arguments):
        invoke(function, arguments)

    return called


@st.composite
def trees(draw):
    n = draw(st.integers(1, ROOM))
    parents = [-1, *(draw(st.integers(0, i - 1)) for i in range(1, n))]
    return draw(st.lists(st.integers(0, V - 1), min_size=n, max_size=n)), parents


def path_to(parents, node):
    path = []
    while node > 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@settings(max_examples=20)
@given(st.lists(trees(), min_size=1, max_size=3), st.data())
def test_features_of_what_is_kept_are_those_of_forward(models, call, some, data):
    compiled, plain = models
    names, start = ("layer.0", "output"), N_PROMPT
    passes = compiled.compiled_pass(0, ROOM, K, V, names)
    kept, expected = passes.keep_features(3 * ROOM), {name: [] for name in names}
    for model in models:
        model.forward(Batch.chain(np.arange(N_PROMPT, dtype=np.int32)))

    def run(*_):
        call(passes.function, passes.argument)
        call(passes.keep, passes.argument, places.ctypes.data, len(places))
        return 0

    for tokens, parents in some:
        n = len(tokens)
        depths = [len(path_to(parents, node)) for node in range(n)]
        numbers = np.array([tokens, [0] * n, [start + depth for depth in depths], range(n), parents], np.int32)
        passed = plain.forward(Batch(*numbers[:4], parents=numbers[4], features=names))
        passes.tokens[:n], passes.parents[:n], passes.sizes[:3] = tokens, parents, (n, start, 0)
        path = path_to(parents, data.draw(st.integers(0, n - 1)))
        places = np.array(path, np.int64) - 1
        passes.run(run)
        for name, rows in expected.items():
            rows += [*passed.features(name)[[0, *path]]]
    for name, rows in expected.items():
        np.testing.assert_array_equal(kept[name][: len(rows)], rows)


@settings(max_examples=40)
@given(trees(), trees(), st.data())
def test_trees_and_moves_are_those_of_forward(models, call, first, second, data):
    compiled, plain = models
    prompt = np.arange(N_PROMPT, dtype=np.int32)
    for model in models:
        model.forward(Batch.chain(prompt, slot=1))
    passes, start, moves = compiled.compiled_pass(1, ROOM, K, V), N_PROMPT, None
    passes.move_first(())
    for tokens, parents in (first, second):
        n = len(tokens)
        depths = [len(path_to(parents, node)) for node in range(n)]
        numbers = np.array([tokens, [1] * n, [start + depth for depth in depths], range(n), parents], np.int32)
        expected = plain.forward(Batch(*numbers[:4], parents=numbers[4], accepted=moves))
        ids, _ = expected.top_k(np.arange(n, dtype=np.int32), K)
        passes.tokens[:n], passes.parents[:n], passes.sizes[:2] = tokens, parents, (n, start)

        def run(function, argument):
            call(function, argument)
            return 0

        passes.run(run, passes.function, passes.argument)
        np.testing.assert_array_equal(passes.ids[:n], ids)
        assert 0 < passes.times[0] <= passes.times[1]
        path = path_to(parents, data.draw(st.integers(0, n - 1)))
        pairs = [(start + node, start + 1 + i) for i, node in enumerate(path) if node != i + 1]
        passes.move_first(pairs)
        moves = np.array([(1, *pair) for pair in pairs], np.int32) if pairs else None
        start += 1 + len(path)
    # the last moves alone, and then what both hold
    passes.sizes[0] = 0
    passes.run(run, passes.function, passes.argument)
    last = np.array([[7], [1], [start], [0]], np.int32)
    rows = [model.forward(Batch(*last, accepted=each)).rows().copy() for model, each in ((compiled, None), (plain, moves))]
    np.testing.assert_array_equal(*rows)


def test_memory_of_logits_that_grew_meanwhile_is_found(models, call):
    compiled, _ = models
    passes = compiled.compiled_pass(0, ROOM, K, V)
    compiled.forward(Batch.chain(np.arange(40, dtype=np.int32), rows=np.arange(40, dtype=np.int32)))
    again = compiled.compiled_pass(0, ROOM, K, V)
    assert again is not passes
    assert compiled.compiled_pass(0, ROOM, K, V) is again


def test_a_model_with_a_state_per_sequence_has_none():
    with closing(load("qwen35-dense")) as model:
        assert model.compiled_pass(0, ROOM, K, V) is None
