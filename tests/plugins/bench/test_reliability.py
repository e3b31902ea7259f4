"""Counts of tokens by chance and by bucket."""

import pytest

from augury.plugins.bench.paired_runs import Reliability, Tally
from augury.speculation.chances import Bucket
from augury.speculation.trials import Trial

SHORT, LONG = Bucket("evidence 0", 0.2), Bucket("evidence 1", 0.9)
ALONE, AGREED = Bucket("alone, chance 0.05 to 0.15", 0.5), Bucket("agreed, chance 0.05 to 0.15", 2.0)
TRIALS = [
    Trial(0.05, False, {"a": SHORT}, 0.125, ALONE),
    Trial(0.15, True, {"a": SHORT, "b": LONG}, 0.0625, AGREED),
    Trial(0.1, False, {"b": LONG}, 0.125, ALONE),
    Trial(1.0, True, {"b": LONG}, 1.0),
]


def tallies(found, name):
    return {step: each for step, each in enumerate(found.steps[name]) if each.n}


def test_tokens_count_for_each_who_proposed_them_and_once_for_all_together():
    found = Reliability.of(TRIALS)
    assert list(found.steps) == ["together", "a", "b"]
    assert tallies(found, "together") == {0: Tally(1, 0.05, 0), 1: Tally(2, 0.25, 1), 9: Tally(1, 1.0, 1)}
    assert tallies(found, "a") == {0: Tally(1, 0.05, 0), 1: Tally(1, 0.15, 1)}
    assert tallies(found, "b") == {1: Tally(2, 0.25, 1), 9: Tally(1, 1.0, 1)}
    assert found.buckets == {
        ("a", "evidence 0"): (0.2, Tally(2, 0.2, 1)),
        ("b", "evidence 1"): (0.9, Tally(3, 1.25, 2)),
    }
    assert found.agreement == {ALONE.name: (0.5, Tally(2, 0.25, 0)), AGREED.name: (2.0, Tally(1, 0.0625, 1))}, "by own chances"


def test_json_has_the_counts():
    told = Reliability.of(TRIALS).as_json()
    assert told["steps"]["a"][:2] == [[1, 0.05, 0], [1, 0.15, 1]]
    assert told["buckets"]["b"] == {"evidence 1": {"prior": 0.9, "n": 3, "n_right": 2}}
    assert told["agreement"][AGREED.name] == {"prior": 2.0, "n": 1, "expected": 0.0625, "n_right": 1}


def test_an_interval_holds_the_share_and_is_narrower_with_more_tokens():
    for n_right in (0, 4, 10):
        few, many = Tally(10, 5.0, n_right), Tally(1000, 500.0, 100 * n_right)
        assert 0 <= few.interval[0] <= many.interval[0] <= many.share <= many.interval[1] <= few.interval[1] <= 1
    assert Tally(10, 5.0, 4).interval == pytest.approx((0.1682, 0.6873), abs=1e-4)  # Wilson's
    assert (Tally().chance, Tally().share, Tally().interval) == (0, 0, (0, 1))
