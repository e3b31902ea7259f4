"""The folder of a training: one run has it, and what is damaged in it is told and made anew."""

import logging
import re
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from augury.errors import AuguryError
from augury.plugins.learn.hidden_states import HiddenStates, Piece
from augury.plugins.learn.recorded import Recorded

SIZES = SimpleNamespace(n_embd=2, columns=("layer.0", "layer.1", "output"))
SETUP = {"seed": 1}
PIECE = Piece(np.int32([5, 6, 7, 8]))
NAME = f"{PIECE.name}.npy"


@contextmanager
def opened(folder, **setup):
    with Recorded(folder / "head.gguf.learn") as recorded:
        recorded.take_up(SIZES, SETUP | setup)
        yield recorded


ROWS = np.full((3, 6), 1, np.float16)


@pytest.fixture
def kept(tmp_path):
    """The folder of a run that ended early."""
    with opened(tmp_path) as recorded:
        recorded.add_answers([np.array([1, 2], np.int32), np.array([3], np.int32)])
        recorded.add_rows(PIECE, ROWS)
        recorded.save("checkpoint", {"a": np.arange(100)})
    return tmp_path


def test_a_second_run_is_refused_and_a_killed_one_leaves_no_lock(kept):
    with opened(kept), pytest.raises(AuguryError, match=r"head\.gguf\.learn: another augury learn is writing this head; wait"):
        opened(kept).__enter__()
    code = (
        "import sys, os, signal; from pathlib import Path; from augury.plugins.learn.recorded import Recorded\n"
        "Recorded(Path(sys.argv[1])).__enter__()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, kept / "other.learn"], check=False)
    with Recorded(kept / "other.learn") as recorded:
        assert recorded.is_fresh
    with opened(kept) as recorded:
        assert [text.tolist() for text in recorded.answers()] == [[1, 2], [3]]
    assert sorted(path.name for path in kept.iterdir() if path.name.startswith(".head")) == []


@pytest.mark.parametrize("rest", [(), (".setup.json.part",)])
def test_an_empty_folder_is_a_fresh_one(tmp_path, rest):
    folder = tmp_path / "head.gguf.learn"
    folder.mkdir()
    for name in rest:
        (folder / name).write_bytes(b"half")
    with opened(tmp_path) as recorded:
        assert recorded.is_fresh
        recorded.add_rows(PIECE, ROWS)
        assert recorded.has_rows(PIECE)
    with pytest.raises(AuguryError, match="holds the beginning of another training"):
        opened(tmp_path, seed=2).__enter__()
    with opened(tmp_path) as recorded:
        assert not recorded.is_fresh


def test_what_stands_in_place_of_the_folder_is_refused_and_left(tmp_path):
    path = tmp_path / "head.gguf.learn"
    path.write_bytes(b"mine")
    with pytest.raises(AuguryError, match=r"head\.gguf\.learn is no folder, but stands where one is needed; remove it, or"):
        opened(tmp_path).__enter__()
    assert path.read_bytes() == b"mine"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path)
    with pytest.raises(AuguryError, match="is no folder"):
        opened(tmp_path).__enter__()


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"{", None])
def test_a_damaged_setup_is_one_line_with_the_way_out(kept, damage):
    path = kept / "head.gguf.learn" / "setup.json"
    path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(AuguryError, match=r"damaged or missing .*; remove the folder, or name another file with -o"):
        opened(kept).__enter__()


def damaged(path, way):
    data = path.read_bytes()
    one = data[: (at := len(data) * 3 // 4)] + bytes([data[at] ^ 1]) + data[at + 1 :]
    ways = {"emptied": b"", "cut": data[:-7], "garbage": bytes(len(data)), "another's": b"x" * 40, "one bit": one}
    path.write_bytes(ways[way])


@pytest.mark.parametrize("way", ["emptied", "cut", "garbage", "another's", "one bit"])
def test_damaged_features_and_checkpoints_are_told_and_made_anew(kept, way, caplog):
    folder = kept / "head.gguf.learn"
    for name in (NAME, "checkpoint.npz"):
        damaged(folder / name, way)
    with opened(kept) as recorded, caplog.at_level(logging.WARNING):
        assert not recorded.has_rows(PIECE)
        assert recorded.load("checkpoint") is None
        assert [name in caplog.text for name in (NAME, "checkpoint.npz")] == [True, True]
        recorded.add_rows(PIECE, 2 * ROWS)
        recorded.save("checkpoint", {"a": np.arange(3)})
        caplog.clear()
        assert recorded.has_rows(PIECE)
        assert recorded.load("checkpoint")["a"].tolist() == [0, 1, 2]
        assert not recorded.has_rows(Piece(PIECE.text, 1))
        assert recorded.load("best") is None
    assert caplog.text == ""


def test_damage_of_any_byte_is_no_failure_and_found_in_features(kept):
    folder = kept / "head.gguf.learn"
    for name in (NAME, "checkpoint.npz"):
        data = (folder / name).read_bytes()
        for at in range(0, len(data), 3 if name.endswith("npy") else 11):
            (folder / name).write_bytes(data[:at] + bytes([data[at] ^ 0x15]) + data[at + 1 :])
            with opened(kept) as recorded:
                assert not (name.endswith("npy") and recorded.has_rows(PIECE))
                recorded.load("checkpoint")


@pytest.mark.parametrize(
    ("rows", "told"),
    [(ROWS[:2], "holds 2 rows, expected 3"), (ROWS[:, :5], r"holds \(3, 5\) float16, expected \(n, 6\) float16")],
)
def test_rows_of_another_piece_are_made_anew(kept, rows, told, caplog):
    with opened(kept) as recorded, caplog.at_level(logging.WARNING):
        recorded.add_rows(PIECE, rows)
        assert not recorded.has_rows(PIECE)
    assert re.search(told, caplog.text)


@pytest.mark.parametrize(("line", "n"), [(b"[1, 2", 1), (b"\xff", 1), (b'["a"]', 1), (b"[99999999999]", 1), (b"[4]", 3)])
def test_answers_are_taken_up_to_a_damaged_one(kept, line, n, caplog):
    path = kept / "head.gguf.learn" / "answers.jsonl"
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([first, *([second] if n == 3 else []), line, b""]))
    with opened(kept) as recorded, caplog.at_level(logging.WARNING):
        assert [text.tolist() for text in recorded.answers()] == [[1, 2], [3], [4]][:n]
    assert ("answers.jsonl" in caplog.text) == (n == 1)


def states(values):
    return dict.fromkeys(SIZES.columns, np.array(values, np.float32))


def rows_of(text, *told, start=0):
    found = HiddenStates(SIZES.columns, SIZES.n_embd)
    for at, tokens, values in told:
        found.add(at, np.int32(tokens), states(values))
    return found.of(np.int32(text), start)


def test_states_beyond_float16_are_its_largest_and_not_infinite():
    values = np.array([65504.0, 65520.0, 1e6, np.inf, -1e6, -np.inf])
    expected = np.array([65504, 65504, 65504, 65504, -65504, -65504], np.float16)
    found = rows_of(range(7), (0, range(6), np.stack([values, values], axis=1)))
    assert np.array_equal(found, np.repeat(expected[:, None], 6, axis=1))


def test_of_several_residual_streams_the_mean_is_kept():
    assert rows_of([9, 9], (0, [9], [[1, 2, 3, 6]])).tolist() == [[2, 4] * 3]


def test_rows_are_those_of_the_text_also_where_it_was_begun_again_or_its_beginning_reused():
    two = [[1, 1], [2, 2]]
    told = [(2, [7, 8], two), (4, [9], [[3, 3]])]
    assert rows_of([5, 6, 7, 8, 9, 1], *told) is None
    assert rows_of([5, 6, 7, 8, 9, 1], *told, start=2)[:, 0].tolist() == [1, 2, 3]
    assert rows_of([5, 6, 7, 8, 9, 1], *told, start=3)[:, 0].tolist() == [2, 3]
    assert rows_of([5, 6, 7, 1, 9, 1], *told, start=2) is None
    assert rows_of([5, 6, 7, 8, 9, 1], *told, (3, [8, 9], two), start=2)[:, 0].tolist() == [1, 1, 2]
    assert rows_of([5, 6, 8, 9], *told, (0, [5, 6], two), (2, [8], [[4, 4]]))[:, 0].tolist() == [1, 2, 4]
    assert rows_of([5, 6]) is None


def test_with_the_head_all_of_it_is_gone(kept):
    with opened(kept) as recorded:
        recorded.remove()
        assert not recorded.folder.exists()
    assert list(kept.iterdir()) == []
