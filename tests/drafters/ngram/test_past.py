import numpy as np
import pytest

from augury.drafters.ngram import lookup_file
from augury.drafters.ngram.lookup_file import NgramPast

TEXT = np.arange(12, dtype=np.int32)


def ints(*values):
    return np.array(values, np.int32).tobytes()


def test_of_too_many_n_grams_the_half_that_was_seen_most_is_kept(monkeypatch):
    monkeypatch.setattr(lookup_file, "_N_MAX", 8)
    kept = NgramPast(None, 100)
    often = np.array([7, 8] * 3, np.int32)
    kept.learn(often, 0)  # (7), (8), (7, 8), (8, 7), and so on
    assert len(kept.counts) == 8
    kept.learn(TEXT[:4], 1)
    assert len(kept.counts) == 4
    assert kept.counts.get(ints(7)).counts == {8: 3}, "one number, until another token follows"
    assert kept.counts.get(ints(1)) is None


@pytest.mark.parametrize(("n_max", "n_left"), [(38, 38), (37, 18)])
def test_a_file_that_holds_too_much_is_read_by_half(tmp_path, monkeypatch, n_max, n_left):
    path = tmp_path / "lookup.bin"
    first = NgramPast(path, 100)
    first.learn(TEXT, 0)
    first.close()
    monkeypatch.setattr(lookup_file, "_N_MAX", n_max)
    assert len(first.counts) == 38
    assert len(NgramPast(path, 100).counts) == n_left


def test_where_nothing_was_generated_nothing_is_saved(tmp_path):
    kept = NgramPast(tmp_path / "lookup.bin", 100)
    kept.learn(TEXT, len(TEXT))
    kept.close()
    assert not list(tmp_path.iterdir())
