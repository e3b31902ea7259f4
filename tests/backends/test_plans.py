"""Plans that no family of today has: every backend computes them, or says that it does not."""

import attrs
import pytest
from oracles.models import tiny_file

from augury import Registry
from augury.blocks import Block
from augury.errors import UnsupportedError
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()


def with_each_layer(plan, **changes):
    return attrs.evolve(plan, layers=tuple(attrs.evolve(layer, **changes) for layer in plan.layers))


def load(backend, file, plan):
    kind = REGISTRY.backends[backend]
    return kind(kind.options_class()).load(file, plan, ModelOptions(n_ctx=64, threads=2), Progress())


@pytest.mark.parametrize("backend", sorted(REGISTRY.backends))
def test_a_block_that_the_backend_does_not_know_is_refused(backend):
    @attrs.frozen
    class Abacus(Block):
        pass

    file = tiny_file("llama-dense")
    plan = with_each_layer(plan_of(file, REGISTRY), mixer=Abacus())
    with pytest.raises(UnsupportedError, match="llama models have a block Abacus, which this backend does not compute"):
        load(backend, file, plan)
