"""Heads draft what llama.cpp does, however the target's hidden states reach them."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest
from oracles.drafts import copying_head, draft_file, runs
from oracles.models import tiny_model
from support.cpu_backends import cpu_backends
from support.head_rig import REGISTRY
from support.toys import as_history

from augury import Engine
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.interfaces import Ask, Pace

KINDS = {
    "eagle3-gpt-oss-wide": "draft-eagle3",
    "eagle3-llama": "draft-eagle3",
    "eagle3-qwen3-d2t": "draft-eagle3",
    "eagle3-qwen35-hybrid": "draft-eagle3",
    "eagle3-qwen3moe-shared": "draft-eagle3",
    "dflash-llama-swa": "draft-dflash",
    "dflash-qwen3": "draft-dflash",
    "dflash-qwen35": "draft-dflash",
    "dflash2-qwen3": "draft-dflash",
    "dspark-llama-bonus": "draft-dspark",
    "dspark-qwen3": "draft-dspark",
}
ONE_EACH = ("eagle3-llama", "dflash-qwen3", "dspark-qwen3")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
def test_they_draft_what_llama_cpp_does(rig, backend, name):
    made = rig(name, backend)
    assert made.drafters[0].name == KINDS[name]
    run = runs(name)[-1]
    fed = int(run.last[0])
    made.feed(0, fed)
    made.begin(run.text[: fed + 1])
    for last, drafts in zip(run.last.tolist(), run.drafts.tolist(), strict=True):
        if last > fed:
            made.feed(fed, last)
        fed = last
        assert made.draft(run.text[: last + 1], run.k) == drafts


@pytest.mark.parametrize("name", ["eagle3-qwen3-d2t", "dflash-llama-swa", "dflash2-qwen3", "dspark-qwen3"])
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
    for _ in range(2):  # asked again, they give the same drafts
        found = made.drafters[0].draft_together(asks)[1]
        for field in ("tokens", "parents", "confidence"):
            assert np.array_equal(getattr(found, field), getattr(right, field))
    assert len(found) == 8
    assert found.parents is not None
    assert found.depth == 4


@pytest.mark.parametrize("name", [*ONE_EACH, "dflash2-qwen3"])
def test_a_window_shows_the_last_tokens_alone(rig, name):
    drafted = {}
    for window in (10, 0):
        for is_changed in (False, True):
            made = rig(name, window=window)
            if is_changed:
                made.fed = {each: np.concatenate([rows[29::-1], rows[30:]]) for each, rows in made.fed.items()}
            drafted[window, is_changed] = made.drafted(41, 5)
    assert drafted[10, False] == drafted[10, True] == rig(name, "reference", window=10).drafted(41, 5)
    assert drafted[0, False] != drafted[0, True]
    assert drafted[0, False] == rig(name, window=60).drafted(41, 5)


@pytest.mark.parametrize("name", ["eagle3-llama", "dflash-qwen3"])
def test_a_long_prompt_is_processed_as_it_comes_and_features_are_kept_no_longer_than_needed(rig, name, monkeypatch):
    monkeypatch.setattr("augury.drafters.model.part_runner._CHUNK", 8)
    made = rig(name)
    made.feed(0, 30)
    text = made.runner._texts[0]
    assert text.n_fed - text.n <= 8
    made.feed(30, 41)
    assert text.n_fed - text.n <= 8
    assert sum(len(tokens) for _, tokens, _ in text.waiting) <= 8
    made.begin(made.text[:42])
    assert text.n == text.n_fed - made.runner.lag == 41 - made.runner.lag
    for end in range(42, 89):
        made.feed(end - 1, end)
        made.draft(made.text[: end + 1], 2)
        assert text.n == text.n_fed == end
        assert text.n_fed - text.fed.first <= 72
    monkeypatch.undo()
    other = rig(name)
    other.feed(0, 88)
    assert other.draft(made.text[:89], 5) == made.draft(made.text[:89], 5)


@pytest.mark.parametrize("name", ONE_EACH)
def test_rounds_in_which_nothing_is_drafted_are_looked_at_together(rig, name, monkeypatch):
    made, other, looks = rig(name), rig(name), []
    encoder, joined = made.runner.encoder, made.runner.encoder.joined
    monkeypatch.setattr(
        encoder, "joined", lambda features: [looks.append(len(each)) for each in features.values()] and joined(features)
    )
    for start, end in itertools.pairwise([0, 20, *range(21, 31)]):
        made.feed(start, end)
    assert looks == []
    other.feed(0, 30)
    assert made.draft(made.text[:31], 5) == other.draft(made.text[:31], 5)
    assert set(looks) == {30}


@pytest.mark.parametrize("name", ONE_EACH)
def test_only_keys_and_values_of_a_prompt_are_computed(rig, name, monkeypatch):
    made = rig(name)
    model = made.runner._context.model
    forward, batches = model.forward, []
    monkeypatch.setattr(model, "forward", lambda batch: batches.append(batch) or forward(batch))
    made.feed(0, 40)
    made.begin(made.text[:41])
    made.draft(made.text[:41], 1)
    n = 40 - made.runner.lag
    assert [len(batch.tokens) for batch in batches if not len(batch.rows)] == [n]
    assert not batches[0].features
    assert sum(len(batch.rows) for batch in batches[1:]) == 1


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_prompt_that_goes_on_from_an_earlier_one_needs_its_end_alone(rig, name):
    made, fresh = rig(name), rig(name)
    made.feed(0, 40)
    made.begin(made.text[:41])
    made.draft(made.text[:41], 3)
    made.drafters[0].end()
    assert made.drafters[0].n_held(as_history(made.text[:60])) == 40  # or a target could not go on from a recurrent state
    made.feed(37, 50)
    fresh.feed(0, 50)
    assert made.draft(made.text[:51], 4) == fresh.draft(made.text[:51], 4)
    made.drafters[0].end()
    changed = made.text.copy()
    changed[0] = (changed[0] + 1) % 127  # of which every later hidden state depends
    assert made.drafters[0].n_held(as_history(changed[:60])) == 0
    made.feed(0, 50, text=changed)
    fresh.feed(0, 50, text=changed)
    assert made.draft(changed[:51], 4) == fresh.draft(changed[:51], 4)


@pytest.mark.parametrize("name", ONE_EACH)
def test_what_waited_of_a_text_is_processed_at_its_end(rig, name):
    made, fresh, other = rig(name), rig(name), rig(name)
    for each in (made, other):
        each.feed(0, 40)
        each.begin(made.text[:41])
        each.feed(40, 60)  # while others draft
        each.drafters[0].end()
    n = made.drafters[0].n_held(as_history(made.text[:70]))
    assert n == 60
    made.feed(n, 65)
    fresh.feed(0, 65)
    assert made.draft(made.text[:66], 4) == fresh.draft(made.text[:66], 4)
    changed = made.text.copy()
    changed[50] = (changed[50] + 1) % 127
    assert other.drafters[0].n_held(as_history(changed[:70])) == 50


@pytest.mark.parametrize(("name", "n"), [("eagle3-llama", 9), ("dflash-qwen3", 5)])  # a block has six places
def test_nothing_is_drafted_after_tokens_that_were_not_fed(rig, name, n):
    made = rig(name)
    assert made.draft(made.text[:10], 4) == []
    made.feed(0, 8)
    assert made.draft(made.text[:10], 4) == []
    assert len(made.draft(made.text[:9], 4)) == 4
    made.feed(9, 20)  # a token is missing
    assert made.draft(made.text[:21], 4) == []
    made.feed(0, 20)
    assert len(made.draft(made.text[:21], 9)) == n


@pytest.mark.parametrize(("n_kept", "is_known"), [(60, True), (56, True), (53, True), (52, False), (16, False)])
@pytest.mark.parametrize("name", ["eagle3-llama", "dflash-qwen3"])
def test_nothing_is_drafted_where_less_is_left_of_a_slot_than_features_are_kept(rig, name, n_kept, is_known, monkeypatch):
    made, fresh = rig(name), rig(name)
    made.feed(0, 85)
    made.draft(made.text[:86], 3)
    context = made.runner._context
    assert made.runner._text(0).fed.first == 53
    truncate = context.truncate
    monkeypatch.setattr(context, "truncate", lambda slot, n: truncate(slot, min(n, n_kept)))  # as by whole blocks
    made.feed(60, 85)
    fresh.feed(0, 85)
    assert made.draft(made.text[:86], 3) == (fresh.draft(made.text[:86], 3) if is_known else [])


@pytest.mark.parametrize("name", ["eagle3-llama", "dspark-qwen3"])
def test_a_pass_that_fails_leaves_other_texts_alone(rig, name, monkeypatch):
    made = rig(name)
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


@pytest.mark.parametrize("name", ["eagle3-llama", "dflash-qwen3", "dflash2-qwen3", "dspark-qwen3"])
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


def engine(target="qwen3-dense", **options):
    return Engine.load(tiny_model(target), backend="numba-cpu", n_ctx=192, threads=1, registry=REGISTRY, **options)


@pytest.mark.parametrize(
    ("target", "head", "name"),
    [
        ("llama-dense", None, "draft-eagle3"),
        ("qwen3-dense", "dflash-qwen3", "draft-dflash"),
        ("qwen3-dense", "dflash2-qwen3", "draft-dflash"),
        ("qwen3-dense", "dspark-qwen3", "draft-dspark"),
    ],
)
def test_a_head_alone_is_recognised_by_its_file_and_its_work_on_a_prompt_is_counted(target, head, name):
    with engine(target, draft_model=copying_head(target) if head is None else draft_file(head)) as made:
        assert made.config["spec_type"].split(";")[-1].startswith(name)
        prompt = np.random.default_rng(3).integers(0, 128, 100).tolist()
        stats = made.generate(prompt, max_tokens=8, ignore_eos=True).stats
    assert 0 < stats.drafters[name].begin_s < stats.timings.prompt_s


@pytest.mark.parametrize(
    ("drafter", "model", "error", "match"),
    [
        ("draft-eagle3", None, OptionError, "draft-eagle3 needs a head"),
        ("draft-dflash", None, OptionError, "draft-dflash needs a head"),
        ("draft-dflash", "dspark-qwen3", UnsupportedError, "is a head for draft-dspark"),
        ("draft-dspark", "dflash-qwen3", UnsupportedError, "is a head for draft-dflash"),
        ("draft-eagle3", "qwen3-dense", UnsupportedError, "use draft-model"),
        ("draft-dflash", "qwen3-dense", UnsupportedError, "use draft-model"),
        ("draft-model", "eagle3-llama", UnsupportedError, "use draft-eagle3"),
        ("draft-model", "eagle3-gpt-oss-wide", UnsupportedError, "use draft-eagle3"),
        ("draft-model", "dflash-qwen3", UnsupportedError, "use draft-dflash"),
        ("draft-model", "dspark-qwen3", UnsupportedError, "use draft-dspark"),
        ("draft-eagle3", "dflash-qwen3", UnsupportedError, "takes heads of 'eagle3'; use draft-dflash"),
        ("draft-dspark", "eagle3-llama", UnsupportedError, "takes heads of 'dflash'; use draft-eagle3"),
    ],
)
def test_what_does_not_fit_is_refused(drafter, model, error, match):
    target = "llama-dense" if model is not None and model.startswith("eagle3") else "qwen3-dense"
    path = None if model is None else tiny_model(model) if model.endswith("dense") else draft_file(model)
    with pytest.raises(error, match=match), engine(target, spec_type=drafter, draft_model=path):
        pass


@pytest.mark.parametrize(
    ("name", "error"),
    [("eagle3-gpt-oss-wide", UnsupportedError), ("eagle3-llama", ModelFileError), ("dflash-llama-swa", ModelFileError)],
)
def test_a_head_cannot_be_run_for_itself(name, error):
    with pytest.raises(error, match="-md"):
        Engine.load(draft_file(name), backend="reference", registry=REGISTRY)
