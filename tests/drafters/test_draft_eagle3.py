"""`draft-eagle3` drafts what llama.cpp does, however the target's hidden states reach it, and owes nobody anything."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest
from cpu_backends import cpu_backends
from head_rig import OPTIONS, REGISTRY, Rig
from oracles.drafts import copying_head, draft_file, runs
from oracles.models import tiny_file, tiny_model
from toys import as_history

from augury import Engine
from augury.drafters.draft_eagle3 import DraftEagle3
from augury.drafters.model.head_drafter import HeadOptions
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.interfaces import Ask, Pace
from augury.types import Verdict

NAMES = [f"eagle3-{name}" for name in ("gpt-oss-wide", "llama", "qwen3-d2t", "qwen35-hybrid", "qwen3moe-shared")]


@pytest.fixture
def rig():
    made = []

    def make(*args, **options):
        made.append(Rig(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.loader.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
def test_it_drafts_what_llama_cpp_does(rig, backend, name):
    made = rig(name, backend)
    run = runs(name)[1]
    fed = int(run.last[0])
    made.feed(0, fed)
    made.begin(run.text[: fed + 1])
    for last, drafts in zip(run.last.tolist(), run.drafts.tolist(), strict=True):
        if last > fed:
            made.feed(fed, last)
        fed = last
        assert made.draft(run.text[: last + 1], run.k) == drafts


@pytest.mark.parametrize("cuts", [[40], [1, 2, 3, 20, 40], list(range(1, 41))])
@pytest.mark.parametrize("slot", [0, 1])
def test_drafts_do_not_depend_on_how_the_text_came(rig, cuts, slot):
    made = rig("eagle3-qwen3-d2t")
    expected = Rig("eagle3-qwen3-d2t")
    expected.feed(0, 40)
    right = expected.drafters[0].draft_together([Ask(expected.drafters[0], as_history(expected.text[:41]), 8, pace=Pace(4))])[0]
    expected.loader.close()
    for start, end in itertools.pairwise([0, *cuts]):
        made.feed(start, end, slot)
        if start == 3:
            made.draft(made.text[: end + 1], 5, slot)  # what was drafted on the way is no part of the text
    other = 1 - slot
    made.feed(0, 20, other)
    asks = [Ask(made.drafters[i], as_history(made.text[: n + 1]), 8, pace=Pace(4)) for i, n in ((other, 20), (slot, 40))]
    for _ in range(2):  # asked again, it says the same
        found = DraftEagle3.draft_together(asks)[1]
        for field in ("tokens", "parents", "confidence"):
            assert np.array_equal(getattr(found, field), getattr(right, field))
    assert len(found) == 8
    assert found.parents is not None
    assert found.depth == 4


def test_a_long_prompt_is_processed_as_it_comes(rig, monkeypatch):
    monkeypatch.setattr("augury.drafters.model.hidden_runner._CHUNK", 8)
    made = rig("eagle3-llama")
    made.feed(0, 30)
    text = made.runner._texts[0]
    assert text.n_fed - text.n <= 8
    made.feed(30, 41)
    assert text.n_fed - text.n <= 8
    made.begin(made.text[:42])
    assert text.n == 40
    drafted = made.draft(made.text[:42], 4)
    assert text.n == 41
    monkeypatch.undo()
    other = rig("eagle3-llama")
    other.feed(0, 41)
    assert other.draft(made.text[:42], 4) == drafted


def test_what_was_told_is_kept_no_longer_than_it_is_needed(rig):
    made = rig("eagle3-llama")
    made.feed(0, 40)
    made.draft(made.text[:41], 2)
    for end in range(41, 90):
        made.feed(end - 1, end)
        made.draft(made.text[: end + 1], 2)
        assert made.runner._texts[0].n_told <= 72


def test_it_says_what_it_would_have_drafted(rig):
    made = rig("eagle3-llama")
    made.feed(0, 60)
    made.feed(0, 40, slot=1)
    said = made.draft(made.text[:41], 1, slot=1)
    for end in range(41, 80):
        made.feed(end - 1, end, slot=1)
        said += made.draft(made.text[: end + 1], 1, slot=1)
    history = as_history(made.text[:61])  # said[0] is what stands in place of token 41
    assert made.drafters[0].teacher_forced(history, 16).tolist() == said[4:20]
    made.draft(made.text[:61], 3)
    assert made.drafters[0].teacher_forced(history, 16).tolist() == said[4:20]
    forced = made.drafters[1].teacher_forced(as_history(made.text[:81]), 70).tolist()  # what was long ago it does not know
    assert forced == [-1] * 38 + said[8:40]
    assert made.draft(made.text[:61], 1) == made.draft(made.text[:61], 1)


def test_a_prompt_that_goes_on_from_an_earlier_one_needs_its_end_alone(rig):
    made = rig("eagle3-llama")
    made.feed(0, 40)
    made.begin(made.text[:41])
    made.draft(made.text[:41], 3)
    made.drafters[0].end()
    n = made.drafters[0].n_held(as_history(made.text[:60]))
    assert 36 <= n < 40
    made.feed(n - 3, 50)
    fresh = rig("eagle3-llama")
    fresh.feed(0, 50)
    assert made.draft(made.text[:51], 4) == fresh.draft(made.text[:51], 4)
    made.drafters[0].end()
    changed = made.text.copy()
    changed[0] = (changed[0] + 1) % 128  # of which every later hidden state depends
    assert made.drafters[0].n_held(as_history(changed[:60])) == 0
    made.feed(0, 50, text=changed)
    fresh.feed(0, 50, text=changed)
    assert made.draft(changed[:51], 4) == fresh.draft(changed[:51], 4)


def test_it_drafts_nothing_of_a_text_that_it_was_not_told_of(rig):
    made = rig("eagle3-llama")
    assert made.draft(made.text[:10], 4) == []
    made.feed(0, 8)
    assert made.draft(made.text[:10], 4) == []
    assert made.draft(made.text[:9], 4) != []
    made.feed(9, 20)  # a token is missing
    assert made.draft(made.text[:21], 4) == []
    assert made.drafters[0].teacher_forced(as_history(made.text[:21]), 3).tolist() == [-1] * 3
    made.feed(0, 20)
    assert made.draft(made.text[:21], 4) != []


def test_a_pass_that_fails_leaves_other_texts_alone(rig, monkeypatch):
    made = rig("eagle3-llama")
    for slot in (0, 1):
        made.feed(0, 20, slot)
    right = made.draft(made.text[:21], 3, slot=1)
    model = made.runner._context.model
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", lambda batch: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made.draft(made.text[:21], 3)
    assert made.draft(made.text[:21], 3) == []
    assert made.draft(made.text[:21], 3, slot=1) == right
    made.feed(0, 20)
    assert made.draft(made.text[:21], 3) == right


def test_a_context_that_is_full_ends_its_drafts(rig):
    made = rig("eagle3-llama")
    text = np.resize(made.text, OPTIONS.n_ctx)
    made.feed(0, OPTIONS.n_ctx - 2, text=text)
    assert len(made.draft(text[: OPTIONS.n_ctx - 1], 8)) == 4 - 1
    assert made.drafters[0].accept(as_history(text), Verdict(0, 0, 1, is_used=False)) is None


def test_several_residual_streams_count_by_their_mean(rig):
    made = rig("eagle3-llama")
    streams = {name: np.concatenate([rows - 1, rows + 1], axis=1) for name, rows in made.told.items()}
    joined = made.runner.encoder.joined(streams)
    assert np.allclose(joined, made.runner.encoder.joined(made.told), atol=1e-6)
    assert joined.shape == (90, 768)
    assert not joined[:, 512:].any()  # what llama.cpp has nothing for


class Switch:
    def __init__(self, **how):
        self.how = how

    def __enter__(self):
        self.engine = Engine.load(
            tiny_model("llama-dense"), backend="numba-cpu", n_ctx=192, threads=1, registry=REGISTRY, **self.how
        )
        return self.engine

    def __exit__(self, *error):
        self.engine.close()


def test_a_head_alone_is_recognised_by_its_file():
    with Switch(draft_model=copying_head("llama-dense")) as engine:
        assert engine.config["spec_type"].split(";")[-1].startswith("draft-eagle3")
    with Switch(draft_model=tiny_model("llama-dense-q4_0")) as engine:
        assert engine.config["spec_type"].split(";")[-1].startswith("draft-model")


def test_the_summary_tells_what_the_prompt_cost():
    prompt = np.random.default_rng(3).integers(0, 128, 120).tolist()
    with Switch(spec_type=f"draft-eagle3:model={copying_head('llama-dense')}") as engine:
        stats = engine.generate(prompt, max_tokens=4, ignore_eos=True).stats
    assert 0 < stats.drafters["draft-eagle3"].begin_s < stats.timings.prompt_s


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({"spec_type": "draft-eagle3"}, OptionError, "needs a head"),
        ({"spec_type": f"draft-eagle3:model={tiny_model('llama-dense')}"}, UnsupportedError, "use draft-model"),
        ({"spec_type": f"draft-model:model={draft_file('eagle3-llama')}"}, UnsupportedError, "use draft-eagle3"),
        ({"draft_model": draft_file("eagle3-gpt-oss-wide"), "spec_type": "draft-model"}, UnsupportedError, "use draft-eagle3"),
    ],
)
def test_what_does_not_fit_is_refused(how, error, match):
    with pytest.raises(error, match=match), Switch(**how):
        pass


@pytest.mark.parametrize(("name", "error"), [("eagle3-gpt-oss-wide", UnsupportedError), ("eagle3-llama", ModelFileError)])
def test_a_head_cannot_be_run_for_itself(name, error):
    with pytest.raises(error, match="-md"):
        Engine.load(draft_file(name), backend="reference", registry=REGISTRY)


def test_a_head_of_another_target_is_refused(tmp_path):
    from augury.testing.tiny_model import write_tiny_head

    write_tiny_head(tmp_path / "other.gguf", n_embd=96, head_dim=32)
    with (
        pytest.raises(ModelFileError, match=r"'token_embd\.weight' has .* 96\) of .*other\.gguf; use a draft model"),
        Switch(draft_model=tmp_path / "other.gguf"),
    ):
        pass
    with pytest.raises(UnsupportedError, match="the head reads 256"):
        Engine.load(
            tiny_model("deepseek2-moe"), backend="numba-cpu", draft_model=draft_file("eagle3-gpt-oss-wide"), registry=REGISTRY
        )


def test_a_draft_ends_before_a_token_that_is_improbable_among_the_ten_best(rig):
    made = rig("eagle3-llama")
    made.feed(0, 40)
    drafter, ask = made.drafters[0], Ask(made.drafters[0], as_history(made.text[:41]), 4, pace=Pace(4))
    (whole,) = made.runner.draft([drafter.request(ask)])
    sums = [sum(p for _, p in each) for each in whole.candidates]
    assert len(whole.tokens) == 4
    assert max(sums) <= 1.0
    most = max(whole.confidence[1:])
    drafter.options = attrs.evolve(drafter.options, p_min=most)
    (cut,) = made.runner.draft([drafter.request(ask)])
    ends = next(i for i, p in enumerate(whole.confidence) if p < most)
    assert cut.tokens == whole.tokens[:ends]


def test_it_reads_any_target_whose_layers_tell_their_residual_stream():
    assert DraftEagle3.drafts_with(ModelFile.open(draft_file("eagle3-llama")))
    assert not DraftEagle3.drafts_with(tiny_file("llama-dense"))
    assert attrs.fields(HeadOptions).p_min.default == 0.0
