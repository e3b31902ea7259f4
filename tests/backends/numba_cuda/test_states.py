"""States of sequences in the simulator: after any accepted, rejected and empty drafts they are a fresh run's, to the bit."""

import functools

import attrs
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from oracles.models import nmse, tiny_file, tiny_model
from oracles.passes import run_of
from oracles.states import CHAIN, SPARE, Text, assert_same_state, batch_of, memory, play

from augury import Engine, Registry
from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions
from augury.errors import CapacityError
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
# a convolution alone; recurrences with the delta rule, with decays by channel, by key; n-grams; recurrences by head
FAMILIES = (
    *("lfm2-dense", "qwen35-dense", "jamba-dense", "kimi-linear-moe", "qwen4exp-moe"),
    *("mamba2-dense", "plamo2-dense", "minimax-01-moe", "deltanet-dense"),
)
TOKENS = np.random.default_rng(5).integers(0, 128, 12).astype(np.int32)


@functools.cache
def loaded(name, backend="numba-cuda"):
    """A model of one layer with a state per sequence."""
    device = NumbaCuda(NumbaCudaOptions()) if backend == "numba-cuda" else make_backend(REGISTRY, backend)
    file = tiny_file(name)
    plan = plan_of(file, REGISTRY)
    layer = next(layer for layer in plan.layers if layer.mixer.states())
    plan = attrs.evolve(plan, layers=(attrs.evolve(layer, feed_forward=None),))
    return device.load(file, plan, ModelOptions(n_slots=4, n_ctx=64, threads=1, draft_max=6), Progress())


@pytest.fixture(params=FAMILIES[:5])
def model(request):
    return loaded(request.param)


@pytest.mark.sample(1, rest=4)
@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_near_the_reference(name):
    model, right = loaded(name), loaded(name, "reference").forward(run_of(TOKENS[:5])).rows()
    found = model.forward(run_of(TOKENS[:5])).rows().copy()
    assert nmse(found, right) < 1e-10
    model._device.is_reversed = True  # in whatever order a block's threads run
    alone = [model.forward(run_of(TOKENS[i : i + 1], slot=1, start=i)).rows().copy() for i in range(2)]
    model._device.is_reversed = False
    assert np.array_equal(np.concatenate(alone), found[:2])


@pytest.mark.sample(0, rest=2)
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("mamba2-dense", "blk.0.ssm_out.weight"),
        ("jamba-dense", "blk.1.ssm_x.weight"),
        ("kimi-linear-moe", "blk.1.ssm_g_b.weight"),
    ],
)
def test_many_tokens_share_a_pass(family, name, monkeypatch):
    file = tiny_file(family)
    data = quantize(file.tensors[name].data.view(np.float32).reshape(file.tensors[name].shape), GGMLQuantizationType.Q8_0)
    stored = attrs.evolve(file.tensors[name], type=TensorType.Q8_0, data=data.reshape(-1))
    monkeypatch.setattr(file, "tensors", {**file.tensors, name: stored})
    monkeypatch.setitem(globals(), "tiny_file", lambda _: file)
    model, tokens = loaded.__wrapped__(family), np.resize(TOKENS, 18)
    whole = model.forward(run_of(tokens)).rows().copy()
    parts = [model.forward(run_of(tokens[i : i + 9], slot=1, start=i)).rows().copy() for i in (0, 9)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert nmse(whole, loaded.__wrapped__(family, "reference").forward(run_of(tokens)).rows()) < 1e-4


@pytest.mark.sample(0, rest=2)
@pytest.mark.parametrize("model", FAMILIES[:4], indirect=True)  # n-grams have no kernel that keeps states of their own
def test_a_slot_is_as_after_a_fresh_run(model, monkeypatch):
    texts = [Text(slot, slot) for slot in range(2)]
    play(model, texts, [(2, CHAIN[:3], 2), (1, (-1, -1, 0, 1), 3)], is_mixed=True)
    monkeypatch.setattr(model, "_n_most", 2)  # tokens of a pass: drafts begin in one and end in another
    play(model, texts, [(0, (-1, 0, -1, 2), 3), (1, CHAIN[:3], 0)])
    for text in texts:
        assert_same_state(model, text)


@pytest.mark.sample(0, rest=3)
def test_a_saved_state_comes_back_and_goes_on_with_what_is_replayed(model):
    saved = attrs.evolve(run_of(TOKENS[:5]), saves=np.int32([(0, 3)]))
    model.forward(saved)
    replayed = attrs.evolve(run_of(TOKENS[3:7], start=3), restores=np.int32([0]), saves=np.int32([(0, 0), (1, 0)]))
    model.forward(replayed)
    model.forward(run_of(TOKENS[:7], slot=SPARE))
    assert all(map(np.array_equal, memory(model, 0, 7), memory(model, SPARE, 7)))


@pytest.mark.sample(1, rest=2)
def test_what_was_accepted_is_taken_in_by_a_pass_over_others(model):
    text = Text(0, 5)
    batch, _ = batch_of([text], [text.share(1, (-1, -1, 0))])
    model.forward(batch)
    text.keep(2)
    model.forward(attrs.evolve(run_of(TOKENS[:1], slot=1), accepted=np.int32(text.accepted)))
    model.forward(run_of(text.tokens, slot=SPARE))
    assert all(map(np.array_equal, memory(model, 0, 3), memory(model, SPARE, 3)))
    kept = model.save(0, 3)
    model.restore(2, kept)
    assert all(map(np.array_equal, memory(model, 2, 3), memory(model, SPARE, 3)))


@pytest.mark.sample(0)
def test_speculation_in_trees_changes_nothing():
    path = tiny_model("lfm2-dense")

    def answers(**params):
        with Engine.load(path, backend="numba-cuda", n_ctx=64, draft_max=4, registry=REGISTRY, **params) as engine:
            results = engine.generate([[5, 6, 7, 5], [9, 8]], max_tokens=6, temperature=0.0, logprobs=1, ignore_eos=True)
        return [(result.tokens, [piece.logprob for piece in result.pieces]) for result in results], results

    plain, _ = answers(spec_type="none")
    found, results = answers(spec_type=f"draft-model:model={path},tree=2x2,backend=reference", slots=2, spec_fixed=True)
    assert found == plain
    assert sum(result.stats.n_drafted for result in results) > sum(result.stats.n_accepted for result in results) > 0


def test_what_is_kept_is_in_the_table_and_what_does_not_fit_is_refused():
    model = loaded("lfm2-dense")
    table = {line.purpose: line.n_bytes for line in model.memory_table()}
    assert table["states"] == table["saved states"] >= 4 * model.state_spec.n_bytes_per_sequence
    assert table["drafted tokens kept aside"] >= 4 * 6 * model.state_spec.n_bytes_per_sequence // 2
    with pytest.raises(CapacityError, match="7 drafted tokens of a slot, expected at most 6"):
        model.forward(attrs.evolve(run_of(TOKENS[:7]), is_drafted=np.ones(7, bool)))
