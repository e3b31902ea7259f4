import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles.suffixes import agreeing, longest_match

from augury.drafters.ngram.text_corpus import SuffixArray

texts = st.integers(0, 4).flatmap(lambda v: st.lists(st.integers(0, v), min_size=1, max_size=120))


def array_of(*parts, depth=4, n_max=10**6):
    array = SuffixArray(depth, n_max)
    array.begin()
    for part in parts:
        array.extend(np.array(part, dtype=np.int32))
    return array


def matches_of(array):
    """Lengths and positions."""
    found, n = array.find(array.ending)
    return list(zip(*found[:, :n].tolist(), strict=True))


@settings(max_examples=200)
@given(texts, st.integers(1, 6), st.data())
def test_a_text_added_in_any_parts_is_matched_where_it_agrees_longest(text, depth, data):
    parts, rest = [], text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        parts.append(rest[:size])
        rest = rest[size:]
    matches = matches_of(array_of(*parts, depth=depth))
    longest, positions = longest_match(text, depth)
    assert bool(matches) == bool(positions)
    if matches:
        assert matches[0][0] == longest
        of_longest = [position - 1 for length, position in matches if length == longest]  # 1 is the text's beginning
        assert set(of_longest) <= set(positions)
        assert len(of_longest) == len(positions) or len(of_longest) >= 6
        assert matches == sorted(matches, reverse=True)
        for length, position in matches:
            assert length == agreeing(text, position - 1, depth)
            assert 2 * length >= longest


def test_contexts_do_not_reach_into_another_text():
    array = array_of([1, 2, 3, 4])
    array.begin()
    array.extend(np.array([9, 3], dtype=np.int32))
    assert matches_of(array) == [(1, 4)]
    array.begin()
    array.extend(np.array([3], dtype=np.int32))
    assert {length for length, _ in matches_of(array)} == {1}
    assert array.tokens.tolist() == [-1, 1, 2, 3, 4, -1, 9, 3, -1, 3]


def orders_of(array):
    return array._sorted.tolist(), array._recent[: array._n_recent].tolist()


def context_of(tokens, position, depth=8):
    """The tokens of the same text before a position, the last one first, and the position."""
    before = tokens[max(position - depth, 0) : position][::-1]
    before = before[: before.index(-1)] if -1 in before else before
    return before + [-1] * (depth - len(before)), position


@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_older_half_is_forgotten_and_the_newer_one_known_as_before(size):
    text = np.random.default_rng(0).integers(0, 5, 5000, dtype=np.int32)
    array, longest = SuffixArray(8, 1000), 0
    for start in range(0, len(text), size):
        if start % 700 == 0:
            array.begin()
        array.extend(text[start : start + size])
        longest = max(longest, len(array))
        if start % 100 < size:
            for order in orders_of(array):
                contexts = [context_of(array.tokens.tolist(), position) for position in order]
                assert contexts == sorted(contexts)
        for length, position in matches_of(array):
            assert array.tokens[position - length : position].tolist() == array.tokens[-length:].tolist()
    assert sorted(np.concatenate(orders_of(array)).tolist()) == np.flatnonzero(array.tokens >= 0).tolist()
    assert 1000 - size < longest <= 1000
    array.extend(np.zeros(1001 - len(array), np.int32))
    assert len(array) == 500


def test_tokens_added_one_by_one_and_many_at_once_are_matched_alike():
    text = np.random.default_rng(2).integers(0, 3, 200, dtype=np.int32)
    parts = [*text[:80].reshape(-1, 1), text[80:160], *text[160:].reshape(-1, 1)]
    assert matches_of(array_of(*parts)) == matches_of(array_of(text))


@pytest.mark.parametrize("size", [1, 100])
def test_every_token_is_held_once_however_many_there_are(size):
    array = array_of(*np.random.default_rng(1).integers(0, 5, (5000 // size, size)))
    older, recent = orders_of(array)
    assert sorted(older + recent) == list(range(1, 5001))
    assert len(recent) < 2000


@pytest.mark.parametrize("period", [1, 7])
def test_a_repetitive_text_of_100_000_tokens_is_learnt_token_by_token_in_linear_time(period):
    text = np.resize(np.arange(period, dtype=np.int32), 100_000)
    array = array_of(text[:-2000], depth=24)
    start = time.process_time()
    for i in range(len(text) - 2000, len(text)):
        array.extend(text[i : i + 1])
        matches_of(array)
    # about 0.1 s; a comparison with every earlier place would take minutes
    assert time.process_time() - start < 10
