"""`draft-dflash` and `draft-dspark` draft what llama.cpp does, however the target's hidden states reach them."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest
from cpu_backends import cpu_backends
from head_rig import OPTIONS, REGISTRY, Rig
from oracles.drafts import draft_file, runs
from oracles.models import tiny_model
from toys import as_history

from augury import Engine
from augury.drafters.draft_dflash import DraftDflash, DraftDspark
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.interfaces import Ask, Pace
from augury.types import Draft

DFLASH = ("dflash-llama-swa", "dflash-qwen3", "dflash-qwen35", "dflash2-qwen3")
DSPARK = ("dspark-llama-bonus", "dspark-qwen3")


@pytest.fixture
def rig():
    made = []

    def make(*args, **options):
        made.append(Rig(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.loader.close()


@pytest.mark.parametrize("name", [*DFLASH, *DSPARK])
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
def test_they_draft_what_llama_cpp_does(rig, backend, name):
    made = rig(name, backend)
    assert type(made.drafters[0]) is (DraftDspark if name in DSPARK else DraftDflash)
    run = runs(name)[-1]
    fed = int(run.last[0])
    made.feed(0, fed)
    made.begin(run.text[: fed + 1])
    for last, drafts in zip(run.last.tolist(), run.drafts.tolist(), strict=True):
        if last > fed:
            made.feed(fed, last)
        fed = last
        assert made.draft(run.text[: last + 1], run.k) == drafts


@pytest.mark.parametrize("name", ["dflash-llama-swa", "dflash2-qwen3", "dspark-qwen3"])
@pytest.mark.parametrize("cuts", [[40], [1, 2, 3, 20, 40], list(range(1, 41))])
@pytest.mark.parametrize("slot", [0, 1])
def test_drafts_do_not_depend_on_how_the_text_came(rig, name, cuts, slot):
    made, expected = rig(name), rig(name)
    expected.feed(0, 40)
    ask = Ask(expected.drafters[0], as_history(expected.text[:41]), 8, pace=Pace(4))
    right = expected.drafters[0].draft_together([ask])[0]
    for start, end in itertools.pairwise([0, *cuts]):
        made.feed(start, end, slot)
        if start == 3:
            made.draft(made.text[: end + 1], 5, slot)  # what was drafted on the way is no part of the text
    other = 1 - slot
    made.feed(0, 20, other)
    asks = [
        Ask(made.drafters[i], as_history(made.text[: n + 1]), 8, pace=Pace(k)) for i, n, k in ((other, 20, 2), (slot, 40, 4))
    ]
    for _ in range(2):  # asked again, they say the same
        found = type(made.drafters[0]).draft_together(asks)[1]
        for field in ("tokens", "parents", "confidence"):
            assert np.array_equal(getattr(found, field), getattr(right, field))
    assert len(found) == 8
    assert found.depth == 4


def test_a_long_prompt_is_processed_as_it_comes(rig, monkeypatch):
    monkeypatch.setattr("augury.drafters.model.hidden_runner._CHUNK", 8)
    made = rig("dflash-qwen3")
    made.feed(0, 30)
    text = made.runner._texts[0]
    assert text.n_fed - text.n <= 8
    made.feed(30, 41)
    made.begin(made.text[:42])
    assert text.n == text.n_fed == 41
    for end in range(42, 89):
        made.feed(end - 1, end)
        made.draft(made.text[: end + 1], 2)
        assert text.n == text.n_fed == end
        assert text.n_told <= 72
    monkeypatch.undo()
    other = rig("dflash-qwen3")
    other.feed(0, 88)
    assert other.draft(made.text[:89], 5) == made.draft(made.text[:89], 5)


@pytest.mark.parametrize("name", ["dflash-qwen3", "dspark-qwen3"])
def test_a_prompt_that_goes_on_from_an_earlier_one_needs_its_end_alone(rig, name):
    made = rig(name)
    made.feed(0, 40)
    made.begin(made.text[:41])
    made.draft(made.text[:41], 3)
    made.drafters[0].end()
    n = made.drafters[0].n_held(as_history(made.text[:60]))
    assert n == 40
    made.feed(n - 3, 50)
    fresh = rig(name)
    fresh.feed(0, 50)
    assert made.draft(made.text[:51], 4) == fresh.draft(made.text[:51], 4)
    made.drafters[0].end()
    changed = made.text.copy()
    changed[0] = (changed[0] + 1) % 127  # of which every later hidden state depends
    assert made.drafters[0].n_held(as_history(changed[:60])) == 0
    made.feed(0, 50, text=changed)
    fresh.feed(0, 50, text=changed)
    assert made.draft(changed[:51], 4) == fresh.draft(changed[:51], 4)


def test_nothing_is_drafted_of_a_text_that_was_not_told_of(rig):
    made = rig("dflash-qwen3")
    assert made.draft(made.text[:10], 4) == []
    made.feed(0, 8)
    assert made.draft(made.text[:10], 4) == []
    assert made.drafters[0].teacher_forced(as_history(made.text[:9]), 4) is None
    assert len(made.draft(made.text[:9], 4)) == 4
    made.feed(9, 20)  # a token is missing
    assert made.draft(made.text[:21], 4) == []
    made.feed(0, 20)
    assert len(made.draft(made.text[:21], 9)) == 5  # a block has six places


def test_a_pass_that_fails_leaves_other_texts_alone(rig, monkeypatch):
    made = rig("dspark-qwen3")
    for slot in (0, 1):
        made.feed(0, 20, slot)
    right = made.draft(made.text[:21], 3, slot=1)
    with monkeypatch.context() as patch:
        patch.setattr(made.runner._context.model, "forward", lambda batch: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made.draft(made.text[:21], 3)
    assert made.draft(made.text[:21], 3) == []
    assert made.draft(made.text[:21], 3, slot=1) == right
    made.feed(0, 20)
    assert made.draft(made.text[:21], 3) == right


@pytest.mark.parametrize(("name", "n"), [("dflash-qwen3", 2), ("dspark-qwen3", 3)])
def test_a_context_that_is_full_ends_drafts(rig, name, n):
    made = rig(name)
    text = np.resize(made.text, OPTIONS.n_ctx)
    made.feed(0, OPTIONS.n_ctx - 3, text=text)
    assert len(made.draft(text[: OPTIONS.n_ctx - 2], 5)) == n
    made.feed(OPTIONS.n_ctx - 3, OPTIONS.n_ctx - 1, text=text)
    assert len(made.draft(text, 5)) == n - 2


@pytest.mark.parametrize("name", ["dflash-qwen3", "dflash2-qwen3", "dspark-qwen3"])
def test_a_draft_ends_before_a_token_that_is_improbable(rig, name):
    made = rig(name)
    made.feed(0, 40)
    drafter, ask = made.drafters[0], Ask(made.drafters[0], as_history(made.text[:41]), 4, pace=Pace(4))
    (whole,) = made.runner.draft([drafter.request(ask)])
    assert len(whole.tokens) == 4
    assert max(sum(p for _, p in each) for each in whole.candidates) <= 1.0 + 1e-9
    most = max(whole.confidence[1:])
    drafter.options = attrs.evolve(drafter.options, p_min=most)
    (cut,) = made.runner.draft([drafter.request(ask)])
    assert cut.tokens == whole.tokens[: next(i for i, p in enumerate(whole.confidence) if p < most)]


def test_what_may_follow_alternatives_of_dflash2_is_what_would_follow_them_if_they_were_drafted(rig, monkeypatch):
    made = rig("dflash2-qwen3")
    made.feed(0, 40)
    drafter, ask = made.drafters[0], Ask(made.drafters[0], as_history(made.text[:41]), 12, pace=Pace(4))
    request = drafter.request(ask)
    (written,) = made.runner.draft([request])
    for place, candidates in enumerate(written.candidates[1:], 1):
        assert np.allclose(written.lattice[place, written.tokens[place - 1]], candidates, atol=1e-6)
    other = written.candidates[0][1][0]  # as if it were drafted in the first place
    after, judged = made.runner._after, []

    def forced(logits, rows, best, hidden, before):
        before = [other] if len(judged) == 1 else before
        judged.append(after(logits, rows, best, hidden, before))
        return judged[-1]

    monkeypatch.setattr(made.runner, "_after", forced)
    (told,) = made.runner.draft([request])
    assert np.allclose(written.lattice[1, other], told.candidates[1], atol=1e-6)
    draft = drafter.made_of(written, 12)
    assert draft.depth == 4
    assert any(parent >= 4 for parent in draft.parents.tolist()), "an alternative goes on"


def test_a_head_that_tells_its_confidence_is_believed(rig):
    made = rig("dspark-qwen3")
    made.feed(0, 40)
    found = made.drafters[0].draft(as_history(made.text[:41]), 5)
    file, block = made.loader.open(draft_file("dspark-qwen3")), made.runner._block
    tensors = {
        name: tensor.data.view(np.float32).reshape(tensor.shape)
        for name, tensor in file.tensors.items()
        if name.startswith(("conf_proj", "markov_w1"))
    }
    tokens = np.int32([made.text[40], *[block.mask] * 4])
    context = made.runner._context
    passed = context.forward([context.feed(0, tokens[:0], 5, Draft(tokens))], ("output",))
    before = [made.text[40], *found.tokens[:-1]]
    inputs = np.hstack([passed.features("output"), tensors["markov_w1.weight"][before]]).astype(np.float64)
    scores = inputs @ tensors["conf_proj.weight"][0] + tensors["conf_proj.bias"]
    assert np.allclose(found.confidence, 1 / (1 + np.exp(-scores)), rtol=1e-5)


def engine(**how):
    return Engine.load(tiny_model("qwen3-dense"), backend="numba-cpu", n_ctx=192, threads=1, registry=REGISTRY, **how)


@pytest.mark.parametrize(
    ("head", "name"), [("dflash-qwen3", "draft-dflash"), ("dflash2-qwen3", "draft-dflash"), ("dspark-qwen3", "draft-dspark")]
)
def test_a_head_alone_is_recognised_by_its_file(head, name):
    with engine(draft_model=draft_file(head)) as made:
        assert made.config["spec_type"].split(";")[-1].startswith(name)
        prompt = np.random.default_rng(3).integers(0, 128, 100).tolist()
        result = made.generate(prompt, max_tokens=8, ignore_eos=True)
    assert 0 < result.stats.drafters[name].begin_s < result.stats.timings.prompt_s


@pytest.mark.parametrize(
    ("drafter", "model", "error", "match"),
    [
        ("draft-dflash", None, OptionError, "draft-dflash needs a head"),
        ("draft-dflash", "dspark-qwen3", UnsupportedError, "is a head for draft-dspark"),
        ("draft-dspark", "dflash-qwen3", UnsupportedError, "is a head for draft-dflash"),
        ("draft-dflash", "qwen3-dense", UnsupportedError, "use draft-model"),
        ("draft-model", "dflash-qwen3", UnsupportedError, "use draft-dflash"),
        ("draft-model", "dspark-qwen3", UnsupportedError, "use draft-dspark"),
        ("draft-eagle3", "dflash-qwen3", UnsupportedError, "takes heads of 'eagle3'"),
    ],
)
def test_what_does_not_fit_is_refused(drafter, model, error, match):
    path = None if model is None else tiny_model(model) if model.endswith("dense") else draft_file(model)
    with pytest.raises(error, match=match), engine(spec_type=drafter, draft_model=path):
        pass


def test_a_head_cannot_be_run_for_itself():
    with pytest.raises(ModelFileError, match="-md"):
        Engine.load(draft_file("dflash-llama-swa"), backend="reference", registry=REGISTRY)
