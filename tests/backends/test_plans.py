"""Plans that no family of today has: every backend computes them, or says that it does not."""

import attrs
import numpy as np
import pytest
from oracles.models import nmse, tiny_file
from oracles.passes import run_of
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.blocks import Block
from augury.errors import UnsupportedError
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()


def with_each_layer(plan, change):
    return attrs.evolve(plan, layers=tuple(change(layer) for layer in plan.layers))


def load(backend, file, plan):
    kind = REGISTRY.backends[backend]
    return kind(kind.options_class()).load(file, plan, ModelOptions(n_ctx=64, threads=2), Progress())


@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
def test_a_block_that_the_backend_does_not_know_is_refused(backend):
    @attrs.frozen
    class Abacus(Block):
        pass

    file = tiny_file("llama-dense")
    plan = with_each_layer(plan_of(file, REGISTRY), lambda layer: attrs.evolve(layer, mixer=Abacus()))
    with pytest.raises(UnsupportedError, match="block Abacus does not say how it is computed; define its `lower`"):
        load(backend, file, plan)


FORMS = (
    lambda layer: layer,
    lambda layer: attrs.evolve(layer, feed_forward=attrs.evolve(layer.feed_forward, is_parallel=True)),
    lambda layer: attrs.evolve(layer, feed_forward=None),
)


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])  # gemma3 norms what is added
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
def test_layers_of_every_form_are_those_of_the_reference(backend, name):
    file, tokens, seen, errors = tiny_file(name), list(range(40, 50)), [], []
    for form in FORMS:
        plan = with_each_layer(plan_of(file, REGISTRY), form)
        right, model = load("reference", file, plan), load(backend, file, plan)
        seen.append(right.forward(run_of(tokens)).rows())
        found = model.forward(run_of(tokens)).rows().copy()
        one_by_one = [model.forward(run_of([token], start=i)).rows()[0].copy() for i, token in enumerate(tokens)]
        model.close()
        errors.append(nmse(found, seen[-1]))
        assert np.array_equal(found, one_by_one)
    assert max(errors) < 0.01 * min(nmse(a, b) for a in seen for b in seen if a is not b), "no form is another"
