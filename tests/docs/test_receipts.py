"""The commands and the program of the page on receipts run, and print what it shows."""

import json
import re
import shlex
from pathlib import Path

import pytest
from support.commands import run

from augury import Engine
from augury.testing.tiny_model import write_tiny_model

PAGE = (Path(__file__).parents[2] / "docs/receipts.md").read_text()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("receipts") / "smollm2.gguf"
    write_tiny_model(path)
    return path


def test_the_commands_print_what_it_shows(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (commands,) = re.findall(r"^```sh\n(augury run.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in commands.splitlines():
        _, *words = (str(tiny) if word == "smollm2" else word for word in shlex.split(line))
        given = ["-m", tiny] if words[0] == "verify" else ["--backend", "reference", "--ignore-eos", "-c", 256]
        code, out, _ = run(capsys, *words, *given)
        assert code == 0
    assert re.sub(r"[\d.]+ s", "", out) == re.sub(r"[\d.]+ s", "", shown)


def test_the_program_finds_its_text_equal(tiny, capsys):
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    with Engine.load(tiny, backend="reference", n_ctx=64) as engine:
        exec(program.replace("max_tokens=200", "max_tokens=20"), {"engine": engine, "json": json})
    assert capsys.readouterr().out == "True \n"
