import functools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from oracles.models import tiny_model
from oracles.ngram_maps import simple_draft
from support.cpu_backends import cpu_backends
from support.toys import as_history, drafted

from augury import Engine, Registry
from augury.drafters.self_spec import SelfSpec, SelfSpecOptions
from augury.errors import OptionError
from augury.interfaces import Ask
from augury.options import build
from augury.passes import ArrayPass, Target
from augury.types import Verdict

CASES = json.loads((Path(__file__).parents[1] / "data/ngram/ngram_simple.json").read_text())
REGISTRY = Registry.discover()
NO_LIMIT = 10**6
N_VOCAB = 11


# The history


def by_history(draft_min, draft_max):
    return SelfSpec(SelfSpecOptions(draft_min=draft_min, draft_max=draft_max), None)


texts = st.integers(1, 4).flatmap(lambda v: st.lists(st.integers(0, v), min_size=2, max_size=150))


@given(texts, st.integers(1, 6), st.integers(1, 12), st.data())
def test_history_drafts_what_followed_the_last_draft_min_tokens(text, draft_min, draft_max, data):
    drafter = by_history(draft_min, draft_max)
    length = data.draw(st.integers(1, len(text)))
    drafter.begin(as_history(text[:length]), 0)
    while length <= len(text):
        limit = data.draw(st.integers(1, 20))
        expected = simple_draft(text[:length], draft_min, draft_max)[:limit]
        assert drafted(drafter, text[:length], limit) == expected
        length += data.draw(st.integers(1, 20))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['n']}-{case['m']}-{len(case['tokens'])}")
def test_history_drafts_what_llama_cpp_drafts(case):
    drafter = by_history(case["n"], case["m"])
    tokens = as_history(case["tokens"])
    drafter.begin(tokens[: case["prompt_len"]], 0)
    for h, expected, n_accepted in case["rounds"]:
        (draft,) = drafter.draft_together([Ask(drafter, tokens[: h + 1], NO_LIMIT)])
        assert draft.tokens.tolist() == expected
        drafter.accept(tokens[: h + 2 + n_accepted], Verdict(len(expected), n_accepted, n_accepted + 1, is_used=bool(expected)))


def test_history_forgets_the_request_before():
    drafter, text = by_history(2, 4), [0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    drafter.begin(as_history(text), 0)
    assert drafted(drafter, text)
    drafter.end()
    drafter.begin(as_history([9, 8, 7]), 0)
    assert not drafted(drafter, [9, 8, 7, 6, 5, 4, 3, 0, 1, 2])


# The first layers


class Recording(Target):
    """Continues a text by a rule of its own, 4 layers of it, and records its passes."""

    def __init__(self):
        self.n_layers = 4
        self.passes = []
        self.vocabularies = []

    def forward(self, written, n_layers, vocabulary=None):
        self.passes.append((n_layers, {slot: len(tokens) for slot, tokens in written.items()}))
        self.vocabularies.append(None if vocabulary is None else vocabulary.tolist())
        return ArrayPass(np.array([row_after(tokens[-1], len(tokens)) for tokens in written.values()]))


def row_after(token, position):
    return np.random.default_rng(token * 1000 + position).normal(scale=3, size=N_VOCAB).astype(np.float32)


def greedy(history, limit, p_min=0.0):
    tokens = [history[-1]]
    while len(tokens) <= limit:
        row = row_after(tokens[-1], len(tokens)).astype(np.float64)
        if np.exp(row.max()) / np.exp(row).sum() < p_min:
            break
        tokens.append(int(row.argmax()))
    return tokens[1:]


def session_of(target, slot=0):
    model, made = SimpleNamespace(name="toy", n_vocab=N_VOCAB), {}
    return SimpleNamespace(slot=slot, target=target, model=model, shared=lambda key, make: made.setdefault(key, make()))


def by_layers(target, slot=0, **options):
    return SelfSpec(build(SelfSpecOptions, {"mode": "layers", "p_min": 0, **options}, "test"), session_of(target, slot))


def test_layers_write_ahead_greedily_from_the_token_just_sampled():
    target = Recording()
    history = [3, 1, 4, 1, 5]
    draft = by_layers(target, layers=3).draft(as_history(history), 4)
    assert draft.tokens.tolist() == greedy(history, 4)
    assert target.passes == [(3, {0: n}) for n in range(1, 5)]


def test_layers_are_asked_for_the_first_tokens_and_those_of_the_text():
    target = Recording()
    drafter = by_layers(target, vocab=4)
    drafter.begin(as_history([3, 6]), 0)
    for history in ([3, 6], [3, 6, 1, 5]):
        drafter.draft(as_history(history), 1)
    assert target.vocabularies == [[0, 1, 2, 3, 6], [0, 1, 2, 3, 5, 6]]


def test_a_third_of_the_layers_is_kept_by_default():
    target = Recording()
    by_layers(target).draft(as_history([1, 2]), 1)
    assert [n_layers for n_layers, _ in target.passes] == [2]


@pytest.mark.parametrize(("options", "is_costly"), [({"mode": "layers"}, True), ({}, False)])
def test_only_layers_take_time_that_matters(options, is_costly):
    assert SelfSpec(build(SelfSpecOptions, options, "test"), session_of(Recording())).traits.is_costly == is_costly


def test_more_layers_than_the_model_has_are_refused():
    with pytest.raises(OptionError, match="layers is 5, but toy has 4"):
        by_layers(Recording(), layers=5)


def test_layers_without_their_mode_are_refused():
    with pytest.raises(OptionError, match="layers is 2, but mode is history, which has none; add mode=layers"):
        SelfSpec(build(SelfSpecOptions, {"layers": 2}, "test"), session_of(Recording()))


@pytest.mark.parametrize("p_min", [0.3, 0.6, 0.9])
def test_a_draft_ends_where_the_layers_grow_unsure(p_min):
    lengths = set()
    for seed in range(30):
        history = [seed % N_VOCAB] * (seed + 2)
        target = Recording()
        draft = by_layers(target, p_min=p_min).draft(as_history(history), 6).tokens.tolist()
        assert draft == greedy(history, 6, p_min)
        assert len(target.passes) == min(len(draft) + 1, 6)
        lengths.add(len(draft))
    assert len(lengths) > 1


@pytest.mark.parametrize(("n_equal", "p_min", "n_drafted"), [(1, 1.0, 3), (2, 0.5, 3), (2, 0.500001, 0)])
def test_layers_that_are_just_as_sure_as_asked_for_draft(n_equal, p_min, n_drafted, monkeypatch):
    row = np.where(np.arange(N_VOCAB) < n_equal, 0.0, -np.inf).astype(np.float32)
    monkeypatch.setitem(globals(), "row_after", lambda token, position: row)
    assert by_layers(Recording(), p_min=p_min).draft(as_history([1, 2]), 3).tokens.tolist() == [0] * n_drafted


def test_several_slots_are_written_for_in_one_pass():
    target = Recording()
    drafters = [by_layers(target, slot, p_min=p_min) for slot, p_min in enumerate((0, 0.8, 0))]
    histories, limits = ([1, 2, 3], [4, 5], [6, 7, 8, 9]), (2, 5, 4)
    asks = [Ask(*each) for each in zip(drafters, map(as_history, histories), limits, strict=True)]

    drafts = SelfSpec.draft_together(asks)

    expected = [greedy(*each) for each in zip(histories, limits, (0, 0.8, 0), strict=True)]
    assert [draft.tokens.tolist() for draft in drafts] == expected
    assert len(expected[1]) < 4
    assert len(target.passes) == 4
    assert target.passes[0][1] == {0: 1, 1: 1, 2: 1}


def test_a_requests_own_p_min_counts():
    target = Recording()
    drafter = by_layers(target)
    drafter.options = build(SelfSpecOptions, {"mode": "layers", "p_min": 1.0}, "test")
    assert not len(drafter.draft(as_history([1, 2]), 4))


# In an engine


BACKENDS = cpu_backends(REGISTRY)
LAYERS = "self-spec:mode=layers,layers=1,p_min=0.05"  # of two: often right, often not
rng = np.random.default_rng(5)
PHRASE = rng.integers(0, 128, 6).tolist()
LONG = rng.integers(0, 128, 300).tolist()


def load(backend, spec_type, *, slots=1, n_ctx=64):
    model = tiny_model("llama-dense")
    how = {"backend": backend, "spec_type": spec_type, "spec_fixed": True, "slots": slots, "n_ctx": n_ctx}
    return Engine.load(model, registry=REGISTRY, **how)


@functools.cache
def plain(backend, prompt, n, n_ctx=64):
    with load(backend, "none", n_ctx=n_ctx) as engine:
        return engine.generate(list(prompt), max_tokens=n, temperature=0.0, ignore_eos=True).tokens


def of(prompt, n, **more):
    return {"prompt": prompt, "max_tokens": n, "temperature": 0.0, "ignore_eos": True, **more}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_context_fills_to_its_end(backend):
    with load(backend, LAYERS, n_ctx=40) as engine:
        result = engine.generate(**of(PHRASE, None))
    assert len(PHRASE) + len(result.tokens) == 41
    assert result.tokens == plain(backend, tuple(PHRASE), None, n_ctx=40)
    assert result.stats.n_drafted


@pytest.mark.parametrize("backend", BACKENDS)
def test_prompts_are_processed_beside_drafts(backend):
    with load(backend, LAYERS, slots=3, n_ctx=400) as engine:
        runnings = [engine.submit(**of(prompt, 30)) for prompt in (PHRASE, LONG, PHRASE[::-1])]
        results = [running.result() for running in runnings]
    for prompt, result in zip((PHRASE, LONG, PHRASE[::-1]), results, strict=True):
        assert result.tokens == plain(backend, tuple(prompt), 30, n_ctx=400)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancelled_request_leaves_nothing_behind_that_its_heir_could_read(backend):
    with load(backend, LAYERS) as engine:
        stream = engine.stream(**of(PHRASE, 40))
        begun = [next(stream).token for _ in range(7)]
        stream.close()
        result = engine.generate(**of([*PHRASE, *begun], 20))
    assert result.stats.n_reused > len(PHRASE)
    assert tuple(begun) + result.tokens == plain(backend, tuple(PHRASE), 27)


def test_all_layers_are_always_right_and_none_are_asked_where_nothing_is_wanted():
    with load("numba-cpu", "self-spec:mode=layers,layers=2,p_min=0") as engine:
        result = engine.generate(**of(PHRASE, 30))
        idle = engine.generate(**of(PHRASE, 30, speculative={"n_max": 0}))
    assert result.stats.acceptance_rate == 1
    assert idle.tokens == result.tokens
    assert idle.stats.drafters.get("self-spec") is None or idle.stats.drafters["self-spec"].calls == 0


# Names


def test_it_is_offered_under_its_names():
    assert (SelfSpec.name, SelfSpec.aliases, SelfSpec.traits.scope) == ("self-spec", ("spec-self",), "request")
