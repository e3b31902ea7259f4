"""How drafted tokens are marked on a terminal."""

import io
import sys

import pytest

from augury.cli.token_writer import TokenWriter
from augury.types import Token


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


def test_drafters_have_colours(written):
    assert written(None, "suffix", "model", "suffix") == (
        "ab\x1b[32mab\x1b[0m\x1b[36mab\x1b[0m\x1b[32mab\x1b[0m",
        "green: suffix, cyan: model",
    )


def test_without_colours_drafters_are_told_by_other_marks(written):
    assert written(None, "suffix", "model", NO_COLOR="1") == (
        "ab\x1b[4mab\x1b[0m\x1b[1mab\x1b[0m",
        "underline: suffix, bold: model",
    )


def test_a_terminal_that_can_neither_is_shown_plain_text(written):
    assert written("suffix", TERM="dumb") == ("ab", "")
