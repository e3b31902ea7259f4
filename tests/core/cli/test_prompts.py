"""Where prompts come from."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest
from support.commands import here, run

from augury.cli import text_file
from augury.cli.prompts import Prompt, prompts_of_lines, read_prompts
from augury.cli.text_file import check_writable, read_text
from augury.errors import AuguryError


def read(tmp_path, name, text):
    file = Path(tmp_path) / name
    file.write_text(text)
    return read_prompts(Namespace(prompt=[], prompt_tokens=[], file=[str(file)], chat=False))


def test_a_text_file_is_one_prompt_without_its_last_line_end(tmp_path):
    assert read(tmp_path, "a.txt", "one\ntwo\n") == [Prompt(text="one\ntwo")]


def test_lines_may_end_as_on_windows_and_a_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert read_text(tmp_path / "a.txt") == "one\ntwo\n"


def test_json_lines_are_known_by_what_they_hold(tmp_path):
    found = read(tmp_path, "a.txt", '{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}], "seed": 3}\n')
    messages = [{"role": "user", "content": "two"}]
    first, second = (f"{tmp_path / 'a.txt'}:{number}" for number in (1, 2))
    assert found == [Prompt(text="one", where=first), Prompt(messages=messages, params={"seed": 3}, where=second)]


def test_a_text_that_starts_with_a_brace_is_a_text(tmp_path):
    assert read(tmp_path, "a.c", "{\n  return 1;\n}\n") == [Prompt(text="{\n  return 1;\n}")]
    assert read(tmp_path, "a.json", '{"name": 1}') == [Prompt(text='{"name": 1}')]


def test_parameters_of_a_line_go_with_its_prompt():
    assert Prompt(tokens=(1, 2), params={"seed": 3}).arguments() == {"prompt": [1, 2], "seed": 3}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nonsense", "not JSON"),
        ('{"id": "a"}', "expected an object with one of"),
        ('{"prompt": "a", "tokens": [1]}', "expected an object with one of"),
        ("[1]", "expected an object"),
        ('{"prompt": 5}', "prompt is 5, expected a text"),
        ('{"tokens": "x"}', "tokens is 'x', expected a list of token ids"),
        ('{"tokens": [1, true]}', "expected a list of token ids"),
        ('{"prompt": "a", "n": 2}', "n is given, but a line has one answer"),
        ('{"messages": ["Hi"]}', "messages is ..Hi.., expected a list of"),
    ],
)
def test_a_bad_line_says_what_is_wrong_where_it_is_used(line, expected):
    good, bad = prompts_of_lines(f'{{"prompt": "a"}}\n{line}', "file")
    assert good.arguments() == {"prompt": "a"}
    with pytest.raises(AuguryError, match=f"^file:2: .*{expected}"):
        bad.arguments()


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, expected in (("absent", "absent: No such file"), ("binary", "UTF-8"), (".", "Is a directory")):
        with pytest.raises(AuguryError, match=expected):
            read_text(tmp_path / name)


@pytest.mark.parametrize("words", [["run", "-f", "/dev/zero"], ["run", "-f", "-"], ["run"], ["chat"]], ids=" ".join)
def test_what_has_no_end_is_an_error(capsys, monkeypatch, words):
    monkeypatch.setattr(text_file, "_MAX_SIZE", 2**20)
    with Path("/dev/zero").open(encoding="utf-8") as zeros:
        monkeypatch.setattr(sys, "stdin", zeros)
        code, out, err = run(capsys, *words, *here())
    where = "/dev/zero" if "/dev/zero" in words else "standard input"
    assert (code, out) == (1, "")
    assert err.endswith(f"augury: {where}: larger than 1 MiB, more than any context holds; give less text\n")


def test_a_prompt_of_the_largest_size_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text_file, "_MAX_SIZE", 4)
    assert read(tmp_path, "a.txt", "1234") == [Prompt(text="1234")]
    assert read(tmp_path, "a.txt", "\U0001f642" * 4) == [Prompt(text="\U0001f642" * 4)]


def test_a_huge_file_is_refused_unread(tmp_path, monkeypatch):
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(3 * 10**9)
    monkeypatch.setattr(text_file, "_read", None)
    with pytest.raises(AuguryError, match=r"a\.txt: larger than 256 MiB"):
        read_text(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("name", "expected"), [("absent/x", "there is no folder"), (".", "not a file"), ("locked", "not writable")]
)
def test_what_cannot_be_written_is_said_beforehand(tmp_path, monkeypatch, name, expected):
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path)
    with pytest.raises(AuguryError, match=f"^--html: .*{expected}"):
        check_writable(tmp_path / name, "--html")
