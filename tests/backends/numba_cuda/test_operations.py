"""Operations: what kernels compute together, and that blocks of which nobody knows are computed as the reference does."""

import runpy
from pathlib import Path

import attrs
import numpy as np
import pytest
from cuda_simulator.device import CountingDevice
from oracles.cuda_launches import placed
from oracles.models import altered, nmse, tiny_file
from oracles.passes import run_of
from oracles.states import script_rows

from augury import Registry
from augury.backends.numba.lowering import Parts
from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions
from augury.backends.numba_cuda.aot import all_kernels
from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels.activation import GateArgs, gate
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.lowering import size_of
from augury.blocks import Activation, Block, GateKind, LinearRecurrence
from augury.errors import UnsupportedError
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.lowering import Activate, Add, AddWeighed, Constant, Convolve, Gate, Join, Multiply, Operation, Recur
from augury.types import ModelOptions

REGISTRY = Registry.discover()
MADE_UP = runpy.run_path(str(Path(__file__).parents[1] / "test_made_up_blocks.py"))
TOKENS = np.random.default_rng(5).integers(0, 128, 3).astype(np.int32)
RECURRENT, FEED = "recur gate_groups multiply", "norm_rows multiply multiply"
ATTEND = "norm_rows multiply prepare_heads attend multiply"
FUSED = {  # by model and layer
    ("lfm2-dense", 1): f"norm_rows multiply convolve multiply {FEED}",
    ("qwen35-dense", 0): f"norm_rows multiply convolve decay {RECURRENT} {FEED}",
    ("mamba2-dense", 0): f"norm_rows multiply convolve {RECURRENT}",
    ("jamba-dense", 1): f"norm_rows multiply convolve multiply norm_parts multiply {RECURRENT} {FEED}",
    ("kimi-linear-moe", 1): f"norm_rows multiply norm_parts multiply multiply convolve decay {RECURRENT}",
    ("minimax-01-moe", 0): f"norm_rows multiply multiply light {RECURRENT}",
    ("glm4moe-moe", 1): f"{ATTEND} norm_rows multiply_and_route multiply multiply",
    ("qwen2moe-moe-2-of-8", 0): f"{ATTEND} norm_rows multiply_and_route multiply multiply multiply multiply",
    (
        "nemotron_h_moe-moe",
        2,
    ): "norm_rows multiply_and_route multiply multiply multiply gather_rows multiply multiply norm_rows multiply",
    (
        "deltanet-dense",
        0,
    ): f"norm_rows multiply convolve decay blend_rows gate recur gate_groups norm_rows norm_rows multiply {FEED}",
}


@pytest.mark.parametrize(("name", "layer"), FUSED)
def test_what_kernels_compute_together(name, layer):
    lowering = placed(tiny_file(name), CountingDevice(), {})
    ends = [
        [step.kernel.function.__name__ for step in lowering.steps(size_of(1, 0), Parts((0, i))).steps]
        for i in (0, layer, layer + 1)
    ]
    n_output = len(ends[0]) - 1  # beside the embedding
    assert FUSED[name, layer] in " ".join(ends[2][len(ends[1]) - n_output : len(ends[2]) - n_output])


NUMBERS = ("stride", "up_stride", "size", "per_token", "n_apart", "has_divisors")


def test_arguments_go_to_kernels_by_name():
    at = CountingDevice().allocate(4, "")
    floats, numbers = CountingDevice().allocate(4, ""), tuple(5 if name == "size" else 0 for name in NUMBERS)
    launch = Launch.of(gate, (3, 2), 64, at, size=5, params=GateArgs(limit=0.5), to=TargetArgs(floats, width=7, as_bytes=True))
    assert gate.names == ("inputs", "rows", "ups", "divisors", *NUMBERS, "params", "to")
    assert launch.arguments == (*[at] * 4, *numbers, 0, 0, 0, 0.5, 0, 0, 0, 0, floats, at, at, at, at, 7, 0, 1)
    assert len(gate.parameters) == len(launch.arguments)
    assert launch.grid == (3, 2, 1)
    with pytest.raises(TypeError, match="kernel gate has no sise; it has inputs, rows"):
        Launch.of(gate, (1,), 64, at, sise=5)


def test_kernels_take_at_most_twelve_arguments():
    assert max(len(kernel.names) for kernel in all_kernels()) <= 12


@attrs.frozen
class Bent(Block):
    """A lightning attention whose queries, keys and values go through another activation."""

    inner: Block

    def tensors(self):
        return self.inner.tensors()

    def states(self):
        return self.inner.states()

    def lower(self, build):
        inner, heads = self.inner, self.inner.recurrence
        n, linears = build.normalize(build.x, inner.norm), (inner.gate, inner.v, inner.k, inner.q)
        gates, *made = build.add(Multiply, n, linears, "products")
        values, keys, queries = (build.add(Activate, each, Activation.RELU) for each in made)
        decays, betas = build.add(Constant, (*inner.decays, *[1.0] * heads.n_heads)).split(heads.n_heads, heads.n_heads)
        y = build.add(Recur, heads, 0, queries, keys, values, decays, betas)
        build.add_product(build.add(Gate, y, gates, GateKind.SIGMOID, inner.out_norm), inner.o, "a product")


def rows_of(backend, file, plan):
    """Logits of some tokens, and on a GPU also those of the first alone."""
    device = NumbaCuda(NumbaCudaOptions()) if backend == "numba-cuda" else make_backend(REGISTRY, backend)
    model = device.load(file, plan, ModelOptions(n_slots=2, n_ctx=32, threads=1), Progress())
    rows = model.forward(run_of(TOKENS)).rows().copy()
    if backend == "numba-cuda":
        assert np.array_equal(model.forward(run_of(TOKENS[:1], slot=1)).rows(), rows[:1])
    return rows


def plan_with(file, block_of):
    """A plan of one layer without a feed-forward, with another block in place of the first mixer that keeps states, if any."""
    plan = plan_of(file, REGISTRY)
    layer = next((layer for layer in plan.layers if layer.mixer.states()), plan.layers[0])
    return attrs.evolve(plan, layers=(attrs.evolve(layer, mixer=block_of(layer.mixer), feed_forward=None),))


@pytest.mark.sample(0)
def test_a_block_that_the_backend_does_not_know_is_computed_by_its_operations():
    file = tiny_file("minimax-01-moe")
    plan = plan_with(file, Bent)
    assert nmse(rows_of("numba-cuda", file, plan), rows_of("reference", file, plan)) < 1e-9


@pytest.mark.sample(1, rest=4)
@pytest.mark.parametrize("seed", range(40))
def test_operations_in_any_order_compute_the_same(seed):
    author = MADE_UP["Author"](seed)
    file = altered(tiny_file("llama-dense"), arrays=author.tensors)
    plan = plan_with(file, lambda _: MADE_UP["Written"](author))
    assert nmse(rows_of("numba-cuda", file, plan), rows_of("reference", file, plan)) < 1e-6


class Swapped(MADE_UP["Author"]):
    """Convolves two products of one launch side by side, the second one first."""

    def write(self):
        products = self.build.add(Multiply, self.values[0], (self.linear(256, 64), self.linear(256, 32)), "products")
        convs = tuple(self.conv(each.width, 3) for each in products[::-1])
        self.states += [conv.state for conv in convs]
        y = self.build.add(Convolve, products[::-1], convs, (0, 1))
        self.build.add(Add, self.build.add(Multiply, y, (self.linear(96, 256),), "last")[0])


class Ungated(MADE_UP["Author"]):
    """Multiplies what a recurrence yields, as it is."""

    def write(self):
        heads = LinearRecurrence(n_heads=2, n_key_heads=1, key_dim=8, value_dim=16, has_delta=True)
        self.states.append(heads.state)
        widths = (8, 8, 32, 2)
        *fed, beta = self.build.add(Multiply, self.values[0], tuple(self.linear(256, each) for each in widths), "products")
        decays, betas = self.build.add(Constant, (0.9, 0.5)), self.build.add(Activate, beta, GateKind.SIGMOID)
        self.build.add_product(self.build.add(Recur, heads, 0, *fed, decays, betas), self.linear(32, 256), "last")


class Joined(MADE_UP["Author"]):
    """Puts norms, products and parts of them side by side, for matrices and for others."""

    def write(self):
        x = self.values[0]
        left, right = self.build.add(Multiply, x, (self.linear(256, 40), self.linear(256, 64)), "products")
        parts = self.build.normalize(right, self.norm_of(8)).split(24, 40)
        joined = [
            self.build.add(Join, each) for each in ((x, left), parts[::-1], (left, self.build.normalize(right, None), left))
        ]
        products = [self.build.add(Multiply, each, (self.linear(each.width, 256),), "product")[0] for each in joined]
        gated = self.build.add(Multiply, self.build.add(Activate, joined[1], Activation.SILU), (self.linear(64, 256),), "gated")
        y = self.build.add(AddWeighed, self.build.add(AddWeighed, products[0], products[1]), products[2])
        self.build.add(Add, self.build.add(AddWeighed, y, gated[0]))


@pytest.mark.sample(0)
@pytest.mark.parametrize("kind", [Swapped, Ungated, Joined])
def test_values_are_copied_and_drafts_kept_wherever_an_operation_needs_that(kind):
    author = kind(0)
    file = altered(tiny_file("llama-dense"), arrays=author.tensors)
    plan = plan_with(file, lambda _: MADE_UP["Written"](author))
    found, right = (script_rows(REGISTRY.backends[backend], file, plan) for backend in ("numba-cuda", "reference"))
    assert nmse(found, right) < 1e-10


@attrs.frozen(eq=False)
class Dream(Operation):
    """Nobody computes it."""


@attrs.frozen
class Dreamer(Block):
    def lower(self, build):
        build.operations.append(Dream())
        build.add(Add, build.normalize(build.x, None))


def test_what_cannot_be_computed_is_refused():
    file = tiny_file("llama-dense")
    with pytest.raises(UnsupportedError, match="block Dreamer has the operation Dream, which backend numba-cuda does not"):
        rows_of("numba-cuda", file, plan_with(file, lambda _: Dreamer()))


@attrs.frozen
class Early(Block):
    """A feed-forward that has seen x before its layer, too."""

    inner: Block

    def tensors(self):
        return self.inner.tensors()

    def lower(self, build):
        inner = self.inner
        (gate,) = build.add(Multiply, build.normalize(build.before, inner.norm), (inner.gate,), "early")
        (back,) = build.add(Multiply, gate, (inner.down,), "early")
        n = build.normalize(build.x, inner.norm)
        (up, other) = (build.add(Multiply, each, (inner.up,), "products")[0] for each in (n, back))
        y = build.add(Activate, gate, Activation.SILU, build.add(AddWeighed, up, other))
        build.add_product(build.add(AddWeighed, y, gate), inner.down, "down")


@pytest.mark.sample(0)
def test_what_is_made_of_x_before_its_layer_is_there_for_all_that_follows():
    file = tiny_file("llama-dense")
    plan = plan_of(file, REGISTRY)
    layers = [attrs.evolve(layer, feed_forward=Early(layer.feed_forward)) for layer in plan.layers[:1]]
    plan = attrs.evolve(plan, layers=tuple(layers))
    assert nmse(rows_of("numba-cuda", file, plan), rows_of("reference", file, plan)) < 1e-9
