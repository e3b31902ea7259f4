import numpy as np
import pytest

from augury.drafters.ngram.index import NgramPool

TEXT = np.array([1, 2, 3, 1, 2, 4], np.int32)
A, B = "first writer", "second writer"


def test_entries_in_use_are_counted_once_however_often_they_are_written():
    pool = NgramPool(2)
    pool.add(A, TEXT, 0)
    fill = pool.fill
    assert fill * (1 << 22) == 3, "(1, 2) occurs twice"
    pool.add(A, TEXT, 0)
    assert pool.fill == fill
    pool.clear()
    assert pool.fill == 0
    pool.add(A, TEXT, 0)
    assert pool.fill == fill


@pytest.mark.parametrize(
    ("added", "owner"),
    [
        ([(A, 0)], A),
        ([(A, 0), (A, 2)], A),
        ([(A, 0), (B, 0)], None),
        ([(A, 0), (B, 0), (A, 0)], None),
        ([(A, 1)], None),  # what stood before is not there
        ([(B, 0), None, (A, 0)], A),
        ([(A, 0), None], None),
    ],
)
def test_a_pool_is_only_of_who_wrote_all_of_it_from_a_text_s_beginning(added, owner):
    pool = NgramPool(2)
    for each in added:
        pool.clear() if each is None else pool.add(each[0], TEXT, each[1])
    assert [writer for writer in (A, B) if pool.is_only_of(writer)] == ([owner] if owner else [])
