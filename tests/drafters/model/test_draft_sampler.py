"""Drawn drafts: as the request draws its tokens, and with the distribution that they were drawn from."""

from collections import Counter

import attrs
import numpy as np
import pytest
from oracles.models import tiny_model

from augury import Engine
from augury.drafters.model.written_draft import DraftSampler
from augury.passes import ArrayPass
from augury.sampling import SamplingParams
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import DrafterProfile

PARAMS = SamplingParams(temperature=0.9, top_k=5, top_p=0.95, min_p=0.0, seed=7)
ROW = np.random.default_rng(1).normal(scale=2, size=20).astype(np.float32)
TEXT = np.array([1, 2, 3], np.int32)


def sampler(params=PARAMS, n_drawn=20, n_vocab=20):
    return DraftSampler(params, n_drawn=n_drawn, n_vocab=n_vocab)


def draw(drawer, text=TEXT):
    return drawer.draw(ArrayPass(ROW[None]), 0, text)


def chi_square(counts, probabilities):
    """How far counts (m,) are from n times probabilities (m,), in standard deviations of chi-square."""
    expected = counts.sum() * probabilities
    keep = expected > 0
    assert not counts[~keep].any()
    n_free = keep.sum() - 1
    return (((counts - expected)[keep] ** 2 / expected[keep]).sum() - n_free) / np.sqrt(2 * n_free)


def test_tokens_are_drawn_from_the_distribution_that_is_handed_over():
    drawer = sampler()
    drawn = [draw(drawer) for _ in range(20_000)]
    weights = drawn[0][1]
    assert weights.shape == (20,)
    assert weights.dtype == np.float32
    assert np.isclose(weights.sum(), 1.0)
    assert 1 < np.count_nonzero(weights) <= 5
    assert abs(chi_square(np.bincount([token for token, _ in drawn], minlength=20), weights)) < 4


def test_the_same_seed_draws_the_same_drafts():
    first, second = sampler(), sampler()
    assert [draw(first)[0] for _ in range(50)] == [draw(second)[0] for _ in range(50)]


def test_penalties_and_biases_count():
    best = int(ROW.argmax())
    forbids = sampler(attrs.evolve(PARAMS, logit_bias={best: float("-inf")}))
    assert draw(forbids)[1][best] == 0
    penalises = sampler(attrs.evolve(PARAMS, frequency_penalty=100.0))
    assert draw(penalises, np.array([best, 5], np.int32))[1][best] == 0


def test_tokens_that_the_target_lacks_are_left_out_before_one_is_drawn():
    n_vocab = int(ROW.argmax())  # the best token is the first that the target lacks
    token, weights = draw(sampler(n_vocab=n_vocab))
    assert token < n_vocab
    assert weights.shape == (n_vocab,)
    assert np.isclose(weights.sum(), 1.0)
    assert draw(sampler(attrs.evolve(PARAMS, top_k=1), n_vocab=n_vocab)) is None


def test_a_bias_on_a_token_that_the_draft_model_lacks_is_no_error():
    assert draw(sampler(attrs.evolve(PARAMS, logit_bias={25: 3.0}), n_vocab=30))[1].shape == (30,)


def where_drafts_pay(context, drafters, draft_max, *, replays_accepted, drafts_ahead):
    """A planner for passes of any size in a second."""
    profiles = [DrafterProfile.of(drafter) for drafter in drafters]
    costs = PassCosts([PassTime(1, 0, 1.0), PassTime(64, 0, 1.001)], 64)
    return DraftPlanner(costs, profiles, replays_accepted=replays_accepted)


@pytest.mark.sample(0)
@pytest.mark.parametrize(
    ("options", "is_fixed"), [({"p_min": 0.0}, True), ({"p_min": 0.1}, True), ({"tree": "2x3"}, True), ({}, False)]
)
def test_rejection_keeps_the_distribution_and_accepts_more_than_matching(options, is_fixed, monkeypatch):
    monkeypatch.setattr("augury.engine.engine.planner_for", where_drafts_pay)
    n_requests, how = 1200, {"max_tokens": 4, "ignore_eos": True, "temperature": 0.9, "top_k": 3, "min_p": 0.0, "top_p": 1.0}
    draft = {
        "spec_type": "draft-model",
        "draft_model": tiny_model("llama-dense-q4_0"),
        "draft_max": 6 if "tree" in options else 3,
        "spec_fixed": is_fixed,
        "spec_options": {"draft-model": options},
    }
    counts, rates = {}, {}
    for first_seed, verify in enumerate(("match", "rejection")):
        with Engine.load(tiny_model("llama-dense"), n_ctx=32, slots=32, spec_verify=verify, **draft) as engine:
            runnings = [engine.submit([1, 2, 3], seed=2 * i + first_seed, **how) for i in range(n_requests)]
            results = [running.result() for running in runnings]
        counts[verify] = Counter(result.tokens for result in results)
        drafted, accepted = (sum(getattr(result.stats, name) for result in results) for name in ("n_drafted", "n_accepted"))
        rates[verify] = accepted / drafted
    # two samples of one distribution: of every pair of tokens that is not rare, the counts differ by chance alone
    common = [tokens for tokens in counts["match"] if counts["match"][tokens] + counts["rejection"][tokens] >= 10]
    first, second = (np.array([counts[verify][tokens] for tokens in common], float) for verify in ("match", "rejection"))
    statistic = ((first - second) ** 2 / (first + second)).sum()
    assert len(common) > 5
    assert (statistic - len(common)) / np.sqrt(2 * len(common)) < 4
    assert rates["rejection"] > rates["match"]
