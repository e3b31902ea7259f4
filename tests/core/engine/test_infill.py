"""Sampler `infill`: what it keeps of candidates, and that answers end by it."""

import numpy as np
import pytest
from support.toys import toy_engine

from augury.engine.sampling_step import infill
from augury.errors import UnsupportedError

NOTHING = np.empty(0, np.int32)
END = 9
TEXTS = {1: b"a", 2: b"ab", 3: b"abc", 4: b"x", 5: b"xy", 6: b"q", END: b"<end>"}


class Letters:
    """A tokenizer whose tokens are those texts."""

    eog = frozenset([END])

    def is_special(self, token):
        return token == END

    def piece(self, token):
        return TEXTS[token]


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ({1: 0.5, END: 0.3, 4: 0.2}, [END]),  # ends are probable enough: 3 * 0.3 * 3 > 0.7
        ({1: 0.6, 6: 0.37, END: 0.03}, [1, 6, END]),  # and here they are not
        ({1: 0.45, 2: 0.3, 3: 0.15, 4: 0.1}, [1]),  # what begins like 1 counts for it
        ({2: 0.45, 1: 0.3, 3: 0.15, 4: 0.1}, [2]),  # or it for what is more probable
        ({4: 0.35, 1: 0.26, 6: 0.22, 5: 0.1, 2: 0.07}, [4, 1]),  # of 0.45, 0.33 and 0.22 the last is less than 1 / 4
        ({1: 0.19, 4: 0.19, 6: 0.19}, [1, 4, 6]),
    ],
)
def test_it_keeps_what_is_probable_with_what_begins_like_it(candidates, expected):
    ids, shares = np.array([*candidates]), np.array([*candidates.values()])
    kept, logits = infill(Letters(), END)(NOTHING, ids, np.log(shares))
    assert kept.tolist() == expected
    assert np.array_equal(logits, np.log([candidates[token] for token in expected]))


class Others(Letters):
    """The same of tokens that all have another text."""

    def piece(self, token):
        return bytes([token])


def test_where_no_text_is_probable_the_answer_ends_if_it_may():
    ids, logits = np.arange(20, 32), np.zeros(12)
    assert infill(Others(), END)(NOTHING, ids, logits)[0].tolist() == [END]
    assert infill(Others(), None)(NOTHING, ids, logits)[0].tolist() == [20]


def test_an_end_that_is_forbidden_is_none():
    ids, logits = np.array([*range(20, 26), END]), np.array([0.0] * 6 + [-np.inf])
    kept, left = infill(Others(), None)(NOTHING, ids, logits)
    assert (kept.tolist(), left.tolist()) == ([20], [0.0])


def test_of_whole_vocabularies_few_texts_are_looked_at():
    asked = []

    class Long(Letters):
        def piece(self, token):
            asked.append(token)
            return f"{token:07}".encode()

    ids, logits = np.arange(20, 50_000), np.linspace(1, 0, 49_980)
    assert infill(Long(), END)(NOTHING, ids, logits)[0].tolist() == [END]
    assert asked == [*range(20, 532)]


def test_it_needs_texts():
    with toy_engine() as engine, pytest.raises(UnsupportedError, match="sampler infill looks at texts"):
        engine.generate([1, 2], samplers=["top_k", "infill"])
