"""Adapters on every backend: llama.cpp's results, the same bits in any company, and the model's own where none counts."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from oracles import adapters
from oracles.models import nmse, tiny_file
from oracles.passes import joined, run_of
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.blocks.adapted import with_adapters
from augury.files.adapter import Adapter
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
SCALES = np.float32([(1, 0), adapters.BOTH, (0, 0)])


def load(backend, name, numbers):
    file = tiny_file(name)
    plan = with_adapters(plan_of(file, REGISTRY), [Adapter.open(adapters.adapter(name, number)) for number in numbers])
    options = ModelOptions(n_slots=3, n_ctx=32, threads=2, cache_type_k="f32", cache_type_v="f32")
    return make_backend(REGISTRY, backend).load(file, plan, options, Progress())


@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.parametrize("name", adapters.MODELS)
def test_adapters_of_slots_have_llama_cpps_results_and_each_its_bits_in_any_company(backend, name):
    model, plain, tokens = load(backend, name, (0, 1)), load(backend, name, ()), adapters.TOKENS
    batch = joined(*(run_of(tokens, slot=slot) for slot in range(3)))
    first, both, neither = np.split(model.forward(evolve(batch, scales=SCALES)).rows().copy(), 3)
    for found, expected in zip((first, both), adapters.expected(name), strict=True):
        assert nmse(found, expected) < 1e-9
    assert np.array_equal(neither, plain.forward(run_of(tokens)).rows())
    for slot, found in enumerate((first, both, neither)):
        alone = [evolve(run_of(tokens[i : i + 1], slot=slot, start=i), scales=SCALES) for i in range(4)]
        singly = [model.forward(batch).rows()[0].copy() for batch in alone]
        assert np.array_equal(singly, found[:4])
    model.close()
    plain.close()
