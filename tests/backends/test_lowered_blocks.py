"""Blocks that no backend knows: what their operations compute is what the block's own function does."""

import attrs
import numpy as np
import pytest
from oracles.blocks import FunctionBlock, compute
from oracles.models import ORACLES, RECURRENT, nmse, tiny_file
from oracles.states import script_rows
from oracles.strangers import with_strangers

from augury import Registry
from augury.backends.reference import backend as reference
from augury.blocks import Activation, Block, FeedForward, GateKind
from augury.errors import UnsupportedError
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.lowering import Activate, Add, Multiply, Operation
from augury.types import ModelOptions

REGISTRY = Registry.discover()


def rows_of(backend, file, plan):
    """Logits of passes with prompts, trees and drafts, some of which are accepted."""
    return script_rows(REGISTRY.backends[backend], file, plan)


def assert_functions_agree(name, monkeypatch):
    file = tiny_file(name)
    plan = plan_of(file, REGISTRY)
    lowered = rows_of("reference", file, plan)
    monkeypatch.setattr(reference, "LoweredBlock", FunctionBlock)
    monkeypatch.setattr(reference, "lowered_block", compute)
    assert nmse(lowered, rows_of("reference", file, plan)) < 1e-12


@pytest.mark.sample(24)
@pytest.mark.parametrize("name", ORACLES)
def test_operations_compute_what_the_function_of_the_block_does(name, monkeypatch):
    assert_functions_agree(name, monkeypatch)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [name for name in ORACLES if name.startswith("deepseek4")])
def test_compressed_attention_computes_what_its_definition_says(name, monkeypatch):
    assert_functions_agree(name, monkeypatch)


OTHERS = [
    *("llama-dense", "gemma4-e", "deepseek2-moe", "deepseek4-moe", "qwen4exp-moe"),
    *("deepseek32-moe-8-of-48", "glm5-next-moe-8-of-48", "minimax-m3-moe-3-of-12"),
]


@pytest.mark.sample(7)  # kernels that few other models have take seconds to compile
@pytest.mark.parametrize("name", [*RECURRENT, *OTHERS])
def test_a_block_that_the_backend_does_not_know_is_computed_to_the_bit(name):
    file = tiny_file(name)
    plan = plan_of(file, REGISTRY)
    assert np.array_equal(rows_of("numba-cpu", file, with_strangers(plan)), rows_of("numba-cpu", file, plan))


@attrs.frozen
class Activated(Block):
    """A feed-forward whose products come from two multiplications, if they are apart, and are activated by themselves."""

    inner: FeedForward
    is_apart: bool

    def tensors(self):
        return self.inner.tensors()

    def lower(self, build):
        x, inner = build.normalize(build.x, self.inner.norm), self.inner
        linears = (inner.up,) if inner.gate is None else (inner.gate, inner.up)
        if self.is_apart:
            products = [build.add(Multiply, x, (linear,), "a product")[0] for linear in linears]
        else:
            products = build.add(Multiply, x, linears, "products")
        limits = {"limit": inner.limit, "limits_activated": inner.limits_activated, "constants": inner.constants}
        build.add_product(build.add(Activate, products[0], inner.activation, *products[1:], **limits), inner.down, "down")


CONSTANTS = {Activation.SITU: (4.0, 8.0), Activation.XIELU: (0.8, 0.8, 0.5, -1e-6)}


@pytest.mark.sample(10, rest=30)  # each is a kernel to compile
@pytest.mark.parametrize("is_apart", [True, False])
@pytest.mark.parametrize("limit", [None, 0.25])
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("activation", [*Activation, *GateKind])
def test_activations_are_the_same_by_themselves_and_with_products(activation, is_gated, limit, is_apart):
    def rows(backend):
        inner = plan.layers[0].feed_forward
        parts = {"activation": activation, "limit": limit, "constants": CONSTANTS.get(activation, ())}
        inner = attrs.evolve(inner, gate=inner.gate if is_gated else None, **parts)
        layer = attrs.evolve(plan.layers[0], feed_forward=Activated(inner, is_apart))
        return rows_of(backend, file, attrs.evolve(plan, layers=(layer, *plan.layers[1:])))

    file = tiny_file("llama-dense")
    plan = plan_of(file, REGISTRY)
    assert nmse(rows("numba-cpu"), rows("reference")) < 1e-6


@attrs.frozen(eq=False)
class Dream(Operation):
    """Nobody computes it."""


@attrs.frozen
class Dreamer(Block):
    def lower(self, build):
        build.add(Dream)
        build.add(Add, build.normalize(build.x, None))


@attrs.frozen
class Silent(Block):
    pass


@attrs.frozen
class Backwards(Block):
    inner: FeedForward

    def lower(self, build):
        first, _ = (build.normalize(build.x, self.inner.norm) for _ in range(2))
        build.add_product(build.add(Multiply, first, (self.inner.up,), "up")[0], self.inner.down, "down")


def test_a_norm_that_is_read_after_the_next_is_refused():
    file = tiny_file("llama-dense")
    plan = plan_of(file, REGISTRY)
    block = Backwards(plan.layers[0].feed_forward)
    with pytest.raises(UnsupportedError, match="read by Multiply after the next norm of x; read each before the next"):
        rows_of("numba-cpu", file, attrs.evolve(plan, layers=(attrs.evolve(plan.layers[0], feed_forward=block),)))


@pytest.mark.parametrize("backend", ["reference", "numba-cpu"])
@pytest.mark.parametrize(("block", "expected"), [(Dreamer(), "Dream.*use"), (Silent(), "block Silent")])
def test_what_a_backend_cannot_compute_is_refused(backend, block, expected):
    file = tiny_file("llama-dense")
    plan = plan_of(file, REGISTRY)
    plan = attrs.evolve(plan, layers=(attrs.evolve(plan.layers[0], mixer=block), *plan.layers[1:]))
    device = REGISTRY.backends[backend]
    with pytest.raises(UnsupportedError, match=expected):
        device(device.options_class()).load(file, plan, ModelOptions(n_slots=1, n_ctx=16), Progress())
