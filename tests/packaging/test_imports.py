"""Who may import whom: wings as docs/architecture.md says, plugins what docs/plugins.md promises, and nobody in a circle."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from types import ModuleType

import pytest
from support.sources import MODULES, ROOT, import_graph

import augury.testing
from augury.registry import Registry

CORE = {"files", "text", "engine", "speculation", "testing", "cli", "contract", "registry", "placement", "loader", "entry"}


def wing(module):
    _, *rest = module.split(".")
    if not rest or rest == ["__main__"]:
        return "entry"
    if rest[0] in {"backends", "plugins"}:
        return ".".join(rest[:2])
    return rest[0] if rest[0] in CORE or rest[0] == "drafters" else "contract"


def documented(page, heading):
    """The rows of the first table under a heading: what each first cell's `names` are said of the second's."""
    section = (ROOT / "docs" / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    return [tuple(re.findall(r"`([^`]+)`", cell) for cell in row) for row in rows]


def between_wings():
    drawn = {wing(module): set() for module in MODULES if module not in {"augury.backends", "augury.plugins"}}
    for module, imported in import_graph().items():
        if wing(module) in drawn:
            drawn[wing(module)] |= {wing(name) for name in imported} - {wing(module), "contract"}
    return drawn


def test_wings_import_what_the_architecture_page_says():
    said = {name: set(imported) for (name,), imported in documented("architecture.md", "Import direction")}
    assert between_wings() == said, "the sources (left) and docs/architecture.md, Import direction (right), differ"


@pytest.mark.parametrize("name", sorted(CORE))
def test_core_imports_no_plugin(name):
    assert between_wings()[name] <= CORE


def test_core_names_no_plugin():
    names = {record.name for record in Registry.discover().records if record.kind in ("backend", "drafter", "memory")}
    names -= {"none", "forced", "prediction"}  # a user's word for no drafter, a method, a parameter of requests
    kept = ("core/testing/", "core/cli/foreign_flags.py")  # the kit compares with an oracle; what other programs' flags mean
    for path in (ROOT / "core").rglob("*.py"):
        if not str(path.relative_to(ROOT)).startswith(kept):
            nodes = ast.walk(ast.parse(path.read_text()))
            found = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
            assert not names & found, path


def test_no_modules_import_each_other_in_a_circle():
    try:
        TopologicalSorter(import_graph()).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports, type-checking ones included: {' <- '.join(error.args[1])}")


def test_plugins_import_what_any_plugin_may():
    rows = documented("plugins.md", "What a plugin may import")
    promised = {"augury", *(f"augury.{name}" for names, _ in rows for name in names)}
    assert promised <= set(MODULES), "of no module"
    assert len(rows) < 12, "what is promised no longer fits on a screen"
    for module, imported in import_graph().items():
        if wing(module) not in CORE:
            strange = {name for name in imported - promised if wing(name) != wing(module)}
            assert not strange, f"{module} imports what docs/plugins.md promises to no plugin"


@pytest.mark.parametrize("module", [augury, augury.testing])
def test_what_a_module_offers_is_imported_when_it_is_used(module):
    assert set(module._HOMES) == set(module.__all__)
    assert not [name for name in module.__all__ if isinstance(getattr(module, name), ModuleType)], "hidden by modules"
