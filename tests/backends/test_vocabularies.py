"""Logits of a vocabulary alone, on every backend: those that its tokens have among all, to the bit."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from oracles.models import tiny_file
from oracles.passes import joined, run_of
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
# plain, capped, biased, scaled, without a norm, quantised
NAMES = ("llama-dense", "gemma2-dense", "qwen2-dense", "granite-rope", "qwen4exp-moe", "llama-dense-q4_k")


@pytest.fixture(scope="module", params=cpu_backends(REGISTRY))
def load(request):
    """Loads a model, once for all tests of a backend."""
    backend = REGISTRY.backends[request.param]
    loaded = {}

    def get(name):
        if name not in loaded:
            file, options = tiny_file(name), ModelOptions(n_slots=2, n_ctx=640, threads=2)
            loaded[name] = backend(backend.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())
        return loaded[name]

    yield get
    for model in loaded.values():
        model.close()


def some_tokens(n):
    return np.random.default_rng(n).integers(0, 64, n).astype(np.int32)


def vocabularies(n):
    yield np.array([n - 1], np.int32)
    yield np.arange(n, dtype=np.int32)
    yield np.unique(np.random.default_rng(3).integers(0, n, 9)).astype(np.int32)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", NAMES)
def test_the_logits_of_some_tokens_are_those_that_they_have_among_all(load, name):
    model = load(name)
    two = joined(run_of(some_tokens(4)), run_of(some_tokens(3), slot=1))
    order = [4, 0, 1, 5, 2, 3, 6]
    mixed = attrs.evolve(two, tokens=two.tokens[order], slots=two.slots[order], positions=two.positions[order])
    for batch in (
        run_of(some_tokens(1)),
        run_of(some_tokens(6)),
        two,
        mixed,
        attrs.evolve(run_of(some_tokens(9)), layers=(0, 1)),
    ):
        right = model.forward(batch).rows().copy()
        for wanted in vocabularies(model.info.n_vocab):
            for _ in range(2):  # what was prepared serves again
                passed = model.forward(attrs.evolve(batch, vocabulary=wanted))
                rows = passed.rows()
                assert np.array_equal(rows[:, wanted], right[:, wanted])
                assert np.array_equal(rows[rows > -np.inf], right[rows > -np.inf])
                assert np.array_equal(passed.argmax(), rows.argmax(axis=1))
    assert np.array_equal(model.forward(batch).rows(), right)


def test_a_pass_in_several_parts_and_one_without_rows_have_one_too(load):
    model, batch = load("gemma2-dense"), run_of(some_tokens(600))
    right = model.forward(batch).rows().copy()
    wanted = np.arange(5, 90, dtype=np.int32)
    assert np.array_equal(model.forward(attrs.evolve(batch, vocabulary=wanted)).rows()[:, wanted], right[:, wanted])
    assert len(model.forward(attrs.evolve(batch, rows=batch.rows[:0], vocabulary=wanted)).rows()) == 0


def test_a_vocabulary_that_was_changed_in_place_is_that_which_was_first_given(load):
    model, batch, wanted = load("llama-dense"), run_of(some_tokens(3)), np.array([3, 4], np.int32)
    right = model.forward(batch).rows().copy()
    model.forward(attrs.evolve(batch, vocabulary=wanted))
    wanted[:] = 10**6
    rows = model.forward(attrs.evolve(batch, vocabulary=wanted)).rows()
    assert np.array_equal(rows[:, 3:5], right[:, 3:5])
