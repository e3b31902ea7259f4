import json
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles.ngram_pools import NaiveNgramMod
from support.toys import as_history, drafted

from augury.drafters.ngram_mod import NgramMod, NgramModOptions
from augury.engine.shared import Shared
from augury.options import options_of
from augury.types import Verdict

CASES = json.loads((Path(__file__).parents[1] / "data/ngram/ngram_mod.json").read_text())


def drafters_of(n_slots, **options):
    session = SimpleNamespace(n_slots=n_slots, model=SimpleNamespace(n_vocab=50_000), shared=Shared().get)
    return [NgramMod(NgramModOptions(**options), session) for _ in range(n_slots)]


def drafter_of(**options):
    return drafters_of(1, **options)[0]


def accept(drafter, text, n_offered, n_accepted):
    verdict = Verdict(n_offered, n_accepted, n_accepted + 1, is_used=n_offered > 0)
    drafter.accept(as_history(text), verdict)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"n{case['n']}-{case['min']}to{case['m']}-{case['prompt_len']}")
def test_every_round_drafts_what_llama_cpp_drafts(case):
    drafter = drafter_of(n_match=case["n"], n_max=case["m"], n_min=case["min"])
    tokens = as_history(case["tokens"])
    drafter.begin(tokens[: case["prompt_len"] + 1], 0)
    for h, expected, n_accepted in case["rounds"]:
        assert drafted(drafter, tokens[: h + 1]) == expected
        accept(drafter, tokens[: h + 2 + n_accepted], len(expected), n_accepted)


texts = st.integers(0, 4).flatmap(lambda v: st.lists(st.integers(0, v), min_size=2, max_size=150))


@settings(max_examples=150)
@given(st.data())
def test_any_script_of_requests_in_any_slots_drafts_what_the_definition_says(data):
    n_slots = data.draw(st.integers(1, 3))
    n, n_min, n_max = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 4)), data.draw(st.integers(0, 8))
    pool = {}
    slots = list(
        zip(
            drafters_of(n_slots, n_match=n, n_min=n_min, n_max=n_max),
            [NaiveNgramMod(n, n_min, n_max, pool) for _ in range(n_slots)],
            strict=True,
        )
    )
    running = [None] * n_slots
    for _ in range(data.draw(st.integers(1, 60))):
        slot = data.draw(st.integers(0, n_slots - 1))
        drafter, naive = slots[slot]
        if running[slot] is None or not running[slot][1]:
            text = data.draw(texts)
            half = len(text) // 2 + 1
            running[slot] = text[:half], text[half:]
            drafter.begin(as_history(text[:half]), 0)
            naive.begin(text[: half - 1])
        text, rest = running[slot]
        expected = naive.draft(text)
        assert drafted(drafter, text) == expected
        n_accepted = data.draw(st.integers(0, min(len(expected), 1 if data.draw(st.booleans()) else 8)))
        naive.accept(n_accepted)
        running[slot] = text + rest[: n_accepted + 1], rest[n_accepted + 1 :]
        accept(drafter, running[slot][0], len(expected), n_accepted)


@settings(max_examples=50)
@given(st.permutations(range(9)), st.integers(1, 3), st.integers(0, 10), st.integers(1, 12))
def test_a_limit_cuts_what_reached_the_minimum_and_vetoes_nothing(phrase, n_match, n_min, limit):
    text = [*phrase, *phrase, *phrase[:n_match]]
    drafter = drafter_of(n_match=n_match, n_min=n_min, n_max=8)
    drafter.begin(as_history(text), 0)
    assert drafted(drafter, text, limit) == [*phrase, *phrase][n_match : n_match + min(limit, 8)]


TEXT = [*range(40), 0, 1]


def test_slots_share_what_they_learn_and_requests_leave_it_to_later_ones():
    first, second = drafters_of(2, n_match=2, n_min=1, n_max=4)
    first.begin(as_history(TEXT), 0)
    assert drafted(second, [90, 7, 8]) == [9, 10, 11, 12]
    first.end()
    first.begin(as_history([90, 7, 8]), 0)
    assert drafted(first, [90, 7, 8]) == [9, 10, 11, 12]


def test_five_poor_drafts_in_a_row_empty_the_pool_of_all_but_the_own_text():
    drafter = drafter_of(n_match=2, n_min=1, n_max=4)
    drafter.begin(as_history([*range(100, 140), 100]), 0)
    drafter.begin(as_history(TEXT), 0)
    for n_accepted in (0, 0, 0, 0, 1, 0, 0, 0, 0, 0):
        assert drafted(drafter, [*TEXT[:-2], 100, 101]) == [102, 103, 104, 105]
        accept(drafter, TEXT, 4, n_accepted)
    assert drafted(drafter, [*TEXT[:-2], 100, 101]) == []
    assert drafted(drafter, TEXT) == [2, 3, 4, 5]


@pytest.mark.parametrize(("n_offered", "n_accepted"), [(0, 0), (2, 2), (2, 1)])
def test_a_draft_that_was_not_used_or_was_cut_and_right_is_not_poor(n_offered, n_accepted):
    drafter = drafter_of(n_match=2, n_min=1, n_max=16)
    drafter.begin(as_history([*range(100, 140), 100]), 0)
    drafter.begin(as_history(TEXT), 0)
    for _ in range(10):
        assert drafted(drafter, [*TEXT[:-2], 100, 101], limit=2) == [102, 103]
        accept(drafter, TEXT, n_offered, n_accepted)


def test_a_prompt_that_finds_the_pool_more_than_a_quarter_full_empties_it():
    rng = np.random.default_rng(0)
    first, second = drafters_of(2, n_match=2, n_min=1, n_max=4)
    first.begin(as_history(TEXT), 0)
    for n_tokens, is_emptied in ((1_000_000, False), (400_000, True)):
        second.begin(rng.integers(100, 2**31, n_tokens, dtype=np.int32), 0)
        assert drafted(first, TEXT)[:1] == ([] if is_emptied else [2])  # the next ones are overwritten


def test_repetition_does_not_fill_the_pool():
    drafter = drafter_of(n_match=2, n_min=1, n_max=4)
    for _ in range(3):
        drafter.begin(np.zeros(1_000_000, dtype=np.int32), 0)
    assert drafted(drafter, [1, 0, 0, 0]) == [0, 0, 0, 0]


def test_presets_fill_what_was_not_given():
    assert attrs.astuple(NgramModOptions()) == ("long", 24, 48, 64)
    assert attrs.astuple(NgramModOptions(preset="short")) == ("short", 16, 4, 64)
    assert attrs.astuple(NgramModOptions(preset="short", n_min=24, n_max=32)) == ("short", 16, 24, 32)


def test_a_request_may_bring_lengths_of_its_own():
    options = options_of(NgramModOptions)
    assert {name for name, option in options.items() if option.is_per_request} == {"n_min", "n_max"}
    drafter = drafter_of(n_match=2, n_min=1, n_max=4)
    drafter.begin(as_history(TEXT), 0)
    drafter.options = attrs.evolve(drafter.options, n_max=2)
    assert drafted(drafter, TEXT) == [2, 3]
    drafter.options = attrs.evolve(drafter.options, n_max=64, n_min=50)
    assert drafted(drafter, [*TEXT[:-2], 35, 36]) == []


def test_lengths_that_contradict_each_other_are_pointed_out(caplog):
    drafter_of(n_min=48, n_max=8)
    assert "n_min is more than n_max" in caplog.text
