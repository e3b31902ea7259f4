"""What pairs come to."""

import json

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from pairs import pair

from augury.errors import OptionError
from augury.plugins.bench.comparison import comparison_lines, stall_lines
from augury.plugins.bench.figures import Figures
from augury.plugins.bench.outcome import Outcome


def test_speeds_are_medians_and_the_speed_up_that_of_the_pairs_ratios():
    figures = Figures.of([pair(3.0, 1.0), pair(1.0, 1.0), pair(3.0, 0.75)])
    assert (figures.plain_per_second, figures.per_second) == (1.0, 3.0)
    assert sorted(figures.ratios) == [1, 3, 4]
    assert figures.speedup == 3
    assert figures.interval == (1, 4)
    assert figures.p10 == pytest.approx(1.4)


def test_a_stalled_pair_is_counted_and_has_no_speed():
    stalled = evolve(pair(5.0, 1.0), n_repeated=3)  # 5 times as fast, with 3 tokens a round
    figures = Figures.of([stalled, evolve(pair(3.0, 1.0), n_repeated=1)])
    assert (figures.ratios, figures.n_repeated, figures.n_stalled) == ([3], 4, 1)
    assert Figures.from_told(figures.told()) == figures
    (line,) = stall_lines([figures])
    assert "4 plain runs" in line
    assert "1 pairs stalled each time and are left out" in line
    assert comparison_lines({("x", "all"): [figures]})[2:] == [line]
    assert stall_lines([Figures.of([pair()])]) == []


def test_acceptance_is_counted_by_position():
    figures = Figures.of([pair(rounds=((0, 0), (3, 2), (1, 0))), pair(rounds=((0, 0), (4, 4)))])
    assert figures.offered_by_position == (3, 2, 2, 1)
    assert figures.accepted_by_position == (2, 2, 1, 1)
    assert figures.acceptance_by_position == [2 / 3, 1, 1 / 2, 1]
    assert (figures.n_drafted, figures.n_accepted) == (8, 6)
    assert figures.acceptance_rate == 6 / 8
    assert figures.tokens_per_round == 8 / 5


def test_a_text_of_one_token_has_no_speed():
    figures = Figures.of([pair(drafted_s=0.0)])
    assert figures.speeds == ()
    assert (figures.plain_per_second, figures.per_second, figures.speedup, figures.p10) == (0, 0, 0, 0)
    assert figures.interval == (0, 0)


def test_one_pair_that_differs_is_enough_to_say_so():
    assert Figures.of([pair()]).is_identical
    figures = Figures.of([pair(), pair(tokens=(1, 2, 3, 9))])
    assert not figures.is_identical
    assert figures.is_changed


def test_a_text_that_was_not_promised_to_be_the_same_may_differ():
    drawn = evolve(pair(tokens=(1, 2, 3, 9)), is_promised=False)
    assert not Figures.of([drawn]).is_changed
    assert Figures.of([drawn, pair(tokens=(1, 2, 3, 9))]).is_changed


rounds = st.lists(st.integers(0, 5).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), min_size=1)
pairs = st.builds(pair, st.floats(0.1, 9), st.floats(0.1, 9), rounds=rounds)


@given(st.lists(st.lists(pairs, max_size=3), max_size=3))
def test_figures_pool_to_those_of_all_pairs(groups):
    every = Figures.of(each for group in groups for each in group)
    assert Figures.pool(Figures.of(group) for group in groups) == every
    assert sum(every.accepted_by_position) == every.n_accepted
    assert sum(every.offered_by_position) == every.n_drafted


@given(st.lists(pairs, max_size=4))
def test_figures_come_back_from_json(several):
    figures = Figures.of(several)
    assert Figures.from_told(json.loads(json.dumps(figures.told()))) == figures


@pytest.mark.parametrize("told", [{}, {"pairs": 3}, Figures().told() | {"tokens": None}, Figures().told() | {"pairs": [[1]]}])
def test_other_json_is_refused(told):
    with pytest.raises(OptionError, match="no figures"):
        Figures.from_told(told)


def test_an_outcome_has_figures_by_category():
    outcome = Outcome("x:n=2", "warm", (pair(category="b"), pair(category="a"), pair(category="b", tokens=(1, 2, 3, 9))))
    assert outcome.label == "x:n=2 (warm)"
    assert list(outcome.by_category) == ["b", "a"]
    assert [each.is_identical for each in outcome.by_category.values()] == [False, True]
    told = outcome.told()
    assert set(told["categories"]) == {"a", "b"}
    assert told["spec_type"] == "x:n=2"
    assert told["tokens"] == 12
