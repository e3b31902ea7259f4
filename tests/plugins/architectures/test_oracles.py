"""Every architecture, on every backend that computes its blocks: the logits are llama.cpp's."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.models import ORACLES, expected, nmse, tiny_file
from oracles.passes import run_of

from augury import Registry
from augury.errors import UnsupportedError
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
LIMIT = 1e-9  # llama.cpp itself differs from itself by up to 1e-12, and its GELU is a float16 table


def load(backend, name, **options):
    file, kind = tiny_file(name), REGISTRY.backends[backend]
    given = {"n_ctx": 64, "cache_type_k": "f32", "cache_type_v": "f32", "threads": 1, **options}
    return kind(kind.options_class()).load(file, plan_of(file, REGISTRY), ModelOptions(**given), Progress())


def is_computed(backend, name):
    kind = REGISTRY.backends[backend]
    try:
        kind(kind.options_class()).state_spec(plan_of(tiny_file(name), REGISTRY), ModelOptions(n_ctx=64))
    except UnsupportedError:
        return False
    return True


CASES = [(backend, name) for backend in sorted(REGISTRY.backends) for name in ORACLES if is_computed(backend, name)]


def test_reference_computes_every_architecture():
    assert [name for backend, name in CASES if backend == "reference"] == list(ORACLES)
    assert {tiny_file(name).architecture for name in ORACLES} == set(REGISTRY.architectures) - {"toy"}


@pytest.mark.sample(40)
@pytest.mark.parametrize(("backend", "name"), CASES)
def test_logits_are_those_of_llama_cpp(backend, name):
    tokens, right = expected(name)

    logits = load(backend, name).forward(run_of(tokens)).rows()

    assert nmse(logits, right) < LIMIT


@pytest.mark.sample(12)
@pytest.mark.parametrize(("backend", "name"), CASES)
def test_tokens_one_by_one_give_the_same_bits(backend, name):
    tokens, _ = expected(name)
    model = load(backend, name, n_slots=2)
    at_once = model.forward(run_of(tokens, slot=1)).rows().copy()

    one_by_one = [model.forward(run_of([token], start=i)).rows().copy() for i, token in enumerate(tokens)]

    assert np.array_equal(np.concatenate(one_by_one), at_once)
