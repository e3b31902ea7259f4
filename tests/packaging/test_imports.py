"""Who may import whom: wings as docs/architecture.md says, plugins what public modules offer, and nobody in a circle."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pkgutil import resolve_name
from types import ModuleType

import pytest
from support.sources import MODULES, ROOT, import_graph

from augury.registry import Registry

PUBLIC = ["augury", *(f"augury.{name}" for name in ("drafter", "backend", "model", "plugin", "testing"))]
KERNELS = ["augury.backend.numba_cpu", "augury.backend.numba_cuda"]
PAGES = [path for path in (ROOT / "docs").glob("*.md") if path.name != "architecture.md"]  # which shows the inside
STRANGERS = ROOT / "tests/packaging/test_strangers.py"

CORE = {"files", "text", "engine", "speculation", "testing", "cli", "contract", "registry", "placement", "loader", "entry"}


def wing(module):
    _, *rest = module.split(".")
    if not rest or rest == ["__main__"]:
        return "entry"
    if rest[0] in {"backends", "plugins"}:
        return ".".join(rest[:2])
    if rest[0] in {"drafter", "backend", "model", "plugin"}:
        return "public"
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
    kinds = ("architecture", "backend", "drafter", "memory")
    names = {record.name for record in Registry.discover().records if record.kind in kinds}
    names -= {"none", "forced", "prediction"}  # a user's word for no drafter, a method, a parameter of requests
    named = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?!\.cpp|[\w-])")
    kept = (
        *("core/files/", "core/text/"),  # words of files' formats, some of which are models' names
        "core/model_info.py",  # what a head means, which files do not say
        *("core/testing/", "core/cli/foreign_flags.py"),  # the kit compares with an oracle; what other programs' flags mean
    )
    for path in (ROOT / "core").rglob("*.py"):
        if not str(path.relative_to(ROOT)).startswith(kept):
            nodes = list(ast.walk(ast.parse(path.read_text())))
            docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docs]
            assert not [text for text in texts if isinstance(text, str) and named.search(text)], path


def test_no_modules_import_each_other_in_a_circle():
    try:
        TopologicalSorter(import_graph()).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports, type-checking ones included: {' <- '.join(error.args[1])}")


def test_the_public_modules_are_those_of_the_page():
    assert [name for (name,), _ in documented("plugins.md", "What a plugin may import")] == PUBLIC


@pytest.mark.parametrize("name", ["augury", "augury.testing"])
def test_type_checkers_read_of_the_names_that_are_imported_when_they_are_used(name):
    module, tree = import_module(name), ast.parse(MODULES[name].read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    read = {each.asname: node.module for node in block.body for each in node.names if node.module.startswith("augury")}
    assert read == {each: f"{name}.{home}" for each, home in module._HOMES.items()}
    assert dir(module) == sorted(read)
    assert not [each for each in read if isinstance(getattr(module, each), ModuleType)], "hidden by modules"


def test_plugins_import_what_any_plugin_may():
    offered = {name for module in (*PUBLIC, *KERNELS) for name in dir(import_module(module))}
    for module, path in MODULES.items():
        if wing(module) not in {*CORE, "public"}:
            own = {wing(module)} | ({"backends.numba"} if wing(module).startswith("backends.numba_") else set())
            strange = {name for home, name in imported_names(path) if wing(home) not in own} - offered
            assert not strange, f"{module} imports what no public module offers"


def imported_names(path):
    """The names that a file imports of augury, each with the module that it comes from."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    names = [(node.module, each.name) for node in nodes if node.module.startswith("augury") for each in node.names]
    return [(home, name) for home, name in names if f"{home}.{name}" not in MODULES]  # a folder of operations is none


@pytest.mark.parametrize(
    "path",
    [*PAGES, ROOT / "README.md", *(ROOT / "plugins/scaffold").rglob("*.jinja"), STRANGERS],
    ids=lambda path: path.name,
)
def test_what_strangers_are_shown_imports_public_modules_alone(path):
    text = path.read_text()
    if path == STRANGERS:
        constants = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        text = "\n".join(each for each in constants if isinstance(each, str))
    assert not set(re.findall(r"^\s*(?:from|import) (augury[\w.]*)", text, re.MULTILINE)) - {*PUBLIC, *KERNELS}


def test_a_broken_contract_is_documented_where_it_says():
    calls = [node for path in (ROOT / "core/testing").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    places = [
        each.args[1].value
        for each in calls
        if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "Contract" and isinstance(each.args[1], ast.Constant)
    ]
    places = [place for place in places if place.startswith("augury.")]
    assert len(places) > 40
    for place in places:
        resolve_name(place)
