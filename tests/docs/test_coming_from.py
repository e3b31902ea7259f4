"""docs/coming-from.md: what it says that people may type can be typed."""

import re
import shlex
from pathlib import Path

import pytest

from augury.cli.command_line import make_parser
from augury.registry import Registry

PAGE = (Path(__file__).parents[2] / "docs/coming-from.md").read_text()
COMMANDS = re.findall(r"`augury (\S[^`]*)`", PAGE)
REGISTRY = Registry.discover()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_these_flags(command, capsys):
    words = shlex.split(command)
    assert make_parser(REGISTRY, words).parse_args(words).command == words[0]
    assert "ignored" not in capsys.readouterr().err


def test_there_are_commands_for_each_program():
    parts = PAGE.split("\n## ")
    assert [part.partition("\n")[0] for part in parts[1:5]] == ["llama.cpp", "Ollama", "vLLM", "LM Studio"]
    assert all(part.count("`augury ") >= 5 for part in parts[1:5])
