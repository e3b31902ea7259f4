from random import Random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles import sampling as oracle
from support.vocabularies import tiny

from augury.engine.sampler import Sampler, random_stream
from augury.engine.sampling_step import breakers
from augury.errors import OptionError
from augury.passes import ArrayPass
from augury.sampling import SAMPLERS, SamplingParams
from augury.text.tokenizer import load_tokenizer

V = 24
NO_HISTORY = np.empty(0, np.int32)


def logits(seed=0):
    return of(np.random.default_rng(seed).standard_normal((1, V)) * 2)


def of(array):
    return ArrayPass(np.array(array, np.float32))


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


def test_what_changes_nothing_is_left_out_and_a_tiny_temperature_is_greedy():
    assert Sampler(SamplingParams(temperature=1.0, typical_p=1.0, **KEEP_ALL), n_vocab=V)._steps == ()
    assert [SamplingParams(temperature=each).temperature for each in (1e-5, 9.99e-6)] == [1e-5, 0.0]


@pytest.mark.parametrize("how", [{"temperature": 0.0, "dynatemp_range": 1e-320}, {"temperature": 0.5, "dynatemp_range": 0.5}])
def test_a_dynamic_temperature_of_next_to_nothing_takes_the_best(how):
    row = of([[8.0, 7.0] + [-9.0] * (V - 2)])
    params = SamplingParams(dynatemp_exponent=1e3, **how, **KEEP_ALL)
    assert {Sampler(params, n_vocab=V).choose(row, 0, NO_HISTORY, i) for i in range(20)} == {0}


def test_greedy_takes_the_lowest_of_equal_logits():
    row = of([[0.0] * 3 + [7.0, 7.0] + [0.0] * 19])
    sampler = Sampler(SamplingParams(temperature=0.0), n_vocab=V)
    assert sampler.is_plain_argmax
    assert sampler.choose(row, 0, NO_HISTORY, 0) == row.argmax()[0] == 3


def test_a_top_k_below_0_keeps_all_as_0_does():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


def test_top_k_keeps_the_k_best():
    found = draw(SamplingParams(temperature=1.0, top_k=3, top_p=1.0, min_p=0.0, seed=2))
    assert set(np.flatnonzero(found)) == set(logits().top_k(np.array([0], np.int32), 3)[0][0])


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
    row = of([[2.0, -2.0, 1.0, -0.5] + [0.0] * (V - 4)])
    history = np.array([0, 1, 1, 2, 1, 3], np.int32)
    params = SamplingParams(
        temperature=1.0, repeat_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, repeat_last_n=5, **KEEP_ALL
    )
    expected = row.rows()[0].astype(np.float64)
    expected[1] = -2.0 * 2.0 - 3 * 0.25 - 0.5  # token 0 is outside the last five
    expected[2] = 1.0 / 2.0 - 0.25 - 0.5
    expected[3] = -0.5 * 2.0 - 0.25 - 0.5
    ids, probabilities = Sampler(params, n_vocab=V).distribution(row, 0, history, 4)
    assert np.allclose(probabilities, softmax(expected)[ids], rtol=1e-12, atol=0)
    assert sorted(ids.tolist()) == list(range(V))


def some_case(rng):
    """A row, a history and parameters: each neutral, moderate or at a limit."""

    def one_of(neutral, moderate, *limits):
        return rng.choice([neutral, neutral, moderate, moderate, moderate, rng.choice([neutral, *limits])])

    values = rng.choice([0.5, 2, 6]) * np.random.default_rng(rng.randrange(2**32)).standard_normal(V)
    row = np.where([rng.random() < 0.1 for _ in range(V)], rng.choice([0.0, 1.0, -np.inf]), values).astype(np.float32)
    bias = {rng.randrange(V): rng.choice([rng.uniform(-5, 5), 1e30, -1e30, -np.inf]) for _ in range(rng.choice([0, 0, 1, 5]))}
    samplers = rng.sample(SAMPLERS, rng.choice([0, 2, 4, 6, 9, 9]))
    params = SamplingParams(
        samplers=rng.choice([SAMPLERS, samplers]),
        logit_bias=bias,
        temperature=rng.choice([rng.uniform(0.3, 3), rng.uniform(0.3, 3), 1.0, rng.choice([0.0, 5e-324, 1e-300, 1e-5, 1e6])]),
        top_k=rng.choice([0, 0, 1, 3, 9, V, V + 5]),
        top_p=one_of(1.0, rng.uniform(0.3, 1), 0.0),
        min_p=one_of(0.0, rng.uniform(0, 0.2), 1.0),
        typical_p=one_of(1.0, rng.uniform(0.3, 1), 0.0),
        repeat_penalty=one_of(1.0, rng.uniform(0.5, 2), 1e-3, 1e3),
        presence_penalty=one_of(0.0, rng.uniform(-1, 1), -1e3, 1e3),
        frequency_penalty=one_of(0.0, rng.uniform(-1, 1), -1e3, 1e3),
        repeat_last_n=rng.choice([-1, 0, 1, 4, 64]),
        dry_multiplier=one_of(0.0, rng.uniform(0, 2), 1e3),
        dry_base=rng.choice([1.0, 1.0000001, 1.75, 3, 1e3]),
        dry_allowed_length=rng.choice([0, 1, 2, 3]),
        dry_penalty_last_n=rng.choice([-1, 0, 1, 8, 64]),
        top_n_sigma=one_of(-1.0, rng.uniform(0.3, 3), 0.0, 1e6),
        xtc_probability=one_of(0.0, rng.uniform(0, 1), 1.0),
        xtc_threshold=rng.choice([0.0, 0.02, 0.1, 0.5, 0.6]),
        dynatemp_range=one_of(0.0, rng.uniform(0, 2)),
        dynatemp_exponent=rng.choice([1e-3, 0.5, 1.0, 2.0]),
        seed=0,
    )
    return row, [rng.randrange(rng.choice([4, V])) for _ in range(rng.randrange(12))], params


@pytest.mark.parametrize("stream", range(4))
def test_streams_of_a_seed_begin_where_jumps_lead(stream):
    right = np.random.Generator(np.random.Philox(key=7).jumped(stream)).random(300)
    assert np.array_equal(random_stream(7, stream).random(300), right)


def chance(seed, n):
    """By which xtc decides after n tokens."""
    return np.random.Generator(np.random.Philox(key=seed).jumped(3)).random(n + 1)[-1]


class Mask:
    name = "mask"

    def __init__(self, mask):
        self.mask = mask

    def allowed(self, history, n_emitted):
        return self.mask


def halved(history, ids, logits):
    """In place, by history."""
    logits[ids % 2 == len(history) % 2] /= 2
    return ids, logits


def odd_ones(history, ids, logits):
    """Fewer tokens, the last first."""
    return ids[ids % 2 == 1][::-1], logits[ids % 2 == 1][::-1]


@settings(max_examples=300, derandomize=True)  # at a border of top_p rounding alone decides
@given(st.integers(0, 2**32).map(Random))
def test_what_is_drawn_from_is_what_the_oracle_says(rng):
    """In any order, at every limit; only the top of the vocabulary is looked at, but the result is as if all of it were."""
    row, history, params = some_case(rng)
    processors = rng.choice([(), (), (halved,), (halved, odd_ones), (odd_ones, halved)])
    share = rng.choice([None, None, 0.05, 0.5, 0.95])
    allowed = None if share is None else np.array([rng.random() < share for _ in range(V)])
    breakers = rng.choice([{}, {}, {0: [()]}, {1: [(2,), (2, 3)], 2: [(), (0,)]}])
    mask = None if allowed is None else Mask(allowed)
    sampler = Sampler(params, n_vocab=V, processors=processors, constraint=mask, breakers=breakers)
    ids, probabilities = sampler.distribution(of([row]), 0, np.array(history, np.int32), 0)
    told = {"breakers": breakers, "chance": chance(params.seed, len(history))}
    expected = oracle.distribution(row, history, params, processors, allowed, **told) or {-1: 1.0}
    assert (sampler.error is not None) == (-1 in expected)
    assert probabilities[0] == probabilities.max()
    assert probabilities.sum() == pytest.approx(1)
    found = {token: p for token, p in zip(ids.tolist(), probabilities.tolist(), strict=True) if p > 0}
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("share", [None, 0.01, 0.6])
@pytest.mark.parametrize("change", [{}, {"repeat_penalty": 1.3, "logit_bias": {5: 9.0, 7: -np.inf}}])
@pytest.mark.parametrize(
    "how",
    [
        *({"mirostat": version, "mirostat_tau": tau} for version in (1, 2) for tau in (0.0, 3.0, 500.0)),
        *({"top_n_sigma": sigma, "top_k": k} for sigma in (0.1, 1.0, 9.0) for k in (0, 40)),
        {"top_k": 0, "top_p": 1.0, "min_p": 0.02},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"samplers": ["temperature", "min_p", "penalties", "top_p"]},
    ],
)
def test_where_few_tokens_are_left_only_these_are_sorted_and_the_same_are_drawn(how, change, share):
    n, rng, history = 3000, np.random.default_rng(3), [5, 6, 7]
    mask = None if share is None else Mask(rng.random(n) < share)
    params = SamplingParams(**{"seed": 2, "temperature": 0.7} | how | change)
    partly, wholly = (Sampler(params, n_vocab=n, constraint=mask) for _ in range(2))
    assert not partly._is_sorted
    wholly._is_sorted, wholly._stays_unsorted = True, False
    for i in range(12):
        row = of([rng.standard_normal(n).round(i % 3) * (3, 0.1)[i % 2]])  # with many equals; likely ones, or none
        found, expected = (each.distribution(row, 0, np.array(history, np.int32), i) for each in (partly, wholly))
        orders = (np.argsort(found[0]), np.argsort(expected[0])) if partly._stays_unsorted else (slice(None), slice(None))
        assert found[0][0] == expected[0][0]
        assert np.array_equal(found[0][orders[0]], expected[0][orders[1]])
        assert np.abs(found[1][orders[0]] - expected[1][orders[1]]).max() < 1e-15  # summed in another order
        tokens = [each.choose(row, 0, np.array(history, np.int32), i) for each in (partly, wholly)]
        assert tokens[0] == tokens[1]
        history.append(tokens[0])
    mus = [each.going_on(np.array(history, np.int32), 12)["mirostat_mu"] for each in (partly, wholly)]
    assert mus[0] == (None if mus[1] is None else pytest.approx(mus[1], rel=1e-12))


@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"top_k": 40, "repeat_penalty": 1.1, "logit_bias": {7: 4.0, 8: -np.inf}}]
)
@pytest.mark.parametrize("share", [0.002, 0.02, 0.3, 0.5, 0.9, 1.0])
def test_a_mask_of_any_size_leaves_the_best_that_it_allows(share, params):
    n, rng = 2000, np.random.default_rng(5)
    params = SamplingParams(top_p=0.9, seed=1, **params)
    for _ in range(5):
        row = rng.standard_normal(n).round(1).astype(np.float32)  # many are equal
        allowed = rng.random(n) < share
        allowed[rng.integers(n)] = True
        history = rng.integers(0, n, 30).astype(np.int32)
        ids, probabilities = Sampler(params, n_vocab=n, constraint=Mask(allowed)).distribution(of([row]), 0, history, 0)
        expected = oracle.distribution(row, history.tolist(), params, (), allowed)
        assert dict(zip(ids.tolist(), probabilities.tolist(), strict=True)) == pytest.approx(expected, rel=1e-9)


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


def test_numbers_to_verify_by_are_of_seed_and_index_in_any_order_and_one_is_that_of_choosing():
    def numbers(*indices, offset=0):
        sampler = Sampler(SamplingParams(seed=5, seed_offset=offset), n_vocab=V)
        return {index + offset: sampler.uniforms(index) for index in indices}

    rising, one, going_on = numbers(*range(600)), numbers(599, 3), numbers(70, 0, offset=500)
    assert one | going_on == {index: rising[index] for index in (599, 3, 570, 500)}
    both = np.array([*rising.values()])
    assert len(np.unique(both)) == both.size
    assert 0 <= both.min() < 0.01
    assert 0.99 < both.max() < 1
    two = of([[0.0, 0.0] + [-np.inf] * (V - 2)])
    sampler = Sampler(SamplingParams(seed=5), n_vocab=V)
    assert all(sampler.choose(two, 0, NO_HISTORY, i) == (rising[i][1] >= 0.5) for i in range(600))


def test_without_a_seed_every_sampler_has_its_own():
    assert Sampler(SamplingParams(), n_vocab=V).params.seed != Sampler(SamplingParams(), n_vocab=V).params.seed


def test_a_seed_is_a_number_of_64_bits_with_or_without_a_sign_and_minus_1_is_a_new_one():
    assert SamplingParams(seed=-1) == SamplingParams(seed=None)
    assert SamplingParams(seed=-42) == SamplingParams(seed=2**64 - 42)
    assert SamplingParams(seed=-(2**63)) == SamplingParams(seed=2**63)
    assert SamplingParams(seed=-42.0).seed == 2**64 - 42


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "temperature is -1, expected 0 to"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 1.5}, "top_k is 1.5, expected a whole number"),
        ({"top_p": 2}, "top_p is 2, expected 0 to 1"),
        ({"min_p": "much"}, "min_p is 'much', expected a number"),
        ({"seed": -(2**63) - 1}, "seed is -9223372036854775809"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"seed": -2.5}, "seed is -2.5, expected a whole number"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {5.7: 1.0}}, "logit_bias is {5.7: 1.0}, expected a mapping from token ids"),
        ({"logit_bias": {1: float("nan")}}, "token 1 is nan"),
        ({"logit_bias": {1: float("inf")}}, "token 1 is inf"),
        ({"mirostat": 3}, "mirostat is 3, expected 0 to 2"),
        ({"mirostat_mu": float("nan")}, "mirostat_mu is nan"),
        ({"dry_base": 0.5}, "dry_base is 0.5, expected 1 to"),
        ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers is 'x', expected a list of texts"),
        ({"dry_sequence_breakers": [""]}, "expected a list of texts that are not empty"),
    ],
)
def test_wrong_values_are_refused_with_what_was_expected(values, message):
    with pytest.raises(OptionError, match=message):
        SamplingParams(**values)


def test_a_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(OptionError, match=f"token {V}"):
        Sampler(SamplingParams(logit_bias={V: 1.0}), n_vocab=V)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("odd", [[np.nan], [np.inf], [-np.inf] * V])
def test_nothing_is_chosen_from_a_row_that_is_not_finite(temperature, odd):
    sampler = Sampler(SamplingParams(temperature=temperature, repeat_penalty=1.1, logit_bias={3: -np.inf}), n_vocab=V)
    assert sampler.choose(of([[*odd, *[1.0] * (V - len(odd))]]), 0, np.array([1, 2], np.int32), 0) == -1


def test_dry_looks_no_further_back_than_a_breaker():
    history = np.array([1, 2, 3, 4, 9, 1, 2, 3], np.int32)
    how = {"temperature": 1.0, "dry_multiplier": 1.0, "dry_base": 2.0, "dry_allowed_length": 1, **KEEP_ALL}

    def penalties(breakers):
        sampler = Sampler(SamplingParams(**how), n_vocab=V, breakers=breakers)
        ids, p = sampler.distribution(of([[0.0] * V]), 0, history, 0)
        by_token = dict(zip(ids.tolist(), np.log(p).tolist(), strict=True))
        return {token: round(max(by_token.values()) - x, 9) for token, x in by_token.items() if x < max(by_token.values())}

    assert penalties({}) == {4: 4.0}  # after three tokens: 2 ** (3 - 1)
    assert penalties({2: [()]}) == {4: 1.0}  # after the one that follows the breaker
    assert penalties({3: [()]}) == {}
    assert penalties({1: [(2,)]}) == {4: 1.0}  # a breaker of two tokens
    assert penalties({1: [(3,)]}) == {4: 4.0}
    assert penalties({4: [()]}) == {}  # what breaks is no repetition


def test_breakers_are_the_tokens_that_hold_them_or_begin_them():
    tokens = ["a", "b", "ab", "xab", "bc", "c", "abc", "abx"]
    tokenizer = load_tokenizer(tiny(tokens=tokens, token_type=None, merges=[], bos_token_id=None, eos_token_id=None))
    found = breakers(tokenizer, ["abc"])
    assert {tokens[token]: tails for token, tails in found.items()} == {
        "a": [(1, 5)],
        "ab": [(5,)],
        "xab": [(5,)],
        "abc": [()],
    }
    assert breakers(tokenizer, []) == {}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_allows_the_surprise_that_what_was_drawn_before_leaves(version, seed):
    params = SamplingParams(
        mirostat=version, mirostat_tau=2.5, mirostat_eta=0.4, temperature=0.9, top_k=2, seed=seed, seed_offset=7
    )
    sampler, mu, history = Sampler(params, n_vocab=V), 5.0, [3, 4]
    rows = np.random.default_rng(seed).standard_normal((40, V)).astype(np.float32) * 2
    sizes = set()
    for i, row in enumerate(rows):
        text = np.array(history, np.int32)
        for _ in range(1 + i % 3):  # as often as one asks
            ids, probabilities = sampler.distribution(of([row]), 0, text, i)
            expected = oracle.mirostat(row, mu, params)
            found = dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
            assert found == pytest.approx(expected, rel=1e-6)  # logits are float32
        token = sampler.choose(of([row]), 0, text, i)
        mu -= params.mirostat_eta * (-np.log2(expected[token]) - params.mirostat_tau)
        history.append(token)
        sizes.add(len(ids))
        going_on = SamplingParams(**sampler.going_on(np.array(history, np.int32), i + 1))
        assert going_on.mirostat_mu == pytest.approx(mu, rel=1e-5)
        assert going_on.seed_offset == 7 + i + 1
    assert len(sizes) > 3


def test_mirostat_of_equal_or_few_tokens_keeps_them():
    for version in (1, 2):
        sampler = Sampler(SamplingParams(mirostat=version, temperature=1.0, seed=1), n_vocab=V)
        assert len(sampler.distribution(of([[0.0] * V]), 0, NO_HISTORY, 0)[0]) == V
        assert len(sampler.distribution(of([[0.0] + [-np.inf] * (V - 1)]), 0, NO_HISTORY, 0)[0]) == 1
    assert Sampler(SamplingParams(mirostat=2, temperature=0.0), n_vocab=V).is_plain_argmax
