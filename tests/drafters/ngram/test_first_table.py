"""Where n-grams share an entry of the table: what llama.cpp finds then. Elsewhere drafts are held against definitions."""

import numpy as np
import pytest

from augury.drafters.ngram.index import _FIRST_BASE, NgramFirstTable, window_hashes

N, M = 2, 1


def collision():
    """Two 2-grams of four tokens with one entry of 2^18 that would have two of 2^19."""
    pairs = np.random.default_rng(1).permutation(30_000).astype(np.int32)[:4000].reshape(-1, 2)
    seen = {}
    for pair in pairs:
        key = int(window_hashes(pair, N, _FIRST_BASE)[0])
        if (other := seen.setdefault(key % (1 << 18), (key, pair)))[0] != key and (other[0] ^ key) >> 18 & 1:
            return other[1].tolist(), pair.tolist()
    raise AssertionError


def ints(tokens):
    return np.array(tokens, np.int32)


def find(table, text, ngram):
    return table.find(ints(text), ints(ngram))


A, B = collision()
REST = list(range(40_000, 40_010))  # which occur nowhere else


def test_of_two_in_a_prompt_the_first_is_scanned_for_in_the_first_round_and_lost_afterwards():
    prompt = [0, *A, *B, *REST]
    for first, second, third in ((A, A, 0), (B, A, 0), (B, B, 3)):
        table = NgramFirstTable(N, M)
        table.clear(ints(prompt))
        place = 1 if first == A else 3
        assert find(table, [*prompt, 7], first) == place
        assert find(table, [*prompt, 7, 8], second) == third


@pytest.mark.parametrize(("n_after", "place"), [(1, 0), (2, 4)])
def test_what_reaches_beyond_a_prompt_is_not_scanned(n_after, place):
    prompt = [0, *B, 9, *A, *REST[:n_after]]
    table = NgramFirstTable(N, M)
    table.clear(ints(prompt))
    assert find(table, [*prompt, *REST[5:]], A) == place


def test_an_entry_is_free_again_for_the_next_text():
    table = NgramFirstTable(N, M)
    table.clear(ints([0, 5, 6, *A, *REST]))
    text = [0, 1, *A, *REST, 2]
    table.clear(ints(text))
    assert find(table, [*text, 3], [9, 9]) == 0
    assert find(table, [*text, 3, 4], A) == 2
