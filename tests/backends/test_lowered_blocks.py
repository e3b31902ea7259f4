"""Blocks that no backend knows: what their operations compute is what the block's own function does."""

import attrs
import numpy as np
import pytest
from oracles.models import RECURRENT, nmse, tiny_file
from oracles.states import Text, batch_of

from augury import Registry
from augury.blocks import Block
from augury.errors import UnsupportedError
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.lowering import Operation
from augury.types import ModelOptions

REGISTRY = Registry.discover()
TREE = (-1, -1, 0, 1)
SCRIPT = (((7, ()), (2, ())), ((1, TREE), (1, ())), ((2, ()), (1, (-1, 0))), ((1, ()), (3, ())))
ACCEPTED = (3, 1)


def stranger(block):
    """The same block, of a class that no backend has heard of."""
    if block is None or type(block).lower is Block.lower:
        return block
    kind = type(f"Strange{type(block).__name__}", (type(block),), {})
    return kind(**attrs.asdict(block, recurse=False))


def with_strangers(plan):
    layers = [
        attrs.evolve(
            layer, mixer=stranger(layer.mixer), beside=stranger(layer.beside), feed_forward=stranger(layer.feed_forward)
        )
        for layer in plan.layers
    ]
    assert any(type(block).__name__.startswith("Strange") for layer in layers for block in layer.blocks)
    return attrs.evolve(plan, layers=tuple(layers))


def rows_of(backend, file, plan):
    """Logits of passes with prompts, trees and drafts, some of which are accepted."""
    device = REGISTRY.backends[backend]
    model = device(device.options_class()).load(
        file, plan, ModelOptions(n_slots=3, n_ctx=64, threads=2, draft_max=5), Progress()
    )
    texts, found = [Text(i, i) for i in range(2)], []
    for moves in SCRIPT:
        shares = [text.share(*move) for text, move in zip(texts, moves, strict=True)]
        batch, _ = batch_of(texts, shares)
        found.append(model.forward(batch).rows().copy())
        for text, which in zip(texts, ACCEPTED, strict=True):
            text.keep(which)
    model.close()
    return np.concatenate(found)


@pytest.mark.parametrize("name", RECURRENT)
def test_operations_compute_what_the_function_of_the_block_does(name):
    file = tiny_file(name)
    plan = plan_of(file, REGISTRY)
    assert nmse(rows_of("reference", file, with_strangers(plan)), rows_of("reference", file, plan)) < 1e-12


@pytest.mark.parametrize("name", RECURRENT)
def test_a_block_that_the_backend_does_not_know_is_computed_to_the_bit(name):
    file = tiny_file(name)
    plan = plan_of(file, REGISTRY)
    assert np.array_equal(rows_of("numba-cpu", file, with_strangers(plan)), rows_of("numba-cpu", file, plan))


@attrs.frozen(eq=False)
class Dream(Operation):
    """Nobody computes it."""


@attrs.frozen
class Dreamer(Block):
    def lower(self, build):
        build.operations.append(Dream())


@attrs.frozen
class Silent(Block):
    pass


@pytest.mark.parametrize("backend", ["reference", "numba-cpu"])
@pytest.mark.parametrize(("block", "expected"), [(Dreamer(), "Dream.*use"), (Silent(), "a block Silent")])
def test_what_a_backend_cannot_compute_is_refused(backend, block, expected):
    file = tiny_file("llama-dense")
    plan = plan_of(file, REGISTRY)
    plan = attrs.evolve(plan, layers=(attrs.evolve(plan.layers[0], mixer=block), *plan.layers[1:]))
    device = REGISTRY.backends[backend]
    with pytest.raises(UnsupportedError, match=expected):
        device(device.options_class()).load(file, plan, ModelOptions(n_slots=1, n_ctx=16), Progress())
