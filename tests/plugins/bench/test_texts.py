"""Prompts answered in turns."""

from contextlib import contextmanager

import pytest

from augury.plugins.bench.texts import Answer, TextPair, TextRatio, compare_texts
from augury.plugins.bench.workload import Item

ITEMS = [Item("a", "x"), Item("b", "y"), Item("c", "x")]


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    monkeypatch.setattr("augury.plugins.bench.texts.REST_S", 0)


def compared(n_pairs, *, is_fresh):
    log = []

    @contextmanager
    def sides():
        log.append("start")
        yield lambda item: told("ours", item, 6.0), lambda item: told("theirs", item, 2.0)

    def told(side, item, speed):
        log.append((side, item.id))
        return Answer((1, 2, 3), 10 * speed, speed)

    return compare_texts(ITEMS, sides, n_pairs, is_fresh=is_fresh), log


def test_each_category_has_enough_pairs_and_each_prompt_as_many_as_others_of_it():
    ratios, log = compared(3, is_fresh=False)
    assert [(ratio.category, [pair.item.id for pair in ratio.pairs]) for ratio in ratios] == [
        ("x", ["a", "c", "a", "c"]),
        ("y", ["b", "b", "b"]),
    ]
    assert log.count("start") == 1


def test_programs_swap_places_from_pair_to_pair():
    _, log = compared(3, is_fresh=False)
    assert [entry[0] for entry in log if entry != "start"] == ["ours", "theirs", "theirs", "ours"] * 3 + ["ours", "theirs"]


def test_both_start_anew_for_every_pair_where_either_remembers():
    _, log = compared(1, is_fresh=True)
    assert [entry if entry == "start" else entry[1] for entry in log] == ["start", *"aa", "start", *"cc", "start", *"bb"]


def test_a_ratio_is_the_median_of_the_pairs():
    ratios, _ = compared(3, is_fresh=False)
    told = ratios[0].told()
    assert told["generation"] == {"tok_s": 6, "peer_tok_s": 2, "ratio": 3, "interval": [3, 3]}
    assert told["prompt"] == {"tok_s": 60, "peer_tok_s": 20, "ratio": 3, "interval": [3, 3]}
    assert told["round_trip_ns"] == []


def test_texts_are_the_same_up_to_the_first_token_that_differs():
    pair = TextPair(ITEMS[0], Answer((1, 2, 3, 4), 1, 1, 7, 5), Answer((1, 2, 9, 4), 1, 1), 120.0)
    assert pair.n_same == 2
    told = TextRatio("x", (pair, TextPair(ITEMS[0], Answer((5, 6), 1, 1), Answer((5, 6), 1, 1)))).told()
    assert told["same"] == 4 / 6
    assert (told["drafted"], told["accepted"]) == ([7, 0], [5, 0])
    assert told["round_trip_ns"] == [120.0]
