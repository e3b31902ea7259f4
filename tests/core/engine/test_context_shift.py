"""A full context is cut and the text goes on, as a request for what is left would have."""

import functools

import numpy as np
import pytest
from oracles.models import tiny_model
from support.toys import toy_engine

from augury import Engine
from augury.errors import OptionError

N_CTX = 48
PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 128, 5)] * 2
WAYS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 7, "repeat_penalty": 1.1, "xtc_probability": 0.3},
}
ANSWER = {"ignore_eos": True, "logprobs": 1}


def output(*results):
    return [(piece.token, piece.logprob) for result in results for piece in result.pieces]


@functools.cache
def by_hand(model, backend, n_keep, n, way):
    """The same without drafts from a request for each context."""
    text, results, n_left = list(PROMPT), [], n
    n_same = min(len(PROMPT) if n_keep < 0 else n_keep, N_CTX - 4)
    with Engine.load(tiny_model(model), backend=backend, threads=1, n_ctx=N_CTX, spec_type="none") as engine:
        while n_left:
            how = {"max_tokens": n_left, "cache_prompt": False, "seed_offset": n - n_left, **ANSWER, **WAYS[way]}
            results.append(engine.generate(text, **how))
            text += results[-1].tokens
            n_left -= len(results[-1].tokens)
            assert results[-1].finish_reason == ("context" if n_left else "length")
            del text[n_same : n_same + (N_CTX - n_same) // 2]
    return results


@pytest.mark.sample(4, rest=14)
@pytest.mark.parametrize("spec", [{"spec_type": "none"}, {"spec_type": "self-spec:mode=layers,layers=1,p_min=0.05"}])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n_keep", [0, 3, -1, 100])
@pytest.mark.parametrize(
    ("model", "backend"), [("llama-dense", "numba-cpu"), ("falcon-h1-dense", "numba-cpu"), ("llama-dense", "reference")]
)
def test_the_text_is_that_of_requests_for_what_is_left(model, backend, n_keep, way, spec):
    n = 130 if n_keep < 100 else 60
    expected = by_hand(model, backend, n_keep, n, way)
    with Engine.load(tiny_model(model), backend=backend, threads=1, n_ctx=N_CTX, spec_fixed=True, **spec) as engine:
        found = engine.generate(PROMPT, max_tokens=n, context_shift=True, n_keep=n_keep, **ANSWER, **WAYS[way])
        assert output(found) == output(*expected)
        stats = found.stats
        assert (found.finish_reason, stats.n_emitted) == ("length", n)
        assert stats.n_shifts == len(expected) - 1 == engine.stats().counts.n_shifts > 1
        n_same = min(len(PROMPT) if n_keep < 0 else n_keep, N_CTX - 4)
        assert stats.n_discarded == stats.n_shifts * ((N_CTX - n_same) // 2)
        assert all(each.failed is None for each in stats.drafters.values())
        if spec["spec_type"] != "none":
            assert stats.n_drafted > stats.n_accepted


def test_a_full_context_ends_the_text_unless_it_is_to_go_on():
    with toy_engine(n_ctx=16) as engine:
        plain = engine.generate([1, 2, 3], temperature=0.0)
        assert (plain.finish_reason, plain.stats.n_shifts) == ("context", 0)
        shifted = engine.generate([1, 2, 3], temperature=0.0, context_shift=True, max_tokens=100)
        assert (shifted.finish_reason, len(shifted.tokens)) == ("length", 100)
        assert shifted.tokens[: len(plain.tokens)] == plain.tokens


@pytest.mark.parametrize(("n_discard", "n_discarded"), [(0, 6), (1, 1), (5, 5), (99, 11)])
def test_as_many_tokens_are_left_out_as_are_asked_for(n_discard, n_discarded):
    with toy_engine(n_ctx=16) as engine:
        how = {"temperature": 0.0, "context_shift": True, "n_keep": 4, "n_discard": n_discard}
        stats = engine.generate([1, 2, 3], max_tokens=40, **how).stats
        assert stats.n_discarded == stats.n_shifts * n_discarded > 0


def test_a_prompt_that_fills_the_context_is_cut_at_once_and_others_go_on_beside_it():
    with toy_engine(n_ctx=16, slots=2) as engine:
        beside = engine.submit([5, 6], temperature=0.0, max_tokens=14)
        full = engine.generate([1, 2] * 8, temperature=0.0, context_shift=True, max_tokens=40)
        assert (len(full.tokens), full.stats.n_shifts) == (40, 5)
        assert beside.result().tokens == engine.generate([5, 6], temperature=0.0, max_tokens=14).tokens


def test_a_drafter_that_failed_stays_left_out_after_the_text_was_cut():
    from support.toys import ScriptedDrafter

    class Failing(ScriptedDrafter):
        def draft(self, history, limit):
            Failing.n += 1
            raise ValueError("planted")

    Failing.n = 0
    with toy_engine(n_ctx=16, drafter=Failing, kind=Engine) as engine:
        stats = engine.generate([1, 2, 3], temperature=0.0, context_shift=True, max_tokens=60).stats
    assert stats.n_shifts > 1
    assert "planted" in stats.drafters["scripted"].failed
    assert Failing.n == 1


@pytest.mark.parametrize(
    ("params", "told"),
    [({"n_keep": -2}, "n_keep is -2"), ({"n_keep": 1.5}, "n_keep is 1.5"), ({"context_shift": 1}, "context_shift is 1")],
)
def test_what_is_no_option_of_it_is_refused(params, told):
    with toy_engine() as engine, pytest.raises(OptionError, match=told):
        engine.submit([1], **params)
