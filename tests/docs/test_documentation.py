"""Hooks and options are documented, and every hook has a test of its name."""

import inspect
import re
from pathlib import Path

import pytest

from augury import hookspecs
from augury.options import options_of
from augury.registry import Registry
from augury.sampling import sampling_options

ROOT = Path(__file__).parents[2]
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("augury_"))
RECORDS = Registry.discover().records


def test_there_are_hooks():
    assert HOOKS


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_documented_with_its_exact_arguments(hook):
    signature = inspect.signature(getattr(hookspecs, hook))
    heading = f"## `{hook}({', '.join(signature.parameters)})`"
    assert heading in (ROOT / "docs/hooks.md").read_text().splitlines()


def test_no_hook_is_documented_that_does_not_exist():
    assert sorted(re.findall(r"^## `(augury_\w+)", (ROOT / "docs/hooks.md").read_text(), flags=re.MULTILINE)) == HOOKS


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_a_test_of_its_name(hook):
    assert f"def test_{hook}_" in (ROOT / "tests/core/test_hookspecs.py").read_text()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record.kind}-{record.name}")
def test_a_plugins_options_are_documented(record):
    lines = (ROOT / "docs/options.md").read_text().splitlines()
    for option in options_of(record.plugin.options_class).values():
        row = f"| `{option.name}` | {option.default} | {option.help} |"
        assert row in lines


def test_sampling_options_are_documented():
    lines = (ROOT / "docs/options.md").read_text().splitlines()
    for option in sampling_options().values():
        assert f"| `{option.name}` | {option.default} | {option.help} |" in lines


@pytest.mark.parametrize("command", ["run", "bench", "tune"])
def test_every_flag_of_a_command_is_documented(command):
    from augury.cli.command_line import make_parser

    parser = make_parser(Registry.discover())
    (subparsers,) = (action for action in parser._actions if action.dest == "command")
    text = (ROOT / "docs/options.md").read_text()
    flags = {max(action.option_strings, key=len) for action in subparsers.choices[command]._actions if action.option_strings}
    assert not {flag for flag in flags if f"`{flag}`" not in text}
