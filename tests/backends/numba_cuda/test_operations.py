"""Operations: what kernels compute together, and that blocks of which nobody knows are computed as the reference does."""

import attrs
import numpy as np
import pytest
from oracles.cuda_launches import placed
from oracles.models import nmse, tiny_file
from oracles.passes import run_of

from augury import Registry
from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions
from augury.backends.numba_cuda.device import CountingDevice, Launch
from augury.backends.numba_cuda.kernels.norm import norm_rows
from augury.backends.numba_cuda.lowering import Parts, size_of
from augury.blocks import Activation, Block, GateKind
from augury.errors import UnsupportedError
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.lowering import Operation
from augury.types import ModelOptions

REGISTRY = Registry.discover()
TOKENS = np.random.default_rng(5).integers(0, 128, 5).astype(np.int32)
RECURRENT, FEED = "recur gate_groups multiply", "norm_rows multiply multiply"
ATTEND = "norm_rows multiply prepare_heads attend multiply"
FUSED = {  # by model and layer
    ("lfm2-dense", 1): f"norm_rows multiply convolve multiply {FEED}",
    ("qwen35-dense", 0): f"norm_rows multiply convolve decay {RECURRENT} {FEED}",
    ("mamba2-dense", 0): f"norm_rows multiply convolve {RECURRENT}",
    ("jamba-dense", 1): f"norm_rows multiply convolve multiply norm_parts multiply {RECURRENT} {FEED}",
    ("kimi-linear-moe", 1): f"norm_rows multiply norm_parts multiply multiply convolve decay_keys {RECURRENT}",
    ("minimax-01-moe", 0): f"norm_rows multiply multiply light {RECURRENT}",
    ("glm4moe-moe", 1): f"{ATTEND} norm_rows multiply_and_route multiply multiply",
    ("qwen2moe-moe-2-of-8", 0): f"{ATTEND} norm_rows multiply_and_route multiply multiply multiply multiply",
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


def test_arguments_go_to_kernels_by_name():
    at = CountingDevice().allocate(4, "").at(0)
    launch = Launch.of(norm_rows, (3, 2), 64, at, size=5, eps=0.5, as_bytes=True)
    told = dict(zip(norm_rows.names, launch.arguments, strict=True))
    assert (told["size"], told["eps"], told["as_bytes"], told["width"]) == (5, 0.5, 1, 0)
    assert launch.grid == (3, 2, 1)
    assert told["x"] is told["inputs"] is at
    with pytest.raises(TypeError, match="kernel norm_rows has no sise; it has inputs, x"):
        Launch.of(norm_rows, (1,), 64, at, sise=5)


@attrs.frozen
class Apart(Block):
    """A gated delta net whose operations come one by one, in another order, and a sum that is normed."""

    inner: Block

    def tensors(self):
        return self.inner.tensors()

    def states(self):
        return self.inner.states()

    def lower(self, build):
        inner, heads = self.inner, self.inner.recurrence
        n = build.normalize(build.x, inner.norm)
        beta, alpha, gates, inputs = (
            build.multiply(n, linear, purpose="a product")[0] for linear in (inner.beta, inner.alpha, inner.gate, inner.inputs)
        )
        n_keys, n_values = heads.n_key_heads * heads.key_dim, heads.n_heads * heads.value_dim
        both, values = build.convolve([inputs], [inner.conv], [0], has_silu=True).split(2 * n_keys, n_values)
        decays, betas = build.decay(alpha, beta, dt=inner.dt, a=inner.a)
        build.scale_to_length(both, heads.key_dim, inner.eps, heads.n_key_heads, heads.key_dim**-0.5)
        y = build.recur(heads, 1, *both.split(n_keys, n_keys), values, decays, betas)
        gated = build.gate(y, gates, Activation.SILU, inner.out_norm)
        first, other = (build.multiply(gated, inner.o, purpose="a product")[0] for _ in range(2))
        build.add(build.normalize(build.add_weighed(first, other), inner.norm), inner.norm)


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
        gates, *made = build.multiply(n, *linears, purpose="products")
        values, keys, queries = (build.activate(each, Activation.RELU) for each in made)
        decays, betas = build.constant([*inner.decays, *[1.0] * heads.n_heads]).split(heads.n_heads, heads.n_heads)
        y = build.recur(heads, 0, queries, keys, values, decays, betas)
        build.add_product(build.gate(y, gates, GateKind.SIGMOID, inner.out_norm), inner.o, "a product")


def loaded(name, kind, backend="numba-cuda"):
    """A model of one layer with a state per sequence, whose block is of a kind that no backend knows."""
    device = NumbaCuda(NumbaCudaOptions()) if backend == "numba-cuda" else make_backend(REGISTRY, backend)
    file = tiny_file(name)
    plan = plan_of(file, REGISTRY)
    layer = next(layer for layer in plan.layers if layer.mixer.states())
    plan = attrs.evolve(plan, layers=(attrs.evolve(layer, mixer=kind(layer.mixer), feed_forward=None),))
    return device.load(file, plan, ModelOptions(n_slots=2, n_ctx=32, threads=1), Progress())


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "kind"), [("qwen35-dense", Apart), ("minimax-01-moe", Bent)])
def test_a_block_that_the_backend_does_not_know_is_computed_by_its_operations(name, kind):
    right, model = loaded(name, kind, "reference").forward(run_of(TOKENS)).rows(), loaded(name, kind)
    found = model.forward(run_of(TOKENS)).rows().copy()
    assert nmse(found, right) < 1e-9
    alone = [model.forward(run_of(TOKENS[i : i + 1], slot=1, start=i)).rows().copy() for i in range(2)]
    assert np.array_equal(np.concatenate(alone), found[:2])


@attrs.frozen(eq=False)
class Dream(Operation):
    """Nobody computes it."""


@attrs.frozen
class Dreamer(Block):
    inner: Block

    def lower(self, build):
        build.operations.append(Dream())


@attrs.frozen
class Ungated(Block):
    inner: Block

    def states(self):
        return self.inner.states()

    def lower(self, build):
        heads = self.inner.recurrence
        made = [build.constant([0.5] * n) for n in (heads.n_key_heads * heads.key_dim,) * 2]
        values = build.constant([0.5] * heads.n_heads * heads.value_dim)
        build.recur(heads, 0, *made, values, *(build.constant([1.0] * heads.n_heads) for _ in range(2)))


@pytest.mark.parametrize(
    ("kind", "expected"), [(Dreamer, "block Dreamer has the operation Dream"), (Ungated, "outputs are not gated")]
)
def test_what_cannot_be_computed_is_refused(kind, expected):
    with pytest.raises(UnsupportedError, match=expected):
        loaded("minimax-01-moe", kind)
