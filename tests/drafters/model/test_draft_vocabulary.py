import numpy as np
import pytest

from augury.drafters.model.draft_runner import DraftVocabulary


def text(*tokens):
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(
    ("n_vocab", "n_first", "kept"),
    [
        (151936, None, 37984),
        (49152, None, 16384),
        (32000, None, 16384),
        (16384, None, None),
        (100, 20, 20),
        (100, 0, None),
        (100, 100, None),
        (100, 10**30, None),  # no memory is taken for tokens that do not exist
    ],
)
def test_the_first_tokens_are_kept_a_quarter_unless_a_number_is_given(n_vocab, n_first, kept):
    tokens = DraftVocabulary(n_vocab, n_first).tokens
    assert (None if tokens is None else tokens.tolist()) == (None if kept is None else list(range(kept)))


def test_what_the_texts_hold_joins_them():
    made = DraftVocabulary(1000, 320)
    made.begin(0, text(5, 700, 400))
    before = made.tokens
    assert before.tolist() == [*range(320), 400, 700]
    made.follow(0, text(5, 700, 400, 700, 3))
    assert made.tokens is before
    made.follow(0, text(5, 700, 400, 700, 3, 999))
    made.begin(1, text(1, 2, 321))
    assert made.tokens.tolist() == [*range(320), 321, 400, 700, 999]
    assert made.tokens.dtype == np.int32


def test_a_token_that_the_model_lacks_does_not():
    made = DraftVocabulary(1000, 320)
    made.begin(0, text(1000, 1700))
    assert made.tokens.tolist() == list(range(320))


def test_the_number_of_tokens_that_were_seen_is_bounded():
    for n_first, most in ((320, 64), (1600, 100)):
        made = DraftVocabulary(3000, n_first)
        made.begin(0, text(*range(2000, 2060)))
        made.begin(0, text(*range(2500, 2550)))
        assert made.tokens[n_first:].tolist() == list(range(2500, 2550))  # the older text's are forgotten
        made.begin(0, text(*range(2100, 2300)))
        assert made.tokens[n_first:].tolist() == list(range(2100, 2100 + most))


def test_where_tokens_are_missing_too_often_all_are_used_until_they_no_longer_are():
    made = DraftVocabulary(10000, 3200)
    made.begin(0, text(1))
    written = [1]
    for i in range(12):
        written += [4000 + i, 7, 8]
        made.follow(0, text(*written))
    assert made.tokens is None
    written += [9] * 200
    made.follow(0, text(*written))
    assert 4011 in made.tokens


def test_a_token_that_comes_again_was_not_missing():
    made = DraftVocabulary(10000, 3200)
    made.begin(0, text(4000))
    made.follow(0, text(*[4000] * 500))
    assert made.tokens is not None
