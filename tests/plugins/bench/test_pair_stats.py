"""What pairs come to."""

import pytest
from attrs import evolve
from hypothesis import given, strategies as st
from support.pairs import pair

from augury.plugins.bench.pair_stats import DrafterResult, PairStats, comparison_lines, stall_lines


def test_speeds_are_medians_and_the_speed_up_that_of_the_pairs_ratios():
    stats = PairStats.of([pair(3.0, 1.0), pair(1.0, 1.0), pair(3.0, 0.75)])
    assert (stats.plain_per_second, stats.per_second) == (1.0, 3.0)
    assert sorted(stats.ratios) == [1, 3, 4]
    assert stats.speedup == 3
    assert stats.interval == (1, 4)
    assert stats.p10 == pytest.approx(1.4)


def test_a_stalled_pair_is_counted_and_has_no_speed():
    stalled = evolve(pair(5.0, 1.0), n_repeated=3)  # 5 times as fast, with 3 tokens a round
    result = DrafterResult("x", "cold", (stalled, evolve(pair(3.0, 1.0), n_repeated=1)))
    stats = result.stats
    assert (stats.ratios, stats.n_repeated, stats.n_stalled) == ([3], 4, 1)
    (line,) = stall_lines([stats])
    assert "4 plain runs" in line
    assert "1 pairs stalled each time and are left out" in line
    assert comparison_lines([result])[2:] == [line]
    assert stall_lines([PairStats.of([pair()])]) == []


def test_acceptance_is_counted_by_position():
    stats = PairStats.of([pair(rounds=((0, 0), (3, 2), (1, 0))), pair(rounds=((0, 0), (4, 4)))])
    assert stats.offered_by_position == (3, 2, 2, 1)
    assert stats.accepted_by_position == (2, 2, 1, 1)
    assert stats.acceptance_by_position == [2 / 3, 1, 1 / 2, 1]
    assert (stats.n_drafted, stats.n_accepted) == (8, 6)
    assert stats.acceptance_rate == 6 / 8
    assert stats.tokens_per_round == 8 / 5


def test_a_text_of_one_token_has_no_speed():
    stats = PairStats.of([pair(drafted_s=0.0)])
    assert stats.speeds == ()
    assert (stats.plain_per_second, stats.per_second, stats.speedup, stats.p10) == (0, 0, 0, 0)
    assert stats.interval == (0, 0)


def test_one_pair_that_differs_is_enough_to_say_so():
    assert PairStats.of([pair()]).is_identical
    stats = PairStats.of([pair(), pair(tokens=(1, 2, 3, 9))])
    assert not stats.is_identical
    assert stats.is_changed


def test_a_text_that_was_not_promised_to_be_the_same_may_differ():
    drawn = evolve(pair(tokens=(1, 2, 3, 9)), is_promised=False)
    assert not PairStats.of([drawn]).is_changed
    assert PairStats.of([drawn, pair(tokens=(1, 2, 3, 9))]).is_changed


rounds = st.lists(st.integers(0, 5).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), min_size=1)
pairs = st.builds(pair, st.floats(0.1, 9), st.floats(0.1, 9), rounds=rounds)


@given(st.lists(pairs, max_size=9))
def test_counts_by_position_come_to_those_of_all_tokens(several):
    every = PairStats.of(several)
    assert sum(every.accepted_by_position) == every.n_accepted
    assert sum(every.offered_by_position) == every.n_drafted


def test_a_result_has_stats_by_category():
    result = DrafterResult("x:n=2", "warm", (pair(category="b"), pair(category="a"), pair(category="b", tokens=(1, 2, 3, 9))))
    assert result.label == "x:n=2 (warm)"
    assert list(result.by_category) == ["b", "a"]
    assert [each.is_identical for each in result.by_category.values()] == [False, True]
    found = result.as_json()
    assert set(found["categories"]) == {"a", "b"}
    assert found["spec_type"] == "x:n=2"
    assert found["tokens"] == 12
