"""Passes through some of the layers, on every backend: of the first ones what a model of these alone computes, to the bit."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest
from oracles.drafts import DRAFTS, draft_file
from oracles.models import nmse, tiny_file, tiny_model, with_layers
from oracles.passes import joined, run_of, tree_of
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.batch import Batch
from augury.errors import OptionError
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.passes import Pass
from augury.types import ModelOptions

REGISTRY = Registry.discover()
N_LAYERS = 4
NAMES = ("llama-dense", "qwen3-dense", "gemma3-dense", "talkie-dense", "llama-dense-q4_k")  # talkie adds its embedding again
SIZES = {"reference": (1, 2, 5), "numba-cpu": (1, 2, 5, 300)}  # 300: more than are computed at once


@pytest.fixture(scope="module", params=cpu_backends(REGISTRY))
def load(request):
    """Loads a model of so many layers, once for all tests of a backend."""
    backend = REGISTRY.backends[request.param]
    loaded = {}

    def get(name, n_layers=N_LAYERS):
        if (name, n_layers) not in loaded:
            file = with_layers(tiny_file(name), n_layers)
            options = ModelOptions(n_slots=2, n_ctx=320, threads=2)
            loaded[name, n_layers] = backend(backend.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())
        return loaded[name, n_layers]

    get.sizes = SIZES.get(request.param, (1, 2, 5))
    yield get
    for model in loaded.values():
        model.close()


def some_tokens(n, seed=7):
    return np.random.default_rng(seed).integers(0, 128, n).astype(np.int32)


def rows(model, batch, n_layers=None):
    return model.forward(attrs.evolve(batch, layers=None if n_layers is None else (0, n_layers))).rows().copy()


@pytest.mark.sample(12)
@pytest.mark.parametrize("n_layers", range(1, N_LAYERS + 1))
@pytest.mark.parametrize("name", NAMES)
def test_the_first_layers_and_the_output_are_a_model_of_these_layers(load, name, n_layers):
    whole, cut = load(name), load(name, n_layers)
    for size in load.sizes:
        batch = run_of(some_tokens(size))
        assert np.array_equal(rows(whole, batch, n_layers), rows(cut, batch))
    assert not np.array_equal(rows(whole, run_of(some_tokens(5)), 1), rows(whole, run_of(some_tokens(5))))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "talkie-dense"])  # it needs its tokens once more
def test_the_embedding_is_what_the_first_layer_sees(load, name):
    model = load(name)
    for size in load.sizes:
        batch = run_of(some_tokens(size))
        passed = model.forward(attrs.evolve(batch, features=("embedding",)))
        right, embedded = passed.rows().copy(), passed.features("embedding").copy()
        nobody = attrs.evolve(batch, tokens=np.zeros_like(batch.tokens), hidden=embedded)
        assert np.array_equal(model.forward(nobody).rows(), right)
    for wrong in (attrs.evolve(batch, hidden=embedded), attrs.evolve(batch, layers=(1, 2), hidden=embedded)):
        with pytest.raises(OptionError, match="feature 'embedding'"):
            model.forward(attrs.evolve(wrong, features=("embedding",)))


OF_EVERY_KIND = (
    "llama-dense",
    "gemma3-dense",
    "qwen35-dense",
    "falcon-h1-dense",
    "arctic-moe",
    "deepseek2-moe",
    "eagle3-llama",
)


@pytest.mark.parametrize("name", [*OF_EVERY_KIND, "eagle3-llama"])
def test_a_pass_that_nobody_reads_keeps_what_others_keep(name):
    file = ModelFile.open(draft_file(name) if name in DRAFTS else tiny_model(name))
    file.borrow_from(tiny_file("llama-dense"))
    backend, plan = REGISTRY.backends["numba-cpu"], plan_of(file, REGISTRY)
    model = backend(backend.options_class()).load(file, plan, ModelOptions(n_slots=2, n_ctx=64, threads=2), Progress())
    tokens, hidden = some_tokens(40), None
    if plan.hidden_of:
        hidden = np.random.default_rng(3).normal(size=(40, plan.embedding.n_embd)).astype(np.float32)
    for cuts in ([0, 40], [0, 1, 3, 40]):
        for slot, rows_of in ((0, 1), (1, 0)):
            for start, end in itertools.pairwise(cuts):
                given = None if hidden is None else hidden[start:end]
                wanted = np.arange(rows_of, dtype=np.int32)
                model.forward(Batch.chain(tokens[start:end], slot=slot, start=start, rows=wanted, hidden=given)).wait()
        read, unread = (model.slot_memory(slot, 40) for slot in (0, 1))
        assert all(np.array_equal(a, b) for a, b in zip(read, unread, strict=True))
    batch = Batch.chain(tokens[:9], hidden=None if hidden is None else hidden[:9], rows=np.int32([8]))
    unread = attrs.evolve(batch, rows=batch.rows[:0])
    n_read, n_unread = (len(model.profile(each)) for each in (batch, unread))
    assert n_unread < n_read - 2
    if hidden is None and "layer.0" in model.features:  # which is there before the last layer begins
        read, unread = (attrs.evolve(each, features=("layer.0",)) for each in (batch, unread))
        right = model.forward(read).features("layer.0").copy()
        assert np.array_equal(model.forward(unread).features("layer.0"), right)
        assert len(model.profile(unread)) < len(model.profile(read)) - 2
    model.close()


@pytest.mark.parametrize("name", NAMES)
def test_they_go_on_from_what_a_full_pass_stored(load, name):
    whole, cut = load(name), load(name, 2)
    before, after = some_tokens(9), some_tokens(3, seed=8)
    rows(whole, run_of(before))
    rows(cut, run_of(before))
    for i, token in enumerate(after, len(before)):
        assert np.array_equal(rows(whole, run_of([token], start=i), 2), rows(cut, run_of([token], start=i)))


@pytest.mark.parametrize("name", NAMES)
def test_a_full_pass_writes_over_what_they_stored(load, name):
    model = load(name)
    before, after = some_tokens(9), some_tokens(6, seed=8)
    right = rows(model, run_of(np.concatenate([before, after])))[9:]

    rows(model, run_of(before))
    rows(model, run_of(some_tokens(6, seed=9), start=9), 3)
    first = rows(model, run_of(after[:4], start=9))
    rows(model, run_of(after[4:], start=13), 1)  # the very tokens that come
    rest = rows(model, run_of(after[4:], start=13))

    assert np.array_equal(np.concatenate([first, rest]), right)


@pytest.mark.parametrize("name", NAMES)
def test_states_that_are_moved_before_them_are_moved_in_all_layers(load, name):
    model = load(name)
    held, last = some_tokens(4), run_of([7], start=3)
    rows(model, joined(run_of(held), run_of(held, slot=1)))

    right = rows(model, attrs.evolve(last, accepted=np.int32([[0, 3, 2]])))
    rows(model, attrs.evolve(run_of([9], slot=1, start=3), accepted=np.int32([[1, 3, 2]])), 1)

    assert np.array_equal(rows(model, run_of([7], slot=1, start=3)), right)


def test_slots_share_them(load):
    model = load("llama-dense")
    texts = some_tokens(4), some_tokens(3, seed=8)
    alone = [rows(model, run_of(text, slot=slot), 2) for slot, text in enumerate(texts)]

    together = rows(model, joined(run_of(texts[1], slot=1), run_of(texts[0], slot=0)), 2)

    assert np.array_equal(together, np.concatenate([alone[1], alone[0]]))


@pytest.mark.parametrize("n_layers", [-1, 0, N_LAYERS + 1])
def test_a_number_of_layers_that_the_model_has_not_is_refused(load, n_layers):
    with pytest.raises(OptionError, match="expected some of 0 to 4"):
        rows(load("llama-dense"), run_of([1]), n_layers)


def through(model, batch, cut, names=()):
    """Logits and features of a pass in two parts, as two stages of a pipeline compute it."""
    names = tuple(name for name in names if name != f"layer.{cut - 1}")
    is_first = [name.startswith("layer.") and int(name[6:]) < cut for name in names]
    first = tuple(name for name, is_of_first in zip(names, is_first, strict=True) if is_of_first)
    rest = tuple(name for name in names if name not in first)
    sent = model.forward(attrs.evolve(batch, layers=(0, cut), rows=batch.rows[:0], features=(*first, f"layer.{cut - 1}")))
    assert sent.rows().shape == (0, 128)
    found = {name: sent.features(name) for name in (*first, f"layer.{cut - 1}")}
    hidden = found[f"layer.{cut - 1}"]
    passed = model.forward(attrs.evolve(batch, layers=(cut, N_LAYERS), hidden=hidden, features=rest))
    return passed.rows().copy(), found | {name: passed.features(name) for name in rest}


ALL = (*(f"layer.{i}" for i in range(N_LAYERS)), "output")
BATCHES = {
    "a token": run_of([5]),
    "two": run_of([5, 7]),
    "a chain": run_of(some_tokens(9), rows=[2, 8]),
    "slots apart": attrs.evolve(
        run_of(some_tokens(6)), slots=np.int32([1, 0, 1, 0, 0, 1]), positions=np.int32([0, 0, 1, 1, 2, 2])
    ),
    "a tree": tree_of(some_tokens(5), [-1, 0, 0, 2, -1]),
    "many": None,  # as many as the backend's sizes say
}


@pytest.mark.parametrize("name", ["llama-dense-q4_k", "gemma3-dense"])
@pytest.mark.parametrize("told", BATCHES)
def test_a_pass_in_two_parts_is_the_whole_pass_to_the_bit(load, name, told):
    model, batch = load(name), BATCHES[told] or run_of(some_tokens(load.sizes[-1]))
    plain = model.forward(batch).rows().copy()
    passed = model.forward(attrs.evolve(batch, features=ALL))
    right, features = passed.rows().copy(), {each: passed.features(each).copy() for each in ALL}
    assert np.array_equal(right, plain), "features cost no bit"
    for cut in range(1, N_LAYERS + 1):  # the last one is before the output
        logits, found = through(model, batch, cut, ALL)
        assert np.array_equal(logits, right)
        assert all(np.array_equal(found[each], features[each]) for each in ALL)


@pytest.mark.parametrize("name", ["llama-dense-q4_k", "gemma3-dense"])
def test_features_do_not_depend_on_company(load, name):
    model, tokens, others = load(name), some_tokens(7), some_tokens(4, seed=8)
    batch = attrs.evolve(run_of(tokens), features=ALL)
    passed = model.forward(batch)
    right = {each: passed.features(each).copy() for each in ALL}
    beside = joined(run_of(others, slot=1), run_of(tokens))
    shared = model.forward(attrs.evolve(beside, features=ALL[::-1], rows=beside.rows[:1]))
    for each in ALL:
        assert (right[each].dtype, right[each].shape) == (np.float32, (7, model.features[each]))
        assert np.array_equal(shared.features(each)[4:], right[each])
    for i, token in enumerate(tokens):  # one by one, which is computed in another way
        alone = model.forward(attrs.evolve(run_of([token], start=i), features=ALL))
        assert all(np.array_equal(alone.features(each)[0], right[each][i]) for each in ALL)
    # the paths of a tree: that of tokens 0, 2 and 3 is a chain
    model.forward(run_of(tokens))
    tree = model.forward(attrs.evolve(tree_of([9, 8, 7, 6], [-1, 0, 0, 2], start=7), features=ALL))
    of_tree = {each: tree.features(each)[[0, 2, 3]].copy() for each in ALL}
    chain = model.forward(attrs.evolve(run_of([9, 7, 6], start=7), features=ALL))
    assert all(np.array_equal(chain.features(each), of_tree[each]) for each in ALL)


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_features_are_the_residual_stream_and_what_the_output_reads(load, name):
    model, batch, file = load(name), run_of(some_tokens(6)), tiny_file(name)
    norm, matrix = (file.tensors[each] for each in ("output_norm.weight", "output.weight"))
    weight = norm.data.view(np.float32).astype(np.float64)
    for end in range(1, N_LAYERS + 1):
        last = f"layer.{end - 1}"
        passed = model.forward(attrs.evolve(batch, layers=(0, end), features=("output", last)))
        x = passed.features(last).astype(np.float64)
        normed = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-6) * weight
        assert nmse(passed.features("output"), normed) < 1e-8
        logits = normed @ matrix.data.view(np.float32).reshape(matrix.shape).astype(np.float64).T
        assert nmse(passed.rows(), logits) < 1e-2


def test_logits_of_fewer_tokens_keep_their_features(load):
    passed = load("llama-dense").forward(attrs.evolve(run_of([1, 2]), features=("output",)))
    for narrow in (passed.first(100), Pass.first(passed, 100)):
        assert narrow.rows().shape == (2, 100)
        assert np.array_equal(narrow.features("output"), passed.features("output"))
        assert narrow.wait() is None


HIDDEN = np.zeros((1, 256), np.float32)
WRONG = {
    "feature 'layer.4'": {"features": ("layer.4",)},
    "feature 'entropy'": {"features": ("entropy",)},
    "feature 'layer.0' of a pass through layers 1 to 4": {"features": ("layer.0",), "layers": (1, 4), "hidden": HIDDEN},
    "hidden states for a pass from layer 1 on are missing": {"layers": (1, 4)},
    "are float64 of shape": {"layers": (1, 4), "hidden": HIDDEN.astype(np.float64)},
    "expected float32 of shape .1, 256.": {"layers": (1, 4), "hidden": HIDDEN[:, 1:]},
    "a pass through layers 2 to 2": {"layers": (2, 2)},
    "a pass through layers 3 to 5": {"layers": (3, 5), "hidden": HIDDEN},
}


@pytest.mark.parametrize("told", WRONG)
def test_what_the_model_does_not_have_is_refused(load, told):
    model = load("llama-dense")
    with pytest.raises(OptionError, match=told):
        model.forward(attrs.evolve(run_of([1]), **WRONG[told]))
    with pytest.raises(OptionError, match="feature 'output' of a pass that was not asked for it"):
        model.forward(run_of([1])).features("output")


def test_a_pass_that_begins_with_one_of_two_streams_is_refused(load):
    model, batch = load("hrm_text-dense", 6), run_of(some_tokens(3))
    given = attrs.evolve(batch, hidden=np.zeros((3, 256), np.float32))
    assert list(model.features) == ["output"]
    for first, end in itertools.combinations(range(7), 2):
        if first:
            with pytest.raises(OptionError, match=f"from layer {first} on, but .* begin or trade residual streams"):
                model.forward(attrs.evolve(batch, layers=(first, end)))
        with pytest.raises(OptionError, match=f"from layer {first} on with hidden states, but .* begin or trade"):
            model.forward(attrs.evolve(given, layers=(first, end)))
    assert model.forward(attrs.evolve(batch, layers=(0, 2))).rows().shape == (3, 128)
