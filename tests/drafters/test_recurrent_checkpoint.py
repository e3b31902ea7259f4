"""The wrapper: who drafts inside it, what it asks the memory for, and how long its drafts may be."""

from types import SimpleNamespace

import pytest
from support.more_toys import registry_with_toys
from support.toys import as_history

from augury.drafters.recurrent_checkpoint import RecurrentCheckpoint, RecurrentCheckpointOptions
from augury.engine.engine import Engine
from augury.errors import OptionError, PluginError
from augury.interfaces import Drafter, DrafterTraits
from augury.testing.toys import TINY_DRAFT, TINY_TARGET
from augury.types import Draft, Verdict

REGISTRY = registry_with_toys()
GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROMPT = [7, 8, 9] * 6
INNER = f"draft-model:model={TINY_DRAFT}"


def load(spec, backend="toy-recurrent", memory="auto", **how):
    how = {"n_ctx": 256, "spec_fixed": True, "draft_max": 6, "registry": REGISTRY} | how
    return Engine.load(TINY_TARGET, backend=backend, memory=memory, spec_type=spec, **how)


@pytest.mark.parametrize(
    ("backend", "memory", "is_restored"),
    [
        ("toy-recurrent", "auto", True),
        ("toy-recurrent:keeps_aside=false", "auto", True),
        ("toy-recurrent", "checkpoints:use_checkpoints=auto", False),  # what the user says comes first
        ("toy", "auto", False),
    ],
)
def test_rejected_drafts_are_restored_and_counted_where_there_is_a_state(backend, memory, is_restored):
    with load("none", backend) as plain, load(f"recurrent-checkpoint({INNER})", backend, memory) as engine:
        result = engine.generate(PROMPT, max_tokens=80, **GREEDY)
        assert result.tokens == plain.generate(PROMPT, max_tokens=80, **GREEDY).tokens
        assert 0 < result.stats.n_accepted < result.stats.n_drafted
        assert (result.stats.n_restores > 0, result.stats.n_replayed > 0) == (is_restored, is_restored)
        assert engine.config["spec_type"] == f"recurrent-checkpoint({INNER})"


@pytest.mark.parametrize("is_fixed", [True, False])
@pytest.mark.parametrize(
    "inner", ["toy-period;ngram-map-k:n=1,m=5", f"recycle;{INNER}", "self-spec:mode=layers,layers=1", "auto"]
)
def test_chains_and_all_kinds_of_drafters_can_be_wrapped(inner, is_fixed):
    with load("none") as plain, load(f"recurrent-checkpoint({inner})", slots=2, spec_fixed=is_fixed) as engine:
        prompts = [PROMPT, [5, 6, 5, 6, 5]]
        found, expected = (each.generate(prompts, max_tokens=60, **GREEDY) for each in (engine, plain))
        assert [each.tokens for each in found] == [each.tokens for each in expected]
        assert all(each.stats.drafters["recurrent-checkpoint"].failed is None for each in found)
        assert not is_fixed or sum(each.stats.n_drafted for each in found) > 0


@pytest.mark.parametrize("spec", ["recurrent-checkpoint(toy-period;draft-model:p_min=0.1)", f"recurrent-checkpoint({INNER})"])
def test_a_draft_model_is_given_to_the_drafter_that_takes_it(spec):
    with load(spec, draft_model=TINY_DRAFT) as engine:
        assert f"model={TINY_DRAFT}" in engine.config["spec_type"]
        assert len(engine._loader.models) == 2
    with pytest.raises(OptionError, match="a draft model is given, but recurrent-checkpoint uses none"):
        load("recurrent-checkpoint(suffix)", draft_model=TINY_DRAFT)


@pytest.mark.parametrize(
    ("spec", "error", "told"),
    [
        ("recurrent-checkpoint(ngram-simpel)", PluginError, "did you mean 'ngram-simple'"),
        ("recurrent-checkpoint(ngram-simple:x=1)", OptionError, "there is no option 'x'"),
        ("ngram-simple(suffix)", OptionError, "ngram-simple: there is no option 'inner'"),
        ("recurrent-checkpoint(suffix", OptionError, "has a bracket that is not closed"),
    ],
)
def test_what_cannot_be_wrapped_is_told(spec, error, told):
    with pytest.raises(error, match=told):
        load(spec)


class Scripted(Drafter):
    name = "scripted"

    def __init__(self, length):
        super().__init__(None, None)
        self.length, self.told = length, []

    def draft(self, history, limit):
        return Draft([1] * min(self.length, limit))

    def accept(self, history, verdict):
        self.told.append((verdict.n_offered, verdict.n_accepted, verdict.is_used, verdict.n_proposed))


class Session:
    def __init__(self, *inner):
        self.inner = inner

    def drafters(self, text):
        return list(self.inner)


HISTORY = as_history([1, 2, 3])


def rounds(drafter, accepted):
    """How long the drafts become as so many of each are accepted; None: all."""
    lengths = []
    for n in accepted:
        k = len(drafter.draft(HISTORY, 8))
        lengths.append(k)
        drafter.accept(HISTORY, Verdict(k, k if n is None else min(n, k), 1 + (k if n is None else min(n, k)), is_used=True))
    return lengths


@pytest.mark.parametrize(
    ("accepted", "lengths"),
    [
        ([7, 3, 1, 0, 0], [8, 4, 2, 1, 1]),  # most was computed again
        ([7, 3, None, None, None], [8, 4, 2, 3, 4]),
        ([0, 0, 0], [8, 8, 8]),  # nothing had to be computed again: the planner's business
        ([None, None, 7, 7, 7], [8, 8, 8, 8, 4]),  # what was kept for good makes up for some
    ],
)
def test_drafts_shorten_while_more_is_computed_again_than_kept(accepted, lengths):
    drafter = RecurrentCheckpoint(RecurrentCheckpointOptions(), Session(Scripted(8)))
    list(drafter.begin(HISTORY, 0))
    assert rounds(drafter, accepted) == lengths
    list(drafter.begin(HISTORY, 0))
    assert len(drafter.draft(HISTORY, 8)) == 8  # each request starts anew


def test_only_the_drafter_whose_draft_was_verified_hears_of_it():
    none, used, later = Scripted(0), Scripted(3), Scripted(5)
    drafter = RecurrentCheckpoint(RecurrentCheckpointOptions(), Session(none, used, later))
    list(drafter.begin(HISTORY, 0))
    rounds(drafter, [2])
    drafter.accept(HISTORY, Verdict(0, 0, 1, is_used=False))
    assert none.told == later.told == [(0, 0, False, 0)] * 2
    assert used.told == [(3, 2, True, 3), (0, 0, False, 0)]


def test_evidence_keeps_its_worth_whoever_gives_it():
    class Known(Drafter):
        name = "known"

        def __init__(self, chances, proposes):
            super().__init__(None, None)
            self.traits, self.proposes = DrafterTraits(evidence_chances=chances), proposes

        def draft(self, history, limit):
            n = len(self.traits.evidence_chances)
            return Draft(range(n), evidence=range(n)) if self.proposes else Draft()

    for first, worth in ((True, [0.1, 0.2]), (False, [0.7, 0.8, 0.9])):
        session = SimpleNamespace(drafters=lambda _, first=first: [Known((0.1, 0.2), first), Known((0.7, 0.8, 0.9), True)])
        wrapper = RecurrentCheckpoint(RecurrentCheckpointOptions(), session)
        draft = wrapper.draft(as_history([1]), 9)
        assert [wrapper.traits.evidence_chances[bucket] for bucket in draft.evidence] == worth
