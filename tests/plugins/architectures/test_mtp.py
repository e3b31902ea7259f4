"""Layers that predict further tokens, on every backend that computes them: what they draft is what llama.cpp drafts."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest
from oracles.drafts import MTP, draft_file, error, mtp_file, runs
from oracles.models import altered
from oracles.passes import hidden_states, mtp

from augury import Registry
from augury.batch import Batch
from augury.errors import OptionError
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
BACKENDS = ("reference", "numba-cpu")
LIMIT = 1e-9


def load(backend, name, *, plan=None, **options):
    file, kind = mtp_file(name), REGISTRY.backends[backend]
    given = {"n_slots": 2, "n_ctx": 256, "cache_type_k": "f32", "cache_type_v": "f32", "threads": 1, "draft_max": 8, **options}
    return kind(kind.options_class()).load(file, plan or plan_of(file, REGISTRY), ModelOptions(**given), Progress())


def drafted(model, run):
    """The drafts of each round, and the logits of the last token; of several layers each drafts one."""
    hidden, n_layers, keeps = hidden_states(model, run.text), len(model.info.heads), "assistant" not in model.info.heads
    n_done = [0] * n_layers
    for last in run.last.tolist():
        tokens, made, n = [], hidden[:0], last + 1
        for i in range(run.k):
            if i and n_layers == 1:
                logits, given = mtp(model, tokens[-1:], last + i * keeps, made[-1:])
            else:
                start, n_done[i] = n_done[i] if keeps else last, n
                fed, states = np.int32([*run.text[start:n], *tokens]), np.concatenate([hidden[start:n], made])
                logits, given = mtp(model, fed, start, states, rows=np.int32([len(fed) - 1]), layer=i)
            tokens.append(int(logits[-1].argmax()))
            made = np.concatenate([made, given[-1:]])
        yield tokens, logits[-1]


@pytest.mark.sample(15)
@pytest.mark.parametrize("name", MTP)
@pytest.mark.parametrize("backend", BACKENDS)
def test_drafts_and_logits_are_those_of_llama_cpp(backend, name):
    model = load(backend, name)
    for run in runs(name):
        found, logits = zip(*drafted(model, run), strict=True)
        assert list(found) == run.drafts.tolist()
        assert error(name, logits, run.logits) < LIMIT
    model.close()


@pytest.mark.parametrize("name", MTP)
def test_what_is_drafted_does_not_depend_on_cuts_slots_or_threads(name):
    text, model, other = runs(name)[0].text[:40], load("numba-cpu", name), load("numba-cpu", name, threads=2)
    hidden, first = hidden_states(model, text)[:-1], int("assistant" in model.info.heads)
    right = mtp(model, text[first:], first, hidden[first:])

    for computing, slot, cuts in ((model, 1, (2, 3, 5, 6)), (other, 0, (17, 18)), (other, 1, ())):
        if first:
            hidden_states(computing, text, slot)
        spans = itertools.pairwise((first, *cuts, 40))
        parts = [mtp(computing, text[a:b], a, hidden[a:b], slot=slot) for a, b in spans]
        assert np.array_equal(np.concatenate([logits for logits, _ in parts]), right[0])
        assert np.array_equal(np.concatenate([given for _, given in parts]), right[1])
    tokens, hidden = text[first : first + 9], hidden[first : first + 9]
    batch = Batch.chain(tokens, part=next(iter(model.info.heads)), hidden=np.ascontiguousarray(hidden))
    both = attrs.evolve(  # of two slots, in turns
        batch,
        tokens=np.repeat(tokens, 2),
        slots=np.tile(np.array([1, 0], np.int32), 9),
        positions=np.repeat(np.arange(9, dtype=np.int32), 2),
        rows=np.arange(18, dtype=np.int32),
        hidden=np.repeat(hidden, 2, axis=0),
    )
    found = model.forward(both).rows()
    assert np.array_equal(found[::2], right[0][:9])
    assert np.array_equal(found[1::2], right[0][:9])
    model.close()
    other.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["mtp-qwen35", "mtp-deepseek2", "mtp-deepseek4"])
def test_the_model_computes_the_same_bits_beside_it(backend, name):
    text, model = runs(name)[0].text[:9], load(backend, name)  # the reference takes its time for deepseek4
    plain = load(backend, name, plan=plan_of(ModelFile.open(draft_file(name)), REGISTRY).without_mtp())
    right = plain.forward(Batch.chain(text)).rows().copy()
    hidden = hidden_states(model, text[:5])

    mtp(model, text[:5], 0, hidden[:5])
    mtp(model, text[3:6], 5, hidden[3:6])  # a draft
    found = model.forward(Batch.chain(text[5:], start=5)).rows()

    assert np.array_equal(found, right[5:])
    assert plain.state_spec.n_bytes_per_position < model.state_spec.n_bytes_per_position
    assert plain.state_spec.n_bytes_per_sequence == model.state_spec.n_bytes_per_sequence


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_draft_that_moves_leaves_what_was_computed_of_the_text(backend):
    """Accepted tokens of a tree come to their places in the model's layers; the others have computed theirs already."""
    text, model = runs("mtp-glm4moe")[0].text[:12], load(backend, "mtp-glm4moe")
    hidden = hidden_states(model, text)
    right, _ = mtp(model, text, 0, hidden[:12])
    moved = Batch.chain(text[11:], start=11, accepted=np.array([[0, 11, 9]], np.int32))

    mtp(model, text[:11], 0, hidden[:11])
    model.forward(moved)
    found, _ = mtp(model, text[11:], 11, hidden[11:12])

    assert np.array_equal(found, right[11:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_that_the_backend_does_not_know_is_computed_by_its_operations(backend):
    file, text = ModelFile.open(draft_file("mtp-deepseek4")), runs("mtp-deepseek4")[0].text[:5]
    plan = plan_of(file, REGISTRY)
    strange = type("StrangeInput", (type(plan.mtp[0].input),), {})
    changed = attrs.evolve(plan.mtp[0], input=strange(**attrs.asdict(plan.mtp[0].input, recurse=False)))

    found, right = (
        mtp(model, text, 0, hidden_states(model, text)[:-1])[0]
        for model in (load(backend, "mtp-deepseek4", plan=each) for each in (attrs.evolve(plan, mtp=(changed,)), plan))
    )

    assert np.array_equal(found, right)


def test_a_layer_with_its_own_embedding_and_output_uses_them():
    file, text = ModelFile.open(draft_file("mtp-glm4moe")), runs("mtp-glm4moe")[0].text[:9]
    rng, shape = np.random.default_rng(1), file.tensor("token_embd.weight").shape
    arrays = {f"blk.2.nextn.{name}.weight": rng.standard_normal(shape) for name in ("embed_tokens", "shared_head_head")}
    found = {}
    for given in ((), *((name,) for name in arrays)):
        changed = altered(file, arrays={name: arrays[name] for name in given})
        kind = REGISTRY.backends["reference"]
        plan, options = plan_of(changed, REGISTRY), ModelOptions(n_ctx=64, threads=1)
        model = kind(kind.options_class()).load(changed, plan, options, Progress())
        found[given] = mtp(model, text, 0, hidden_states(model, text)[:-1])[0]
    rows = list(found.values())
    assert not any(np.array_equal(a, b) for i, a in enumerate(rows) for b in rows[:i])


def test_a_pass_is_through_one_such_layer_with_hidden_states():
    model = load("reference", "mtp-qwen35")
    hidden = np.zeros((2, model.features["output"]), np.float32)
    for params, told in (
        ({"part": "main", "layers": (2, 3)}, "layers 2 to 3 of main, expected some of 0 to 2 of main"),
        ({"part": "mtp.0", "layers": (2, 3)}, "layers 2 to 3 of mtp.0, expected some of 0 to 2 of main"),
        ({"part": "mtp.1"}, "part 'mtp.1', of a model that has main, mtp.0"),
        ({"part": "mtp.0", "hidden": None}, "from layer 2 on are missing"),
        ({"part": "mtp.0", "hidden": hidden[:, 1:]}, "from layer 2 on are float32 of shape"),
    ):
        with pytest.raises(OptionError, match=told):
            model.forward(Batch.chain([1, 2], **{"hidden": hidden, **params}))


def test_layers_that_are_not_complete_are_left_out():
    file = ModelFile.open(draft_file("mtp-qwen35"))
    assert not plan_of(altered(file, without=("blk.2.nextn.eh_proj.weight",)), REGISTRY).mtp
    assert len(plan_of(file, REGISTRY).mtp) == 1
