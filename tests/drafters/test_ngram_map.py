"""Both n-gram maps: what they have in common is tested on both."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from oracles.ngram_maps import NaiveNgramMap
from support.toys import as_history, drafted

from augury.drafters.ngram_map import NgramMapK, NgramMapK4v, NgramMapK4vOptions, NgramMapKOptions
from augury.types import Verdict

DATA = Path(__file__).parents[1] / "data/ngram"
CASES = [case for name in ("ngram_map_k", "ngram_map_k4v") for case in json.loads((DATA / f"{name}.json").read_text())]


def drafter_of(n, m, min_hits=None):
    if min_hits is None:
        return NgramMapK(NgramMapKOptions(n=n, m=m), None)
    return NgramMapK4v(NgramMapK4vOptions(n=n, m=m, min_hits=min_hits), None)


def accept(drafter, n_offered, n_accepted):
    verdict = Verdict(n_offered, n_accepted, n_accepted + 1, is_used=n_offered > 0)
    drafter.accept(as_history([]), verdict)


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{'k4v' if 'min' in case else 'k'}-n{case['n']}-m{case['m']}-{case['prompt_len']}"
)
def test_every_round_drafts_what_llama_cpp_drafts(case):
    drafter = drafter_of(case["n"], case["m"], case.get("min"))
    tokens = as_history(case["tokens"])
    drafter.begin(tokens[: case["prompt_len"] + 1], 0)
    for h, expected, n_accepted in case["rounds"]:
        assert drafted(drafter, tokens[: h + 1]) == expected
        accept(drafter, len(expected), n_accepted)


def test_the_cases_hold_drafts_rejections_and_refusals_of_both():
    for is_k4v in (False, True):
        rounds = [r for case in CASES if ("min" in case) == is_k4v for r in case["rounds"]]
        assert sum(bool(draft) for _, draft, _ in rounds) > 100
        assert sum(0 < n_accepted < len(draft) for _, draft, n_accepted in rounds) > 20
        assert sum(not draft for _, draft, _ in rounds) > 1000


texts = st.integers(0, 4).flatmap(lambda v: st.lists(st.integers(0, v), min_size=2, max_size=150))
kinds = st.sampled_from([None, 1, 2, 3])


@settings(max_examples=200)
@given(texts, st.integers(1, 4), st.integers(1, 10), kinds, st.data())
def test_any_text_in_any_steps_with_any_verdicts_drafts_what_scans_find(text, n, m, min_hits, data):
    drafter, naive = drafter_of(n, m, min_hits), NaiveNgramMap(n, m, min_hits)
    length = data.draw(st.integers(1, len(text)))
    if data.draw(st.booleans(), label="begin is called"):
        drafter.begin(as_history(text[:length]), 0)
        naive.begin(text[: length - 1])
    while length <= len(text):
        expected = naive.draft(text[:length])
        assert drafted(drafter, text[:length]) == expected
        n_accepted = data.draw(st.integers(0, len(expected)))
        if expected:
            naive.accept(n_accepted)
        accept(drafter, len(expected), n_accepted)
        length += data.draw(st.integers(1, 12))


def thue_morse(n, bit):
    return [(i.bit_count() + bit) % 2 for i in range(n)]


@pytest.mark.parametrize("min_hits", [None, 1])
def test_ngrams_that_share_an_entry_of_the_table_are_found_as_scans_find_them(min_hits):
    # a Thue-Morse word and its complement have one polynomial hash modulo 2^18 in every odd base
    n, m = 64, 3
    word, complement = thue_morse(n, 0), thue_morse(n, 1)
    text = [9, *word, 5, 6, 7, *complement, 4, 3, 2, *word, 5, 6, 8, *complement, 4, 3, 1, *word, 5, 6, 7, *complement, 4]
    drafts = []
    for n_prompt in (1, 100, 220, 400):
        drafter, naive = drafter_of(n, m, min_hits), NaiveNgramMap(n, m, min_hits)
        drafter.begin(as_history(text[:n_prompt]), 0)
        naive.begin(text[: n_prompt - 1])
        for length in range(n_prompt, len(text) + 1):
            drafts.append(naive.draft(text[:length]))
            assert drafted(drafter, text[:length]) == drafts[-1]
    assert any(drafts)


@settings(max_examples=50)
@given(texts, texts, st.integers(1, 3), st.integers(1, 8), kinds, st.data())
def test_a_request_drafts_as_if_it_were_the_slots_first(first, second, n, m, min_hits, data):
    n_shared = data.draw(st.integers(0, len(first)))
    second = first[:n_shared] + second
    used = drafter_of(n, m, min_hits)
    for text, n_reused in ((first, 0), (second, n_shared)):
        fresh = drafter_of(n, m, min_hits)
        for drafter in (used, fresh):
            drafter.begin(as_history(text[: len(text) // 2 + 1]), n_reused)
        for length in range(len(text) // 2 + 2, len(text) + 1):
            draft = drafted(fresh, text[:length])
            assert drafted(used, text[:length]) == draft
            for drafter in (used, fresh):
                accept(drafter, len(draft), len(draft) // 2)
        used.end()


REPEATED = [0, *[1, 2, 3, 4, 5, 6] * 5, 1, 2]


@pytest.mark.parametrize("min_hits", [None, 1])
def test_what_was_accepted_of_a_draft_bounds_the_next_one_of_its_key(min_hits):
    drafter = drafter_of(2, 4, min_hits)
    assert drafted(drafter, REPEATED) == [3, 4, 5, 6]
    accept(drafter, 4, 2)
    text = [*REPEATED, 3, 4, 9, 1, 2]
    assert drafted(drafter, text) == [3, 4]
    accept(drafter, 2, 2)
    text += [3, 4, 9, 1, 2]
    assert drafted(drafter, text) == [3, 4]
    accept(drafter, 2, 0)
    text += [9, 1, 2]
    assert drafted(drafter, text) == []


@pytest.mark.parametrize("min_hits", [None, 1])
def test_a_cut_draft_that_was_right_bounds_nothing_and_one_that_was_wrong_does(min_hits):
    drafter = drafter_of(2, 4, min_hits)
    assert drafted(drafter, REPEATED, limit=2) == [3, 4]
    accept(drafter, 2, 2)
    text = [*REPEATED, 3, 4, 9, 1, 2]
    assert drafted(drafter, text, limit=3) == [3, 4, 5]
    accept(drafter, 3, 1)
    text += [3, 9, 1, 2]
    assert drafted(drafter, text) == [3]


@pytest.mark.parametrize("min_hits", [None, 1])
def test_a_draft_that_was_not_used_bounds_nothing(min_hits):
    drafter = drafter_of(2, 4, min_hits)
    assert drafted(drafter, REPEATED) == [3, 4, 5, 6]
    accept(drafter, 0, 0)
    assert drafted(drafter, [*REPEATED, 9, 1, 2]) == [3, 4, 5, 6]


@settings(max_examples=50)
@given(texts, st.integers(0, 8), kinds)
def test_a_limit_cuts_the_draft_and_changes_nothing_else(text, limit, min_hits):
    whole = drafted(drafter_of(1, 6, min_hits), text)
    assert drafted(drafter_of(1, 6, min_hits), text, limit) == whole[:limit]


@pytest.mark.parametrize("min_hits", [None, 1])
def test_slots_know_nothing_of_each_other(min_hits):
    first, second = drafter_of(2, 4, min_hits), drafter_of(2, 4, min_hits)
    first.begin(as_history(REPEATED), 0)
    second.begin(as_history([7, 1, 2]), 0)
    assert drafted(first, REPEATED)
    assert drafted(second, [7, 1, 2, 8] * 2 + [1, 2]) == []


def draft_after(*followers, min_hits=1, n_calls=1):
    """The draft where the key 1 2 was followed by these, each two tokens long, in turn."""
    drafter = NgramMapK4v(NgramMapK4vOptions(n=2, m=2, min_hits=min_hits), None)
    text = as_history([0, *(token for pair in followers for token in (1, 2, *pair)), 8, 1, 2])
    for _ in range(n_calls):
        draft = drafter.draft(text, 100)
    return draft.tokens.tolist()


def test_it_drafts_only_where_one_continuation_is_seen_twice_as_often_as_the_others_together():
    assert draft_after((3, 4), (3, 4), (5, 6), (3, 4)) == [3, 4]
    assert draft_after((3, 4), (5, 6), (3, 4)) == [3, 4]
    assert draft_after((3, 4), (5, 6), (7, 6), (3, 4)) == []
    assert draft_after((3, 4), (5, 6)) == []


def test_a_fifth_continuation_is_not_counted():
    others = [(3, 4), (5, 4), (6, 4), (7, 4)]
    assert draft_after(*others, *[(3, 4)] * 5, *[(9, 4)] * 4, (3, 4)) == [3, 4]
    assert draft_after(*others[:3], *[(3, 4)] * 5, *[(9, 4)] * 4, (3, 4)) == []


def test_nothing_is_drafted_before_the_key_was_found_often_enough():
    for min_hits in (1, 2, 3):
        for n_calls in (1, 2, 3):
            expected = [3, 4] if n_calls >= min_hits else []
            assert draft_after((3, 4), (3, 4), (3, 4), min_hits=min_hits, n_calls=n_calls) == expected
