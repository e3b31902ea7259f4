import numpy as np
import pytest

from augury.backends.numba.passes import LastVocabularies, groups_of, tokens_of
from augury.errors import OptionError


def test_a_vocabulary_takes_whole_groups_of_tokens():
    groups = groups_of(np.int32([1, 2, 9, 11, 16]), 4)
    assert groups.tolist() == [0, 2, 4]
    assert tokens_of(groups, 4).tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]


def test_the_last_vocabulary_of_each_key_is_made_once():
    made, kept, (a, b) = [], LastVocabularies(), (np.int32([1, 2]), np.int32([1, 2]))
    for key, vocabulary in (("x", a), ("x", a), ("y", a), ("x", b), ("x", b), ("x", a)):
        kept.of(key, vocabulary, 3, lambda key=key: made.append(key))
    assert made == ["x", "y", "x", "x"]


def test_a_vocabulary_of_no_tokens_of_the_model_is_refused():
    with pytest.raises(OptionError):
        LastVocabularies().of("x", np.int32([1, 3]), 3, lambda: None)
