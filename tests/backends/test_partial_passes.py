"""Passes through the first layers and the output, on every backend: what a model of these layers alone computes, to the bit."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from oracles.models import tiny_file, with_layers
from oracles.passes import joined, run_of

from augury import Registry
from augury.errors import OptionError
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
N_LAYERS = 4
NAMES = ("llama-dense", "qwen3-dense", "gemma3-dense", "llama-dense-q4_k")
SIZES = {"reference": (1, 2, 5), "numba-cpu": (1, 2, 5, 300)}  # 300: more than are computed at once


@pytest.fixture(scope="module", params=sorted(REGISTRY.backends))
def load(request):
    """Loads a model of so many layers, once for all tests of a backend."""
    backend = REGISTRY.backends[request.param]
    loaded = {}

    def get(name, n_layers=N_LAYERS):
        if (name, n_layers) not in loaded:
            file = with_layers(tiny_file(name), n_layers)
            options = ModelOptions(n_slots=2, n_ctx=320, threads=2)
            loaded[name, n_layers] = backend(backend.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())
        return loaded[name, n_layers]

    get.sizes = SIZES.get(request.param, (1, 2, 5))
    yield get
    for model in loaded.values():
        model.close()


def some_tokens(n, seed=7):
    return np.random.default_rng(seed).integers(0, 128, n).astype(np.int32)


def rows(model, batch, n_layers=None):
    return model.forward(attrs.evolve(batch, n_layers=n_layers)).rows().copy()


@pytest.mark.parametrize("n_layers", range(1, N_LAYERS + 1))
@pytest.mark.parametrize("name", NAMES)
def test_the_first_layers_and_the_output_are_a_model_of_these_layers(load, name, n_layers):
    whole, cut = load(name), load(name, n_layers)
    for size in load.sizes:
        batch = run_of(some_tokens(size))
        assert np.array_equal(rows(whole, batch, n_layers), rows(cut, batch))
    assert not np.array_equal(rows(whole, run_of(some_tokens(5)), 1), rows(whole, run_of(some_tokens(5))))


@pytest.mark.parametrize("name", NAMES)
def test_they_go_on_from_what_a_full_pass_stored(load, name):
    whole, cut = load(name), load(name, 2)
    before, after = some_tokens(9), some_tokens(3, seed=8)
    rows(whole, run_of(before))
    rows(cut, run_of(before))
    for i, token in enumerate(after, len(before)):
        assert np.array_equal(rows(whole, run_of([token], start=i), 2), rows(cut, run_of([token], start=i)))


@pytest.mark.parametrize("name", NAMES)
def test_a_full_pass_writes_over_what_they_stored(load, name):
    model = load(name)
    before, after = some_tokens(9), some_tokens(6, seed=8)
    right = rows(model, run_of(np.concatenate([before, after])))[9:]

    rows(model, run_of(before))
    rows(model, run_of(some_tokens(6, seed=9), start=9), 3)
    first = rows(model, run_of(after[:4], start=9))
    rows(model, run_of(after[4:], start=13), 1)  # the very tokens that come
    rest = rows(model, run_of(after[4:], start=13))

    assert np.array_equal(np.concatenate([first, rest]), right)


@pytest.mark.parametrize("name", NAMES)
def test_states_that_are_moved_before_them_are_moved_in_all_layers(load, name):
    model = load(name)
    held, last = some_tokens(4), run_of([7], start=3)
    rows(model, joined(run_of(held), run_of(held, slot=1)))

    right = rows(model, attrs.evolve(last, accepted=np.int32([[0, 3, 2]])))
    rows(model, attrs.evolve(run_of([9], slot=1, start=3), accepted=np.int32([[1, 3, 2]])), 1)

    assert np.array_equal(rows(model, run_of([7], slot=1, start=3)), right)


def test_slots_share_them(load):
    model = load("llama-dense")
    texts = some_tokens(4), some_tokens(3, seed=8)
    alone = [rows(model, run_of(text, slot=slot), 2) for slot, text in enumerate(texts)]

    together = rows(model, joined(run_of(texts[1], slot=1), run_of(texts[0], slot=0)), 2)

    assert np.array_equal(together, np.concatenate([alone[1], alone[0]]))


@pytest.mark.parametrize("n_layers", [-1, 0, N_LAYERS + 1])
def test_a_number_of_layers_that_the_model_has_not_is_refused(load, n_layers):
    with pytest.raises(OptionError, match="expected 1 to 4"):
        rows(load("llama-dense"), run_of([1]), n_layers)
