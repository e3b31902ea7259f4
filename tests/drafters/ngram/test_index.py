import time

import numpy as np
import pytest
from hypothesis import given, strategies as st

from augury.drafters.ngram.index import NgramIndex, window_hashes


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=60), st.integers(1, 8))
def test_hashes_of_ngrams_agree_with_the_sum_that_defines_them(tokens, n):
    tokens = tokens + [0] * n
    expected = [
        sum(t * pow(0x9E3779B97F4A7C15, k, 2**64) for k, t in enumerate(tokens[i : i + n])) % 2**64
        for i in range(len(tokens) - n + 1)
    ]
    assert window_hashes(np.array(tokens, dtype=np.int32), n).tolist() == expected


def thue_morse(n, bit):
    return np.array([(i.bit_count() + bit) % 2 for i in range(n)], dtype=np.int32)


def test_ngrams_that_share_a_hash_are_told_apart():
    # a Thue-Morse word and its complement have one polynomial hash modulo 2^64 in every odd base
    n = 2048
    word, complement = thue_morse(n, 0), thue_morse(n, 1)
    assert window_hashes(word, n) == window_hashes(complement, n)
    index = NgramIndex(n)
    text = np.concatenate([[9], word, [7], complement, [7, 8]]).astype(np.int32)
    index.extend(text)
    assert index.find(text, complement) == n + 2
    assert index.find(text, word) == 1
    only_one = text[n + 2 :]
    index.clear()
    assert not index._latest, "the memory of texts that are over"
    index.extend(np.concatenate([[9], only_one]).astype(np.int32))
    assert index.find(only_one, word) == -1


@pytest.mark.parametrize(
    "text",
    [np.zeros(100_000, dtype=np.int32), np.resize(np.arange(7, dtype=np.int32), 100_000), thue_morse(100_000, 0)],
    ids=["one token", "period of 7", "thue-morse"],
)
def test_a_repetitive_text_of_100_000_tokens_is_indexed_token_by_token_in_linear_time(text):
    index, n_rounds = NgramIndex(12), 2000
    start = time.process_time()
    index.extend(text[:-n_rounds])
    for length in range(len(text) - n_rounds, len(text)):
        index.extend(text[:length])
        index.find(text[:length], text[length - 11 : length + 1])
    # about 0.1 s; a single comparison with every earlier occurrence in every round would take minutes
    assert time.process_time() - start < 10
