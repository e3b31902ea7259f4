from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.damage import disk_is_full

from augury.drafters.ngram import lookup_file
from augury.drafters.ngram.lookup_file import NgramCounts, read_lookup, write_lookup
from augury.errors import ModelFileError

DATA = Path(__file__).parents[2] / "data/lookup"  # written by llama.cpp, from 20 words and from what it generated after them
N_VOCAB = 49152


def records(path):
    table = read_lookup(path, N_VOCAB)
    found = {}
    for start, size in zip(table.starts.tolist(), table.sizes.tolist(), strict=True):
        found[table.values[start : start + size].tobytes()] = table.counts(start)
    return found


@pytest.mark.parametrize("name", ["static.bin", "dynamic.bin"])
def test_llama_cpps_files_come_back_as_they_were_read(name, tmp_path):
    counts = NgramCounts(4)
    for ngram, followers in records(DATA / name).items():
        for token, n in followers.items():
            for _ in range(n):
                counts.extend(np.frombuffer(ngram + np.int32(token).tobytes(), np.int32), len(ngram) // 4)
    found = {}
    for ngram, followers in counts.items():
        found[ngram] = followers.counts
    # counting a follower of an n-gram counts it for the n-gram's endings, too
    assert {ngram: found[ngram] for ngram in records(DATA / name) if len(ngram) == max(map(len, found))} == {
        ngram: followers for ngram, followers in records(DATA / name).items() if len(ngram) == max(map(len, found))
    }
    write_lookup(tmp_path / "again.bin", counts.items())
    assert records(tmp_path / "again.bin") == found


def test_llama_cpps_static_file_counts_pairs_and_its_dynamic_file_all_sizes():
    assert {len(ngram) // 4 for ngram in records(DATA / "static.bin")} == {2}
    assert {len(ngram) // 4 for ngram in records(DATA / "dynamic.bin")} == {1, 2, 3, 4}


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 5), max_size=40), max_size=3))
def test_counts_come_back_as_they_were_written(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("lookup") / "counts.bin"
    counts = NgramCounts(4)
    for text in texts:
        counts.extend(np.array(text, np.int32), 0)
    write_lookup(path, counts.items())
    assert records(path) == {ngram: followers.counts for ngram, followers in counts.items()}


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path, monkeypatch):
    write_lookup(tmp_path / "past.bin", [])
    monkeypatch.setattr("os.fsync", disk_is_full)
    with pytest.raises(OSError, match=r"No space left on device: '.*past\.bin'"):
        write_lookup(tmp_path / "past.bin", [])
    assert [path.name for path in tmp_path.iterdir()] == ["past.bin"]


def values(*records):
    return np.array([number for record in records for number in record], np.int32)


GOOD = (1, 2, -1, -1, 1, 3, 4)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (values(GOOD, (1, 2)), "byte 28 is cut off"),
        (values(GOOD, (1, 2, -1, -1)), "byte 28 is cut off"),
        (values(GOOD, (1, 2, -1, -1, 2, 3, 4)), "byte 28 is cut off"),
        (values(GOOD, (1, 2, -1, -1, 0)), "byte 28 is cut off or has no followers"),
        (values((1, 2, -1, -1, -5, 3, 4)), "byte 0 is cut off or has no followers"),
        (values((1, 2, -1, -1, 2**31 - 1, 3, 4)), "byte 0 is cut off"),
        (values(GOOD, (-1, -1, -1, -1, 1, 3, 4)), "byte 28 begins with no n-gram"),
        (values((1, -1, 2, -1, 1, 3, 4)), "byte 0 begins with no n-gram"),
        (values((1, 2, -7, -1, 1, 3, 4)), "byte 0 begins with no n-gram"),
        (values((1, 2, -1, -1, 1, -3, 4)), "no token"),
        (values((1, 2, -1, -1, 1, 3, 0)), "no positive count"),
        (values((1, 2, -1, -1, 1, N_VOCAB, 1)), "another vocabulary"),
        (values((N_VOCAB, 2, -1, -1, 1, 3, 1)), "another vocabulary"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path, numbers, message):
    (tmp_path / "bad.bin").write_bytes(numbers.tobytes())
    with pytest.raises(ModelFileError, match=message):
        read_lookup(tmp_path / "bad.bin", N_VOCAB)


def test_a_huge_file_of_another_kind_is_not_read(tmp_path, monkeypatch):
    with (tmp_path / "bad.bin").open("wb") as file:
        file.write(values(GOOD).tobytes())
        file.truncate(3 * 10**9)
    monkeypatch.setattr(lookup_file.np, "array", None)  # the copy
    with pytest.raises(ModelFileError, match="byte 28 is cut off or has no followers"):
        read_lookup(tmp_path / "bad.bin", N_VOCAB)


def test_a_file_of_odd_length_and_a_folder_are_errors(tmp_path):
    (tmp_path / "odd.bin").write_bytes(b"12345")
    with pytest.raises(ModelFileError, match="5 bytes long"):
        read_lookup(tmp_path / "odd.bin", N_VOCAB)
    with pytest.raises(ModelFileError, match="is a folder, expected a lookup file"):
        read_lookup(tmp_path, N_VOCAB)


def test_an_empty_file_holds_nothing(tmp_path):
    (tmp_path / "empty.bin").write_bytes(b"")
    assert records(tmp_path / "empty.bin") == {}
