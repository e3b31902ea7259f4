"""Constrained and processed output is that of plain decoding, whatever drafts, and no token of it was forbidden."""

import functools

import numpy as np
import pytest
from oracles.drafts import HEADS, agreeing
from oracles.models import tiny_model
from support.drafter_specs import SPECS as DRAFTER_SPECS, WAYS as DRAFTER_WAYS, any_two, target_for
from support.more_toys import ToyConstraint, ToyOptions, registry_with_toys

from augury import Engine
from augury.constraint import ConstraintSession
from augury.testing.drafter.engines import output

REGISTRY = registry_with_toys()
SPECS = DRAFTER_SPECS | {
    "a chain": f"forced;ngram-simple:n=2,m=5;draft-model:model={tiny_model('llama-dense-q4_0')},tree=3x2",
}


def seldom_again(history, ids, logits):
    """What is among the last three tokens is less likely; a pure function of history and logits."""
    logits[history[-3:]] -= 4
    return ids, logits


def reversed_odd(_, ids, logits):
    """Odd tokens are more likely, and all come in another order."""
    return ids[::-1], (logits + ids % 2)[::-1]


WAYS = DRAFTER_WAYS | {
    "greedy with a penalty": {"temperature": 0.0, "repeat_penalty": 1.1},
    "processed": {"temperature": 0.8, "seed": 5, "logits_processors": [seldom_again, reversed_odd]},
    "processed, greedy": {"temperature": 0.0, "logits_processors": [seldom_again]},
    # 5 is forbidden, and forced after a 0 that was drawn
    "sampled of all": {"temperature": 0.9, "seed": 3, "top_k": 0, "min_p": 0.0, "logit_bias": {0: -100.0, 3: 2.0, 5: -np.inf}},
}
MTP_MODEL = "mtp-qwen35"  # with layers for draft-mtp
OPTIONS = {"modulus": 2, "stretch": 5}
N = 60
CASES = [  # any two of the values, and each drafter where it is sure to draft
    (drafter, way, is_fixed)
    for i, drafter in enumerate(sorted({*REGISTRY.drafters, *SPECS}))
    for j, way in enumerate(WAYS)
    for is_fixed in (True, False)
    if is_fixed == (i + j) % 2 or (way, is_fixed) == ("greedy", True)
]


def prompts():
    rng = np.random.default_rng(11)
    phrases = [rng.integers(0, 128, 5).tolist() for _ in range(3)]
    return [phrases[i] * (2 + i) + phrases[(i + 1) % 3] * 2 for i in range(3)]


def answers(way, drafter=None, **how):
    path = agreeing(MTP_MODEL) if drafter == "draft-mtp" else target_for(drafter)
    engine = Engine.load(path, backend="numba-cpu", n_ctx=160, registry=REGISTRY, **how)
    with engine:
        params = {"max_tokens": N, "logprobs": 1, "ignore_eos": True, **WAYS[way]}
        results = engine.generate(prompts(), constraint={"toy-residues": OPTIONS}, **params)
    for result in results:
        assert all(each.failed is None for each in result.stats.drafters.values())
        follow(result.tokens, engine.info.n_vocab)
    return results


def follow(tokens, n_vocab):
    """Every token is one that the constraint allows after those before it."""
    constraint = ToyConstraint(ToyOptions(**OPTIONS), ConstraintSession(n_vocab, None, frozenset(), lambda key, make: make()))
    for token in tokens:
        assert constraint.allowed()[token]
        constraint.accept(token)


def plain(way, drafter):
    """The answers of a drafter's target without drafts."""
    return _plain(way, drafter if drafter in (*HEADS, "draft-mtp") else None)


@functools.cache
def _plain(way, drafter):
    return output(answers(way, drafter, threads=1, spec_type="none"))


@pytest.mark.sample(8, rest=27)
@pytest.mark.parametrize(("drafter", "way", "is_fixed"), CASES)
def test_output_is_that_of_plain_constrained_decoding(drafter, way, is_fixed):
    results = answers(way, drafter, spec_type=SPECS.get(drafter, drafter), spec_fixed=is_fixed, slots=2, threads=1)
    assert output(results) == plain(way, drafter)
    is_sure = way == "greedy" and drafter in {*SPECS, "draft-mtp"}  # what is drawn repeats itself too seldom
    if is_fixed and (drafter == "forced" or is_sure):
        assert sum(result.stats.n_accepted for result in results) > 0, "what declines every time proves nothing"


@pytest.mark.sample(6, rest=12)
@pytest.mark.parametrize(
    ("drafter", "is_fixed", "way"), any_two(["forced", "draft-model", "suffix", *HEADS], [True, False], WAYS)
)
def test_masks_hold_by_rejection_and_greedy_output_is_that_of_plain_decoding(drafter, is_fixed, way):
    how = {"spec_verify": "rejection", "spec_fixed": is_fixed, "slots": 2, "threads": 1}
    results = answers(way, drafter, spec_type=SPECS.get(drafter, drafter), **how)
    assert not is_fixed or sum(result.stats.n_accepted for result in results) > 0
    if WAYS[way]["temperature"] == 0:
        assert output(results) == plain(way, drafter)


def test_forced_tokens_are_all_accepted():
    for result in answers("sampled", spec_type="forced", spec_fixed=True):
        stats = result.stats.drafters["forced"]
        assert stats.accepted == stats.drafted > 10
