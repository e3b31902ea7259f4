import numpy as np
import pytest
from hypothesis import given, strategies as st

from augury.errors import OptionError
from augury.passes import ArrayPass, Pass


@given(values=st.lists(st.integers(-3, 3) | st.just(-np.inf), min_size=1, max_size=30), k=st.integers(0, 40))
def test_top_k_is_a_stable_sort_cut_off(values, k):
    row = np.array(values, np.float32)
    both = np.stack([row, row[::-1]])

    ids, logits = ArrayPass(both).top_k(np.array([1, 0, 1], np.int32), k)

    right = [sorted(range(len(row)), key=lambda i: (-both[r, i], i))[:k] for r in (1, 0, 1)]
    assert ids.tolist() == right
    assert np.array_equal(logits, np.take_along_axis(both[[1, 0, 1]], ids, axis=1))
    assert (ids.dtype, logits.dtype) == (np.int32, np.float32)


def test_a_pass_in_memory_was_over_when_it_was_made():
    assert ArrayPass(np.zeros((1, 2), np.float32)).wait() is None


def test_the_first_tokens_of_a_pass_on_a_device_keep_its_clock_and_features():
    class Device(ArrayPass):
        first = Pass.first

        def wait(self):
            return 3.0

    hidden = np.ones((2, 3), np.float32)
    narrow = Device(np.float32([[1, 2, 3]]), {"output": hidden}).first(2)
    assert narrow.rows().tolist() == [[1, 2]]
    assert narrow.wait() == 3
    assert np.array_equal(narrow.features("output"), hidden)
    with pytest.raises(OptionError, match=r"feature 'layer\.0' of a pass that was not asked for it"):
        narrow.features("layer.0")


def test_argmax_prefers_the_lowest_id():
    assert ArrayPass(np.float32([[1, 5, 5], [2, 2, 1]])).argmax().tolist() == [1, 0]


def test_the_log_normalizer_neither_overflows_nor_loses_small_terms():
    logits = ArrayPass(np.float32([[1000, 1000, 1000], [-1000, -1000, -1000]]))

    assert logits.log_normalizer(0) == pytest.approx(1000 + np.log(3), abs=1e-12)
    assert logits.log_normalizer(1) == pytest.approx(-1000 + np.log(3), abs=1e-12)


def test_gather_picks_tokens_of_one_row():
    assert ArrayPass(np.float32([[1, 2, 3], [4, 5, 6]])).gather(1, np.array([2, 0])).tolist() == [6, 4]


def test_rows_cannot_be_written_through_the_handle():
    with pytest.raises(ValueError, match="read-only"):
        ArrayPass(np.zeros((1, 2), np.float32)).rows()[0] = 1


def test_rows_cannot_be_made_writable():
    array = np.zeros((2, 5), np.float32)
    rows = ArrayPass(array[:, :4]).rows()
    for view in (rows, rows[0]):
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
    array[0, 0] = 1
    assert rows[0, 0] == 1, "it is a view"
