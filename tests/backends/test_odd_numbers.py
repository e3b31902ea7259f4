"""A token whose states are not numbers spoils its own text alone, on every backend."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from cpu_backends import cpu_backends
from oracles.models import altered, tiny_file
from oracles.passes import joined, run_of

from augury import Registry
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
SICK = 9  # the token whose embedding is not a number
TEXT = np.arange(20, 40, dtype=np.int32)


CASES = {
    "llama-dense": "q8_0",
    "gemma3-dense": "f16",
    "llama-dense-q8_0": "f16",
    "gemma2-dense": "f32",  # which caps scores and logits
    "jais2-dense": "f32",  # with ReLU
    "minicpm3-dense": "q4_0",  # whose attention is latent
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize(("name", "cache_type"), CASES.items(), ids=CASES)
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's about what is computed with them
def test_a_token_that_is_no_number_reaches_neither_its_neighbours_nor_who_follows_in_its_slot(backend, name, odd, cache_type):
    file = tiny_file(name)
    embedding = tiny_file("llama-dense" if name.startswith("llama") else name).tensors["token_embd.weight"]
    sound = embedding.data.view(np.float32).reshape(embedding.shape)
    embedding = sound.copy()
    embedding[SICK] = odd
    file = altered(file, arrays={"token_embd.weight": embedding, "sound": sound})
    plan = plan_of(file, REGISTRY)
    if plan.output.weight.weight == "token_embd.weight":
        plan = attrs.evolve(plan, output=attrs.evolve(plan.output, weight=attrs.evolve(plan.output.weight, weight="sound")))
    kind = REGISTRY.backends[backend]
    options = ModelOptions(n_slots=2, n_ctx=64, threads=2, cache_type_k=cache_type, cache_type_v=cache_type)
    model = kind(kind.options_class()).load(file, plan, options, Progress())
    try:
        right = model.forward(run_of(TEXT, slot=1)).rows().copy()
        logits = model.forward(joined(run_of([SICK] * 30), run_of(TEXT, slot=1)))
        assert (logits.argmax()[:30] == -1).all()
        assert np.array_equal(logits.rows()[30:], right)
        # token by token, in the slot that still holds the others after it
        found = [model.forward(run_of(TEXT[i : i + 1], start=i)).rows()[0].copy() for i in range(len(TEXT))]
        assert np.array_equal(found, right)
    finally:
        model.close()
