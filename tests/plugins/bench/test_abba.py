"""Turns of two programs on passes and on prompts, and the interval of the median of their ratios."""

import math
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from augury.cli.prompts import Prompt
from augury.plugins.bench.abba import (
    Answer,
    AnswerPair,
    AnswerPairs,
    PairedTiming,
    compare_answers,
    compare_passes,
    median_interval,
)
from augury.plugins.bench.timing import Measurement, Runner, Timing

ONE, TWO = Measurement("curve", 1, 0), Measurement("curve", 2, 0)
PROMPTS = [Prompt(id=name, category=category) for name, category in ("ax", "by", "cx")]


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    monkeypatch.setattr("augury.plugins.bench.abba._REST_S", 0)


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


def compared(n_pairs, *, is_fresh):
    log = []

    @contextmanager
    def sides():
        log.append("start")
        yield lambda prompt: answered("ours", prompt, 6.0), lambda prompt: answered("theirs", prompt, 2.0)

    def answered(side, prompt, speed):
        log.append((side, prompt.id))
        return Answer((1, 2, 3), 10 * speed, speed)

    return compare_answers(PROMPTS, sides, n_pairs, is_fresh=is_fresh), log


def test_each_category_has_enough_pairs_and_each_prompt_as_many_as_others_of_it():
    answers, log = compared(3, is_fresh=False)
    assert [(each.category, [pair.prompt.id for pair in each.pairs]) for each in answers] == [
        ("x", ["a", "c", "a", "c"]),
        ("y", ["b", "b", "b"]),
    ]
    assert log.count("start") == 1


def test_programs_swap_places_from_prompt_to_prompt():
    _, log = compared(3, is_fresh=False)
    assert [entry[0] for entry in log if entry != "start"] == ["ours", "theirs", "theirs", "ours"] * 3 + ["ours", "theirs"]


def test_both_start_anew_for_every_pair_where_either_remembers():
    _, log = compared(1, is_fresh=True)
    assert [entry if entry == "start" else entry[1] for entry in log] == ["start", *"aa", "start", *"cc", "start", *"bb"]


def test_a_ratio_is_the_median_of_the_pairs():
    answers, _ = compared(3, is_fresh=False)
    found = answers[0].as_json()
    assert found["generation"] == {"tok_s": 6, "peer_tok_s": 2, "ratio": 3, "interval": [3, 3]}
    assert found["prompt"] == {"tok_s": 60, "peer_tok_s": 20, "ratio": 3, "interval": [3, 3]}
    assert found["round_trip_ns"] == []


def test_texts_are_the_same_up_to_the_first_token_that_differs():
    pair = AnswerPair(PROMPTS[0], Answer((1, 2, 3, 4), 1, 1, 7, 5), Answer((1, 2, 9, 4), 1, 1), 120.0)
    assert pair.n_same == 2
    found = AnswerPairs("x", (pair, AnswerPair(PROMPTS[0], Answer((5, 6), 1, 1), Answer((5, 6), 1, 1)))).as_json()
    assert found["same"] == 4 / 6
    assert (found["drafted"], found["accepted"]) == ([7, 0], [5, 0])
    assert found["round_trip_ns"] == [120.0]
