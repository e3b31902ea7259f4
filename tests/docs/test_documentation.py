"""Hooks and options are documented, and every hook has a test of its name."""

import builtins
import importlib
import inspect
import re
import runpy
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import augury
from augury import hookspecs
from augury.registry import Registry

ROOT = Path(__file__).parents[2]
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("augury_"))


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


def test_a_table_has_a_header_a_separator_and_rows_with_as_many_cells():
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
        for part in re.split(r"\n{2,}", text.strip()):
            if re.search(r"(?m)^\|", part):
                assert re.fullmatch(r"\|.*[^-:|].*\|\n\|(-+:?\|)+(\n\|.*\|)+", part), (page.name, part)
                assert len({len(re.findall(r"(?<!\\)\|", row)) for row in part.splitlines()}) == 1, (page.name, part)


def test_no_table_stands_twice_on_the_page_of_options():
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / "docs/options.md").read_text(), re.MULTILINE)
    assert len(tables) == len(set(tables)) > 10


def test_the_changelog_says_nothing_twice():
    text = " ".join((ROOT / "CHANGELOG.md").read_text().split("## [Unreleased]")[1].split("\n## [")[0].split())
    said = [sentence for sentence in re.split(r"(?<=[.:;])\s+(?:- )?", text) if len(sentence) > 30]
    assert [each for each, n in Counter(said).items() if n > 1] == []


def test_the_page_of_options_is_what_plugins_and_commands_declare(monkeypatch):
    monkeypatch.setenv("AUGURY_PLUGINS", "augury")
    module = runpy.run_path(str(ROOT / "docs/options.py"))
    assert (ROOT / "docs/options.md").read_text() == module["page"](Registry.discover()), "run make docs"


@pytest.mark.sample(0)
def test_the_page_of_models_is_what_architectures_and_oracles_say(monkeypatch):
    monkeypatch.setenv("AUGURY_PLUGINS", "augury")
    module = runpy.run_path(str(ROOT / "docs/models.py"))
    assert (ROOT / "docs/models.md").read_text() == module["page"](Registry.discover()), "run make docs"


@pytest.mark.parametrize("module", ["augury", "augury.testing"])
def test_the_reference_has_every_name_that_a_module_imports_when_it_is_used(module):
    page = (ROOT / f"docs/reference/{module.removeprefix('augury.')}.rst").read_text()
    assert {name for name in importlib.import_module(module).__all__ if not re.search(rf"\.{name}\b", page)} == set()


def test_the_readme_makes_the_command_found_before_it_is_typed():
    lines = (ROOT / "README.md").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("augury "))
    assert ". .venv/bin/activate" in lines[:first]


@pytest.mark.parametrize("page", ["README.md", "docs/library.md", "docs/server.md", "docs/guide.md"])
def test_every_error_that_users_are_told_of_can_be_imported_from_augury(page):
    named = set(re.findall(r"`(\w+Error)\b", (ROOT / page).read_text()))
    ours = {name for name in named if name not in vars(builtins)}
    assert ours <= set(augury.__all__)
    assert ours or page != "docs/library.md"


def test_the_changelog_names_the_released_version_below_a_short_unreleased_part():
    unreleased, *released = re.findall(r"^## \[(.*?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert unreleased == ("Unreleased", "")
    assert re.fullmatch(r" - \d{4}-\d\d-\d\d", released[0][1])
    assert released[0][0] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
