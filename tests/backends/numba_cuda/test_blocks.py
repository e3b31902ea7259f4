"""Every optional part of dense plans: near the reference, and the same to the bit in any company."""

import runpy
from pathlib import Path

import attrs
import numpy as np
import pytest
from oracles.models import nmse
from oracles.passes import joined, run_of, tree_of

from augury import Registry
from augury.backends.numba.lowering import Parts
from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions
from augury.backends.numba_cuda.lowering import Lowering, size_of
from augury.backends.numba_cuda.operations import attention
from augury.blocks import Block, Connection
from augury.errors import OptionError, UnsupportedError
from augury.interfaces import Progress
from augury.loader import make_backend
from augury.types import ModelOptions

PARTS = runpy.run_path(str(Path(__file__).parents[1] / "test_optional_parts.py"))
REGISTRY, VARIANTS, PLAN, N_CTX = Registry.discover(), PARTS["VARIANTS"], PARTS["PLAN"], 40
TOKENS = PARTS["some_tokens"](8)
CHOOSING = [name for name, plan in VARIANTS.items() if any(getattr(layer.mixer, "indexer", None) for layer in plan.layers)]


def is_of_a_layer(plan):
    """Whether nothing is unusual but the second layer, which needs nothing of the first."""
    is_usual = attrs.evolve(plan, layers=PLAN.layers) == PLAN and plan.layers[0] is PLAN.layers[0]
    return is_usual and len(plan.layers) == 2 and getattr(plan.layers[1].mixer, "source", None) is None


def two_at_a_time():
    """Plans of two parts, a layer each, and their names: what is simulated takes half as long."""
    names = [name for name in VARIANTS if name not in CHOOSING]
    of_layers = [name for name in names if is_of_a_layer(VARIANTS[name])]
    half = len(of_layers) // 2
    for pair in zip(of_layers[:half], of_layers[half:], strict=False):
        yield pair, attrs.evolve(PLAN, layers=tuple(VARIANTS[name].layers[1] for name in pair))
    for name in [*of_layers[2 * half :], *(name for name in names if name not in of_layers)]:
        yield (name,), VARIANTS[name]


COMPUTED = {" and ".join(names): (names, plan) for names, plan in two_at_a_time()}


def load(backend, plan):
    made = NumbaCuda(NumbaCudaOptions()) if backend == "numba-cuda" else make_backend(REGISTRY, backend)
    return made.load(PARTS["model_file"](), plan, ModelOptions(n_ctx=N_CTX, n_slots=3, threads=1), Progress())


def of_reference(plan):
    return load("reference", plan).forward(run_of(TOKENS)).rows()


@pytest.mark.sample(1, rest=8)
@pytest.mark.parametrize("both", COMPUTED)
def test_parts_are_computed_as_the_reference_does_whatever_the_pass(both, monkeypatch):
    names, plan = COMPUTED[both]
    model = load("numba-cuda", plan)
    whole, usual = model.forward(run_of(TOKENS)).rows().copy(), of_reference(PLAN)
    assert nmse(whole, of_reference(plan)) < 1e-6
    assert all(nmse(usual, of_reference(VARIANTS[name])) > 1e-5 for name in names), "a part changes nothing"
    monkeypatch.setattr(attention, "MOST_PARTS", 1)  # so that tokens attend one after another
    first = model.forward(run_of(TOKENS[:3], slot=1)).rows().copy()
    beside = model.forward(joined(run_of(TOKENS[:2], slot=2), run_of(TOKENS[3:], slot=1, start=3))).rows()
    assert np.array_equal(np.concatenate([first, beside[2:]]), whole)


def test_how_many_launches_norms_take():
    def n_steps(layers):
        lowering = load("numba-cuda", attrs.evolve(PLAN, layers=layers))._lowering
        return len(lowering.steps(size_of(1, 0), Parts((0, 2))).steps)

    plain, plan = PLAN.layers[0], n_steps(PLAN.layers)
    assert n_steps(VARIANTS["layer norms"].layers) == plan + 1, "norms of what is added take one, after the last layer"
    parallel = attrs.evolve(plain.feed_forward, is_parallel=True)
    assert n_steps((plain, attrs.evolve(plain, feed_forward=parallel))) == plan - 1, "two blocks with one norm"
    other = attrs.evolve(parallel, norm=VARIANTS["layer norms"].layers[1].mixer.norm)
    assert n_steps((plain, attrs.evolve(plain, feed_forward=other))) == plan, "two blocks with a norm each"


def without_indexers(layer):
    """A layer that attends to all that it sees, where it may attend to less."""
    nothing = {"indexer": None, "reuses_choice": 0}
    fields = [each.name for each in attrs.fields(type(layer.mixer)) if each.name in nothing]
    return attrs.evolve(layer, mixer=attrs.evolve(layer.mixer, **{name: nothing[name] for name in fields}))


@pytest.mark.sample(0, rest=3)
@pytest.mark.parametrize("name", CHOOSING)
def test_an_indexer_chooses_what_is_attended_to(name):
    plan, tokens = VARIANTS[name], PARTS["some_tokens"](16)
    everything = attrs.evolve(plan, layers=tuple(map(without_indexers, plan.layers)))
    right, other = (load("reference", each).forward(run_of(tokens)).rows() for each in (plan, everything))
    model = load("numba-cuda", plan)
    whole = model.forward(run_of(tokens)).rows().copy()
    assert nmse(whole, right) < 1e-6
    assert nmse(other, right) > 1e-4, "the choice changes nothing"
    model.forward(run_of(tokens[:10], slot=1))
    tree = model.forward(tree_of([9, *tokens[10:14], 8], [-1, -1, 1, 2, 3, 1], slot=1, start=10)).rows()
    assert np.array_equal(tree[1:5], whole[10:14])
    moves = np.array([(1, 10 + i, 9 + i) for i in range(1, 5)], np.int32)
    moved = attrs.evolve(run_of(tokens[14:], slot=1, start=14), accepted=moves)
    assert np.array_equal(model.forward(moved).rows(), whole[14:])
    memory = [[part.copy() for part in model.slot_memory(slot, 16)] for slot in (0, 1)]
    assert all(np.array_equal(*pair) for pair in zip(*memory, strict=True))


def test_a_pass_does_not_begin_with_a_layer_that_attends_to_what_an_earlier_one_chose():
    model, hidden = load("numba-cuda", VARIANTS["latent attention to what an indexer chooses"]), np.zeros((3, 40), np.float32)
    with pytest.raises(OptionError, match="an earlier layer chooses"):
        model.forward(attrs.evolve(run_of(TOKENS[:3]), layers=(1, 2), hidden=hidden))


@attrs.frozen
class Bridge(Connection):
    """Not in any vocabulary."""

    def read(self, given, streams):
        return streams[:, -1]


@attrs.frozen
class Crystal(Block):
    """Neither."""


@pytest.mark.parametrize(
    ("told", "fields"),
    {
        "connection Bridge": {"layers": (PLAN.layers[0].connected(Bridge(), Bridge()),)},
        "block Crystal does not say how it is computed": {"layers": (attrs.evolve(PLAN.layers[0], mixer=Crystal()),)},
    }.items(),
)
def test_what_is_not_computed_is_refused_by_name(told, fields):
    with pytest.raises(UnsupportedError, match=told):
        Lowering(attrs.evolve(PLAN, **fields), ModelOptions(n_ctx=N_CTX))


def test_streams_that_blocks_would_add_to_otherwise_are_refused():
    plan = VARIANTS["gated hyper-connections"]
    for told, layer in {
        "FeedForward.is_parallel": {"feed_forward": attrs.evolve(plan.layers[0].feed_forward, is_parallel=True)},
        "scale": {"scale": 0.5},
        "Attention without a connection": {"mixer": attrs.evolve(plan.layers[0].mixer, connection=None)},
    }.items():
        with pytest.raises(UnsupportedError, match=f"several residual streams in a layer with {told}"):
            load("numba-cuda", attrs.evolve(plan, layers=(attrs.evolve(plan.layers[0], **layer), plan.layers[1])))


@pytest.mark.sample(0)
@pytest.mark.parametrize("name", ["hyper-connections that mix streams", "gated hyper-connections"])
def test_streams_go_from_stage_to_stage(name):
    plan, batch = VARIANTS[name], run_of(TOKENS[:3])
    whole = load("numba-cuda", plan).forward(batch).rows()
    first, last = (load("numba-cuda", plan.stage(*ends)) for ends in ((0, 1), (1, 3)))
    hidden = first.forward(attrs.evolve(batch, features=("layer.0",))).features("layer.0")
    assert np.array_equal(last.forward(attrs.evolve(batch, hidden=hidden)).rows(), whole)


@pytest.mark.sample(0)
def test_a_tree_and_parts_of_layers_are_as_a_chain_of_all():
    plan = VARIANTS["parallel with a skip"]
    parallel, sharing = plan.layers[1], VARIANTS["keys and values of another layer"].layers[1]
    scaled = attrs.evolve(VARIANTS["layer norms"].layers[1], scale=0.6)
    model = load("numba-cuda", attrs.evolve(plan, layers=(scaled, sharing, parallel)))
    whole = model.forward(run_of(TOKENS)).rows().copy()
    first = attrs.evolve(run_of(TOKENS, slot=1), layers=(0, 1), features=("embedding", "layer.0", "output"))
    embedded, hidden = map(model.forward(first).features, ("embedding", "layer.0"))
    later = attrs.evolve(run_of(TOKENS, slot=1), layers=(1, 3), hidden=hidden)
    assert np.array_equal(model.forward(later).rows(), whole)
    assert np.array_equal(model.forward(attrs.evolve(run_of(TOKENS, slot=1), hidden=embedded)).rows(), whole)
    model.forward(run_of(TOKENS[:4], slot=2))
    tree = model.forward(tree_of([7, *TOKENS[4:], 9], [-1, -1, 1, 2, 3, 1], slot=2, start=4)).rows().copy()
    assert np.array_equal(tree[1:5], whole[4:])
    moves = np.array([(2, 4 + i, 3 + i) for i in range(1, 4)], np.int32)
    moved = attrs.evolve(run_of(TOKENS[7:], slot=2, start=7), accepted=moves)
    assert np.array_equal(model.forward(moved).rows(), whole[7:])
