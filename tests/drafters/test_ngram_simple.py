import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from oracles.ngram_maps import simple_draft
from support.toys import as_history, drafted

from augury.drafters.ngram_simple import NgramSimple, NgramSimpleOptions
from augury.types import Verdict

CASES = json.loads((Path(__file__).parents[1] / "data/ngram/ngram_simple.json").read_text())


def drafter_of(n, m):
    return NgramSimple(NgramSimpleOptions(n=n, m=m), None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"n{case['n']}-m{case['m']}-{len(case['tokens'])}")
def test_every_round_drafts_what_llama_cpp_drafts(case):
    drafter = drafter_of(case["n"], case["m"])
    tokens = as_history(case["tokens"])
    drafter.begin(tokens[: case["prompt_len"]], 0)
    for h, expected, n_accepted in case["rounds"]:
        assert drafted(drafter, tokens[: h + 1]) == expected
        drafter.accept(tokens[: h + 2 + n_accepted], Verdict(len(expected), n_accepted, n_accepted + 1, is_used=bool(expected)))


def test_the_cases_hold_drafts_and_refusals():
    rounds = [draft for case in CASES for _, draft, _ in case["rounds"]]
    assert sum(map(bool, rounds)) > 1000
    assert sum(not draft for draft in rounds) > 1000


texts = st.integers(1, 4).flatmap(lambda v: st.lists(st.integers(0, v), min_size=2, max_size=150))


@given(texts, st.integers(1, 6), st.integers(1, 12), st.data())
def test_any_text_in_any_steps_drafts_what_a_scan_finds(text, n, m, data):
    drafter = drafter_of(n, m)
    length = data.draw(st.integers(1, len(text)))
    if data.draw(st.booleans(), label="begin is called"):
        drafter.begin(as_history(text[:length]), 0)
    while length <= len(text):
        assert drafted(drafter, text[:length]) == simple_draft(text[:length], n, m)
        length += data.draw(st.integers(1, 20))


@given(texts, texts, st.integers(1, 4), st.integers(1, 12), st.data())
def test_a_request_that_shares_a_prefix_drafts_from_its_own_text_alone(first, second, n, m, data):
    n_shared = data.draw(st.integers(0, len(first)))
    second = first[:n_shared] + second
    drafter = drafter_of(n, m)
    for text, n_reused in ((first, 0), (second, n_shared)):
        drafter.begin(as_history(text[: len(text) // 2 + 1]), n_reused)
        for length in range(len(text) // 2 + 2, len(text) + 1):
            assert drafted(drafter, text[:length]) == simple_draft(text[:length], n, m)
        drafter.end()


@given(texts, st.integers(0, 8))
def test_a_limit_cuts_the_draft_and_changes_nothing_else(text, limit):
    whole = drafter_of(2, 8).draft(as_history(text), 10**6).tokens
    assert drafter_of(2, 8).draft(as_history(text), limit).tokens.tolist() == whole[:limit].tolist()


def test_a_text_of_one_repeated_token_is_drafted_only_as_far_as_it_was_seen():
    assert drafted(drafter_of(1, 4), [7] * 50) == [7]
    assert drafted(drafter_of(2, 4), [7] * 50) == []


def test_lengths_that_never_draft_are_pointed_out(caplog):
    drafter_of(n=12, m=12)
    assert not caplog.text
    drafter_of(n=12, m=7)
    assert "nothing will be drafted" in caplog.text
