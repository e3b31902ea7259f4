"""Latent attention in the simulator: near the reference, and the same to the bit in any company."""

import attrs
import numpy as np
import pytest
from oracles.models import altered, nmse, tiny_file
from oracles.passes import joined, run_of, tree_of

from augury import Registry
from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions
from augury.blocks import LatentAttention, Layer
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
# queries of one matrix and of two, heads whose matrices are in one tensor, a gate, a window
FAMILIES = ("kimi-linear-moe", "deepseek32-moe", "minicpm3-dense", "bailingmoe3-moe", "dots3note-moe")
TOKENS = np.random.default_rng(5).integers(0, 128, 9).astype(np.int32)


def with_heads(file, mixer, n):
    """A file and a mixer like those, of one head, with n heads whose matrices have other weights."""
    rng, shapes = np.random.default_rng(3), {}
    n_plain, n_turned = mixer.keys.n_in // n, mixer.cached_dim - mixer.latent_dim
    shapes[mixer.q.weight] = (n * (n_plain + n_turned), mixer.q.n_in)
    shapes[mixer.keys.weight] = (n, mixer.latent_dim, n_plain)
    shapes[mixer.values.weight] = (n, mixer.values.n_out // n, mixer.latent_dim)
    arrays = {name: rng.standard_normal(shape, np.float32) / 16 for name, shape in shapes.items()}
    keys = attrs.evolve(mixer.keys, n=n, n_in=n_plain)
    values = attrs.evolve(mixer.values, n=n, n_out=mixer.values.n_out // n)
    q = attrs.evolve(mixer.q, n_out=n * (n_plain + n_turned))
    return altered(file, arrays=arrays), attrs.evolve(mixer, q=q, keys=keys, values=values)


def loaded(name, backend="numba-cuda", n_heads=None, **options):
    """A model of one layer with latent attention alone."""
    device = NumbaCuda(NumbaCudaOptions()) if backend == "numba-cuda" else make_backend(REGISTRY, backend)
    file = tiny_file(name)
    plan = plan_of(file, REGISTRY)
    mixer = next(layer.mixer for layer in plan.layers if isinstance(layer.mixer, LatentAttention))
    if n_heads is not None:
        file, mixer = with_heads(file, mixer, n_heads)
    plan = attrs.evolve(plan, layers=(Layer(mixer),))
    return device.load(file, plan, ModelOptions(**{"n_slots": 2, "n_ctx": 32, "threads": 1, **options}), Progress())


@pytest.mark.sample(0, rest=3)
@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_near_the_reference(name):
    found, right = (loaded(name, backend).forward(run_of(TOKENS[:4])).rows() for backend in ("numba-cuda", "reference"))
    assert nmse(found, right) < 1e-10


@pytest.mark.sample(0)
def test_a_token_depends_on_its_past_alone():
    model = loaded(FAMILIES[1], n_heads=4)
    whole = model.forward(run_of(TOKENS)).rows().copy()
    assert nmse(whole, loaded(FAMILIES[1], "reference", n_heads=4).forward(run_of(TOKENS)).rows()) < 1e-10
    model._device.is_reversed = True  # in whatever order a block's threads run
    parts = [model.forward(run_of(TOKENS[:1], slot=1)).rows().copy()]
    beside = joined(run_of(TOKENS[:2]), run_of(TOKENS[1:4], slot=1, start=1))
    parts.append(model.forward(beside).rows()[2:].copy())
    tree = model.forward(tree_of(TOKENS[[0, 4, 0, 5]], [-1, -1, 1, 1], slot=1, start=4)).rows().copy()
    parts.append(tree[[1, 3]])
    moves = np.int32([[1, 5, 4], [1, 7, 5]])
    parts.append(model.forward(attrs.evolve(run_of(TOKENS[6:], slot=1, start=6), accepted=moves)).rows())
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.sample(0)
def test_many_tokens_share_a_pass():
    model, tokens = loaded(f"{FAMILIES[1]}-q8_0"), np.resize(TOKENS, 18)
    whole = model.forward(run_of(tokens)).rows().copy()
    parts = [model.forward(run_of(tokens[i : i + 9], slot=1, start=i)).rows().copy() for i in (0, 9)]
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.sample(0)
def test_rows_are_kept_in_fewer_bits():
    kept = {"cache_type_k": "q8_0"}
    found, right = (loaded(FAMILIES[1], each, **kept).forward(run_of(TOKENS)).rows() for each in ("numba-cuda", "reference"))
    assert nmse(found, right) < 1e-6
