"""Every example runs, on a tiny model."""

import io
import re
import runpy
import sys
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from augury.cli.command_line import make_parser
from augury.engine.engine import Engine
from augury.registry import Registry
from augury.testing.tiny_model import write_tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples"
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
TOLD = {  # what the output must say
    "architecture": r"brook \(\d+(, \d+){7}\)",
    "async_tasks": "took too long",
    "batch": "the same alone: True",
    "chat": ".",
    "drafter": "none: 32 rounds for 32 tokens\nrepeat: [12]?\\d rounds for 32 tokens\nidentical: True",
    "receipts": r"equal: True\nchanged: token 5 is \d+, not \d+",
    "search": r"(?:0\.\d{3} .*\n){4}",
    "several_models": r"(?s)(easy|hard): What is.*(easy|hard): Why",
    "structured_output": r"(invoice|order|letter) \d{4} (paid|open)",
    "tools": "(Oslo|Lima) (rain|sun)",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("examples") / "tiny.gguf"
    write_tiny_model(path)
    return path


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Engines on one thread of a backend that compiles nothing."""
    small = {
        "backend": "reference",
        "threads": 1,
        "n_ctx": 1024,
        "spec_fixed": True,
        "override_kv": {"tokenizer.chat_template": TEMPLATE},
    }
    monkeypatch.setattr(Engine, "load", partial(Engine.load, **small))


@pytest.mark.parametrize("name", TOLD)
def test_an_example_runs_and_tells_what_it_shows(name, tiny, tmp_path, monkeypatch, capsys):
    if name == "architecture":
        tiny = tmp_path / "brook.gguf"
        write_tiny_model(tiny, architecture="brook")
    monkeypatch.setattr(sys, "argv", [name, *[str(tiny)] * (1 + (name == "several_models"))])
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nbye\n"))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(TOLD[name], capsys.readouterr().out)


def test_the_app_streams(tiny, monkeypatch):
    monkeypatch.setenv("MODEL", str(tiny))
    with TestClient(runpy.run_path(str(EXAMPLES / "fastapi_stream.py"))["app"]) as client:
        answer = client.get("/continue", params={"prompt": "the sea", "max_tokens": 8})
    assert answer.status_code == 200
    assert answer.text


def test_the_commands_of_the_script_are_known():
    commands = re.findall(r"^augury (.*)$", (EXAMPLES / "learn_and_serve.sh").read_text(), re.MULTILINE)
    parser = make_parser(Registry.discover())
    words = [["def main(" if word == '"def main("' else word for word in re.findall(r'"[^"]*"|\S+', each)] for each in commands]
    assert [parser.parse_args(each).command for each in words] == ["learn", "bench", "serve"]


def test_every_example_is_short_is_run_here_and_is_named_in_the_docs():
    files = [path for path in EXAMPLES.iterdir() if path.is_file()]
    assert {path.stem for path in files} == {*TOLD, "fastapi_stream", "learn_and_serve"}
    page = (EXAMPLES.parent / "docs/library.md").read_text()
    for path in files:
        assert f"](../examples/{path.name})" in page
        assert len(path.read_text().splitlines()) <= 40
