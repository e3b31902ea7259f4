import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import OptionError
from augury.logits import ArrayLogits
from augury.sampling import Sampler, SamplingParams

V = 24
NO_HISTORY = np.empty(0, np.int32)


def logits(seed=0):
    return of(np.random.default_rng(seed).standard_normal((1, V)) * 2)


def of(array):
    return ArrayLogits(np.array(array, np.float32))


def draw(params, n=4000, history=NO_HISTORY, array=None, **how):
    """Frequencies (V,) of n draws from one row."""
    sampler = Sampler(params, n_vocab=V, **how)
    row = array if array is not None else logits()
    return np.bincount([sampler.choose(row, 0, history, i) for i in range(n)], minlength=V) / n


def softmax(values):
    weights = np.exp(values - values.max())
    return weights / weights.sum()


KEEP_ALL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature):
    found = draw(SamplingParams(temperature=temperature, **KEEP_ALL))
    assert np.abs(found - softmax(logits().rows()[0] / temperature)).max() < 0.03


def test_greedy_takes_the_lowest_of_equal_logits():
    row = of([[0.0] * 3 + [7.0, 7.0] + [0.0] * 19])
    sampler = Sampler(SamplingParams(temperature=0.0), n_vocab=V)
    assert sampler.is_plain_argmax
    assert sampler.choose(row, 0, NO_HISTORY, 0) == row.argmax()[0] == 3


def test_top_k_keeps_the_k_best():
    found = draw(SamplingParams(temperature=1.0, top_k=3, top_p=1.0, min_p=0.0, seed=2))
    assert set(np.flatnonzero(found)) == set(logits().top_k(0, 3)[0])


def test_top_p_keeps_the_smallest_set_that_sums_to_p():
    probabilities = softmax(logits().rows()[0].astype(np.float64))
    order = np.argsort(-probabilities)
    n = int(np.searchsorted(np.cumsum(probabilities[order]), 0.6)) + 1
    found = draw(SamplingParams(temperature=1.0, top_k=0, top_p=0.6, min_p=0.0, seed=3))
    assert set(np.flatnonzero(found)) == set(order[:n])


def test_min_p_is_relative_to_the_best():
    probabilities = softmax(logits().rows()[0].astype(np.float64))
    found = draw(SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.3, seed=4))
    assert set(np.flatnonzero(found)) == set(np.flatnonzero(probabilities >= 0.3 * probabilities.max()))


def test_typical_sampling_drops_what_surprises_too_little():
    # one token of probability 0.4, twelve of 0.05: entropy 2.16, surprises 0.92 and 3.00, so the twelve are more typical
    row = of([[np.log(0.4)] + [np.log(0.05)] * 12 + [-50.0] * 11])
    found = draw(SamplingParams(temperature=1.0, typical_p=0.28, top_k=0, top_p=1.0, min_p=0.0, seed=5), array=row)
    assert found[0] == 0
    assert (found[7:] == 0).all()


def test_penalties_change_the_logits_as_documented():
    row = of([[2.0, -2.0, 1.0] + [0.0] * (V - 3)])
    history = np.array([0, 1, 1, 2], np.int32)
    params = SamplingParams(
        temperature=1.0, repeat_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, repeat_last_n=3, **KEEP_ALL
    )
    expected = row.rows()[0].astype(np.float64)
    expected[1] = -2.0 * 2.0 - 2 * 0.25 - 0.5  # token 0 is outside the last three
    expected[2] = 1.0 / 2.0 - 0.25 - 0.5
    assert np.abs(draw(params, history=history, array=row) - softmax(expected)).max() < 0.03


@given(
    st.integers(0, 50),
    st.integers(1, 6),
    st.dictionaries(st.integers(0, V - 1), st.floats(-5, 5), max_size=5),
    st.lists(st.integers(0, V - 1), max_size=9),
    st.floats(0.5, 2.0),
)
def test_candidates_are_those_of_the_whole_vocabulary(seed, k, bias, history, repeat):
    """Only the top of the vocabulary is looked at; the result is as if all of it were."""
    row = logits(seed)
    past = np.array(history, np.int32)
    params = SamplingParams(temperature=1.0, logit_bias=bias, repeat_penalty=repeat, seed=0)
    ids, values = Sampler(params, n_vocab=V)._candidates(row, 0, past, k)
    full = row.rows()[0].astype(np.float64)
    for token, value in bias.items():
        full[token] += value
    for token in set(history):
        full[token] = full[token] * repeat if full[token] <= 0 else full[token] / repeat
    order = np.lexsort((np.arange(V), -full))[:k]
    assert np.array_equal(ids, order)
    assert np.array_equal(values, full[order])


def test_forbidden_tokens_are_never_drawn_and_bias_forces():
    best = int(logits().argmax()[0])
    assert draw(SamplingParams(temperature=1.0, **KEEP_ALL), forbidden=frozenset({best}))[best] == 0
    assert draw(SamplingParams(temperature=0.0), n=1, forbidden=frozenset({best}))[best] == 0
    assert draw(SamplingParams(temperature=1.0, logit_bias={7: 100.0}, **KEEP_ALL), n=50)[7] == 1


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 700), min_size=1, max_size=5))
def test_a_token_depends_on_seed_and_index_alone_not_on_what_was_drawn_before(seed, indices):
    params = SamplingParams(temperature=1.5, seed=seed)
    one = Sampler(params, n_vocab=V)
    for index in indices:  # in any order, as rejected drafts make it
        assert one.choose(logits(), 0, NO_HISTORY, index) == Sampler(params, n_vocab=V).choose(logits(), 0, NO_HISTORY, index)


def test_without_a_seed_every_sampler_has_its_own():
    assert Sampler(SamplingParams(), n_vocab=V).params.seed != Sampler(SamplingParams(), n_vocab=V).params.seed


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "temperature is -1, expected 0 to"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 1.5}, "top_k is 1.5, expected a whole number"),
        ({"top_p": 2}, "top_p is 2, expected 0 to 1"),
        ({"min_p": "much"}, "min_p is 'much', expected a number"),
        ({"seed": -1}, "seed is -1"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {1: float("nan")}}, "token 1 is nan"),
        ({"logit_bias": {1: float("inf")}}, "token 1 is inf"),
    ],
)
def test_wrong_values_are_refused_with_what_was_expected(values, message):
    with pytest.raises(OptionError, match=message):
        SamplingParams(**values)


def test_a_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(OptionError, match="token 99"):
        Sampler(SamplingParams(logit_bias={99: 1.0}), n_vocab=V)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("odd", [[np.nan], [np.inf], [-np.inf] * V])
def test_nothing_is_chosen_from_a_row_that_is_not_finite(temperature, odd):
    sampler = Sampler(SamplingParams(temperature=temperature, repeat_penalty=1.1, logit_bias={3: -np.inf}), n_vocab=V)
    assert sampler.choose(of([[*odd, *[1.0] * (V - len(odd))]]), 0, np.array([1, 2], np.int32), 0) == -1
