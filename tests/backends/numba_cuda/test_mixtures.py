"""Mixtures of experts in the simulator: experts are chosen and weighed as the reference does, whatever else is in a pass."""

import attrs
import numpy as np
import pytest
from cuda_simulator.device import SimulatedDevice
from oracles.cuda_products import ExpertProducts
from oracles.models import nmse, tiny_file
from oracles.passes import joined, run_of

from augury import Registry
from augury.backends.numba.lowering import Parts
from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions
from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels import experts, inputs, routes
from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import MATRIX_TILE
from augury.backends.numba_cuda.lowering import size_of
from augury.backends.numba_cuda.operations.experts import GATINGS
from augury.backends.reference.formula import choose_experts
from augury.blocks import Gating, Integers, Layer, Linear, MixtureOfExperts, Router
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
FAMILIES = (
    *("qwen3moe-moe-3-of-8", "llama-moe", "maple-moe", "qwen3moe-moe-q8_0"),
    *(
        "qwen2moe-moe-2-of-8",
        "gpt-oss-moe-2-of-8",
        "deepseek2-moe",
    ),  # a gated shared expert; clamped SwiGLU; groups, one that is joined
    *("grovemoe-moe-4-of-16", "smallthinker-moe", "gemma4-moe", "arctic-moe", "kimi-k3-moe"),
)
TOKENS = np.random.default_rng(5).integers(0, 128, 12).astype(np.int32)
N_EXPERTS, N_TOKENS, N_USED = 12, 5, 4
TOKEN_IDS = [2, 0, 1, 1, 2]


def loaded(name, backend, change=lambda plan: plan):
    device = NumbaCuda(NumbaCudaOptions()) if backend == "numba-cuda" else make_backend(REGISTRY, backend)
    file = tiny_file(name)
    return device.load(file, change(plan_of(file, REGISTRY)), ModelOptions(n_slots=2, n_ctx=32, threads=1), Progress())


def mixture_alone(plan):
    """A plan of the first mixture of another one, with what is beside it."""
    layer = next(layer for layer in plan.layers if MixtureOfExperts in map(type, layer.blocks))
    alone = Layer(None, layer.feed_forward).connected(None, None)
    output = attrs.evolve(plan.output, connection=None)
    return attrs.evolve(plan, layers=(alone,), output=output)


@pytest.mark.sample(1, rest=4)
@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_near_the_reference(name):
    backends = ("numba-cuda", "reference")
    found, right = (loaded(name, each, mixture_alone).forward(run_of(TOKENS[:4])).rows() for each in backends)
    assert nmse(found, right) < NumbaCuda.tolerance * ("q8" in name) + 1e-10


@pytest.mark.sample(0)
def test_what_a_token_s_experts_give_it_does_not_depend_on_who_else_goes_to_them():
    def change(plan):  # of one layer, so that it takes less time; with scales and biases
        block = plan.layers[0].feed_forward
        scaled = attrs.evolve(block.up, scales=tuple(np.linspace(0.5, 2, 8).tolist()))
        return attrs.evolve(plan, layers=(attrs.evolve(plan.layers[0], feed_forward=attrs.evolve(block, up=scaled)),))

    model = loaded(FAMILIES[0], "numba-cuda", change)
    whole = model.forward(run_of(TOKENS)).rows().copy()  # 36 rows of 8 experts, in tiles of eight
    right = loaded(FAMILIES[0], "reference", change).forward(run_of(TOKENS)).rows()
    assert nmse(whole, right) < 1e-10
    model._device.is_reversed = True  # in whatever order a block's threads run
    parts = [model.forward(run_of(TOKENS[:1], slot=1)).rows().copy()]
    beside = joined(run_of(TOKENS[:2]), run_of(TOKENS[1:], slot=1, start=1))
    parts.append(model.forward(beside).rows()[2:])
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.sample(0, rest=1)
@pytest.mark.parametrize("name", ["qwen2moe-moe-2-of-8-q8_0", "glm4moe-moe-q8_0"])  # shared experts: apart, and as one more
def test_many_tokens_share_a_pass(name):
    model, tokens = loaded(name, "numba-cuda", mixture_alone), np.resize(TOKENS, 18)
    kernels = [{step.kernel.name for step in model._lowering.steps(size_of(n, 17), Parts((0, 1))).steps} for n in (9, 18)]
    assert ["combine_rows" in each for each in kernels] == [False, True], "tensor cores multiply where there are many"
    whole = model.forward(run_of(tokens)).rows().copy()
    parts = [model.forward(run_of(tokens[i : i + 9], slot=1, start=i)).rows().copy() for i in (0, 9)]
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q6_K"])
def test_tensor_cores_give_experts_rows_the_bits_of_byte_dot_products(name):
    chosen = np.array([(2, 0 if t < 3 else 3) for t in range(20)])  # of one expert all tokens, of another none
    device, width = SimulatedDevice(), 256 if TensorType[name].block_size == 256 else 64
    products = ExpertProducts(device, name, chosen, 4, 6, width)
    (right, _), (found, tiles) = (products.by(tile) for tile in (TILES[-1], MATRIX_TILE))
    assert np.array_equal(found, right)
    assert np.count_nonzero(right) == right.size
    assert tiles.tolist() == [[0, 0, 3], [2, 3, 18], [2, 18, 23], [3, 23, 38], [3, 38, 40]], "16 from an even place on"
    alone, _ = ExpertProducts(device, name, chosen[:1], 4, 6, width).by(MATRIX_TILE)
    assert np.array_equal(alone, found[:1])


def routed(router, logits, bias, table):
    """The experts (n, k), weights (n, k), and tiles (m, 3) of what is routed."""
    device, n_most = SimulatedDevice(), inputs.MAX_TOKENS * N_USED
    told = np.zeros(inputs.SIZE, np.int32)
    told[inputs.N_TOKENS], told[inputs.TOKENS : inputs.TOKENS + len(logits)] = len(logits), TOKEN_IDS
    arrays = {"inputs": told, "logits": logits}
    arrays |= {"values": np.zeros((N_TOKENS, 3 * N_EXPERTS), np.float32), "bias": bias, "table": table}
    arrays |= {"weights": np.zeros((N_TOKENS, N_USED + 1), np.float32), "routes": np.zeros((8, n_most), np.int32)}
    at = {name: device.allocate(array.nbytes, name) for name, array in arrays.items()}
    for name, array in arrays.items():
        device.write(at[name], array)
    sizes = {
        "n_most": n_most,
        "n_experts": N_EXPERTS,
        "width": N_EXPERTS,
        "k": N_USED,
        "gating": GATINGS[router.gating],
        "tile": 2,
    }
    sizes |= {name: getattr(router, name) for name in ("n_groups", "n_groups_used", "n_alike", "is_normalised", "scale")}
    places = {name: each for name, each in at.items() if name != "inputs"}
    params = experts.RouteArgs(**places, **sizes, has_bias=1, has_table=router.token_experts is not None)
    device.launch(Launch.of(experts.route, (1,), THREADS, at["inputs"], params=params))
    for name in ("weights", "routes"):
        device.read(at[name], arrays[name])
    n, told = N_TOKENS * N_USED, arrays["routes"]
    chosen, places, sources = (told[i, :n] for i in (routes.EXPERTS, routes.PLACES, routes.SOURCES))
    assert np.array_equal(sources, np.argsort(chosen, kind="stable"))
    assert np.array_equal(places[sources], np.arange(n))
    tiles = told.reshape(-1)
    tiles = tiles[1 : 1 + 3 * tiles[0]].reshape(-1, 3)
    assert np.array_equal(np.concatenate([np.arange(first, end) for _, first, end in tiles]), np.arange(n))
    assert (tiles[:, 2] - tiles[:, 1] <= 2).all()
    assert all((chosen[sources[first:end]] == expert).all() for expert, first, end in tiles)
    assert len(tiles) == sum(-(-count // 2) for count in np.bincount(chosen))
    return chosen.reshape(N_TOKENS, N_USED), arrays["weights"][:, :N_USED]


@pytest.mark.parametrize("gating", GATINGS)
def test_experts_are_chosen_and_weighed_as_the_reference_does(gating):
    rng = np.random.default_rng(2)
    logits = rng.integers(-3, 4, (N_TOKENS, N_EXPERTS)).astype(np.float32)  # some are equal
    bias = rng.integers(-1, 2, N_EXPERTS).astype(np.float32) / 4
    table = rng.integers(0, N_EXPERTS, (3, N_USED)).astype(np.int32)
    by_token = {"token_experts": Integers("table", table.shape), "is_normalised": True}
    for details in ({}, {"is_normalised": True, "scale": 2.5}, {"n_groups": 4, "n_groups_used": 2}, {"n_alike": 2}, by_token):
        router = Router(Linear("w", 1, N_EXPERTS), n_used=N_USED, gating=gating, **details)
        chosen, weights = routed(router, logits, bias, table)
        for t in range(N_TOKENS):
            given = None if router.token_experts is None else table[TOKEN_IDS[t]]
            right, shares = choose_experts(router, logits[t].astype(np.float64), bias, given)
            assert chosen[t].tolist() == right.tolist()
            assert np.allclose(weights[t], shares, rtol=1e-5)


def test_of_logits_that_are_no_numbers_come_none():
    logits = np.zeros((N_TOKENS, N_EXPERTS), np.float32)
    logits[2, 7] = np.nan
    router = Router(Linear("w", 1, N_EXPERTS), n_used=N_USED, gating=Gating.SIGMOID)
    chosen, weights = routed(router, logits, np.zeros(N_EXPERTS, np.float32), np.zeros(1, np.int32))
    assert ((chosen >= 0) & (chosen < N_EXPERTS)).all()
    assert np.array_equal(np.isnan(weights).all(axis=1), np.arange(N_TOKENS) == 2)
