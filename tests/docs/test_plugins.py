"""The pages on plugins and hooks: their code runs, and they name what there is."""

import argparse
import re
import types
from pathlib import Path

from augury import hookspecs
from augury.interfaces import API_VERSION
from augury.registry import ALLOW_LIST, Registry
from augury.testing.drafter.suite import drafter_subject
from augury.types import Summary

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "plugins.md").read_text()
(STEADY,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CHOICE, OBSERVER, COMMAND = re.findall(r"^```python\n(.*?)^```$", (DOCS / "hooks.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_observer_counts():
    module = types.ModuleType("observer")
    exec(OBSERVER, vars(module))
    registry = Registry()
    registry.register(module, name="observer")
    for _ in range(2):
        registry.observers("augury_request_done")(summary=Summary(n_emitted=5, n_rounds=3, n_drafted=4, n_accepted=2))
    assert module.COUNTS == {"emitted": 10, "drafted": 8, "accepted": 4}


def test_the_drafter_with_a_version_is_accepted():
    names = {}
    exec(STEADY, names)
    assert names["Steady"].api_version == API_VERSION
    assert drafter_subject(names["Steady"]).name == "steady"


def test_every_hook_and_the_allow_list_are_named():
    hooks = {name for name in vars(hookspecs) if name.startswith("augury_")}
    assert not {hook for hook in hooks if f"`{hook}" not in PAGE}
    assert f"**`{ALLOW_LIST}`**" in PAGE


def test_the_command_is_one(capsys):
    module = types.ModuleType("greet")
    exec(COMMAND, vars(module))
    registry = Registry()
    registry.register(module, name="greet")
    parser = argparse.ArgumentParser()
    registry.add_commands(parser.add_subparsers(), ())
    args = parser.parse_args(["greet"])
    assert args.run(args) == 0
    assert capsys.readouterr().out == "hello\n"


def test_the_choice_is_made_among_what_there_is():
    names = {}
    exec(CHOICE, names)
    assert names["augury_choose"]("drafter", ["suffix", "trail"], None) == "trail"
    assert names["augury_choose"]("drafter", ["suffix"], None) is names["augury_choose"]("memory", ["trail"], None) is None
