"""Turns of two programs, and the interval of the median of their ratios."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from augury.plugins.bench.timing import Measurement, PairedTiming, Runner, Timing, compare_passes, median_interval

ONE, TWO = Measurement("curve", 1, 0), Measurement("curve", 2, 0)


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    monkeypatch.setattr("augury.plugins.bench.timing._REST_S", 0)


class Script(Runner):
    def __init__(self, name, seconds, log):
        self.name, self.each, self.log = name, seconds, log

    def prepare(self, depth):
        self.log.append((self.name, depth))

    def seconds(self, measure):
        self.log.append((self.name, measure))
        return self.each


def test_programs_swap_places_from_pair_to_pair():
    log = []
    compare_passes(Script("a", 1.0, log), Script("b", 2.0, log), [ONE], n_pairs=4)
    turns = [name for name, _ in log[4:]]
    assert turns == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_measures_take_turns_within_a_pair():
    log = []
    compare_passes(Script("a", 1.0, log), Script("b", 2.0, log), [ONE, TWO], n_pairs=2)
    assert [measure for _, measure in log[6:]] == [ONE, ONE, TWO, TWO] * 2


def test_short_measures_are_repeated_within_a_turn():
    log = []
    compare_passes(Script("a", 0.1, log), Script("b", 1.0, log), [ONE], n_pairs=1)
    assert [name for name, _ in log[4:]] == ["a", "a", "a", "b"]


def test_turns_that_are_through_are_told():
    told = []
    compare_passes(
        Script("a", 1.0, []), Script("b", 1.0, []), [ONE, TWO], n_pairs=2, progress=lambda *words: told.append(words)
    )
    assert told == [("take turns", done, 6) for done in (0, 0, 2, 3, 4, 5)]


def test_a_ratio_says_how_much_faster_we_are():
    (paired,) = compare_passes(Script("a", 1.0, []), Script("b", 2.0, []), [ONE], n_pairs=7)
    assert paired.ratios == (2.0,) * 7
    assert (paired.ratio, paired.interval) == (2.0, (2.0, 2.0))


def test_a_round_trip_is_taken_before_each_pair():
    log = []
    trips = iter([100.0, None, 300.0])

    def probe():
        log.append("probe")
        return next(trips)

    (paired,) = compare_passes(Script("a", 1.0, log), Script("b", 2.0, log), [ONE], n_pairs=3, probe=probe)
    assert paired.round_trips_ns == (100.0, 300.0)
    order = "".join("p" if entry == "probe" else entry[0] for entry in log[4:])
    assert order == "pab" + "pba" + "pab"


def test_ratios_are_those_of_pairs_not_of_medians():
    paired = PairedTiming(Timing(ONE, (1.0, 2.0, 4.0)), Timing(ONE, (2.0, 6.0, 4.0)))
    assert paired.ratios == (2.0, 3.0, 1.0)
    assert paired.ratio == 2.0


@pytest.mark.parametrize("n", [6, 7, 9, 12, 25, 100])
def test_the_interval_is_the_narrowest_with_95_percent(n):
    low, high = median_interval(range(n))
    assert low + high == n - 1
    outside = [2 * sum(math.comb(n, i) for i in range(rank + 1)) / 2**n for rank in (low, low + 1)]
    assert outside[0] <= 0.05 < outside[1]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30))
def test_the_interval_holds_the_median(values):
    low, high = median_interval(values)
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    assert all(first <= second for first, second in pairwise([low, *middle, high]))
