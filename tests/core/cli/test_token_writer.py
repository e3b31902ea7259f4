"""How drafted tokens are marked on a terminal."""

import io
import sys

import pytest

from augury.cli.log_output import TokenWriter
from augury.types import Token

COLOURED = "ab\x1b[32mab\x1b[0m\x1b[36mab\x1b[0m\x1b[32mab\x1b[0m"


@pytest.fixture
def written(monkeypatch):
    def write(*drafters, **env):
        terminal = io.StringIO()
        terminal.isatty = lambda: True
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        for name, value in {"TERM": "xterm-256color", "COLORTERM": "", "NO_COLOR": "", **env}.items():
            monkeypatch.setenv(name, value)
        writer = TokenWriter(has_tokenizer=True, is_coloured=True)
        for drafter in drafters:
            writer.write(Token(1, "ab", drafter))
        return terminal.getvalue(), writer.legend

    return write


@pytest.mark.parametrize(
    ("env", "drafters", "shown", "legend"),
    [
        ({}, (None, "suffix", "model", "suffix"), COLOURED, "green: suffix, cyan: model"),
        ({"NO_COLOR": "1"}, (None, "suffix", "model"), "ab\x1b[4mab\x1b[0m\x1b[1mab\x1b[0m", "underline: suffix, bold: model"),
        ({"TERM": "dumb"}, ("suffix",), "ab", ""),
    ],
    ids=["in colours", "by other marks", "not at all"],
)
def test_drafters_are_marked_as_the_terminal_can(written, env, drafters, shown, legend):
    assert written(*drafters, **env) == (shown, legend)
