"""The tree's rules: what kernels import, how long files are, and that what is installed is what is here."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
from support.sources import FOLDERS, ROOT, SOURCES, imports_of, name_of

DATA = {  # what is shipped beside code
    path.relative_to(ROOT).as_posix().replace(folder, name.replace(".", "/"), 1)
    for folder, name in FOLDERS.items()
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and path.suffix not in {".py", ".pyc"}
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# abc, attrs, functools and sys serve what writes kernels as LLVM IR, for the system at hand
MAY_KERNELS_IMPORT = (
    "abc",
    "__future__",
    "typing",
    "collections",
    "functools",
    "operator",
    "sys",
    "attrs",
    "numpy",
    "numba",
    "math",
    "llvmlite",
)
# two compile and cache kernels, one chooses an instruction set, two are what kernels are written in: they hold none
NO_KERNELS = {"compiler.py", "isa.py", "jit.py", "dialect.py", "instructions.py"}


def test_the_package_list_is_the_tree():
    packages = {name_of(path) for path in SOURCES if path.name == "__init__.py"}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages


def test_every_folder_with_code_is_a_package():
    assert {path.parent for path in SOURCES} == {path.parent for path in SOURCES if path.name == "__init__.py"}


def test_every_entry_point_has_its_module():
    modules = {name_of(path) for path in SOURCES}
    assert set(PROJECT["project"]["entry-points"]["augury"].values()) <= modules


def test_every_module_with_hook_implementations_is_an_entry_point():
    plugins = {name_of(path) for path in SOURCES if "\n@hookimpl" in path.read_text()}
    assert set(PROJECT["project"]["entry-points"]["augury"].values()) == plugins


@pytest.mark.parametrize("path", [path for path in SOURCES if "kernels" in path.parts], ids=name_of)
def test_kernels_import_arrays_and_other_kernels_only(path):
    if path.name in NO_KERNELS:
        return
    imported = {name for name in imports_of(path) if name.split(".")[0] not in MAY_KERNELS_IMPORT}
    assert not [name for name in imported if not re.search(r"\.kernels|^augury\.backend\.numba_", name)]


def test_libraries_of_which_unexported_parts_are_used_have_an_upper_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    stated = {re.match(r"\w+", each)[0]: each for each in asked}
    assert ",<" in stated["uvicorn"], "`Connection` is uvicorn's H11Protocol with limits"
    assert ",<" in stated["numba"], "kernels are compiled and kept by parts of numba.core"


def test_the_architecture_page_draws_every_folder_and_what_is_at_the_top_of_the_core():
    (tree,) = re.findall(r"^## Layout\n+```\n(.*?)^```", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE | re.DOTALL)
    folders = {path.name for folder in FOLDERS for path in (ROOT / folder).iterdir() if (path / "__init__.py").exists()}
    drawn = set(re.findall(r"\w+", tree))
    assert not folders - drawn
    assert not {path.stem for path in (ROOT / "core").glob("[a-z]*.py")} - drawn


def test_no_source_file_is_longer_than_400_lines():
    assert not {str(path): n for path in SOURCES if (n := len(path.read_text().splitlines())) > 400}


def test_no_file_hides_a_folder_and_none_is_a_drawer():
    names = {path.relative_to(ROOT).as_posix() for path in SOURCES}
    assert not names & {"core/plugins.py", "core/drafters.py", "core/backends.py"}
    assert not [name for name in names if Path(name).stem in {"utils", "helpers", "util", "helper", "misc", "common"}]


def test_core_cannot_be_imported_under_the_folders_name():
    ended = subprocess.run([sys.executable, "-c", "import core"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "imported as augury" in ended.stderr


def test_commands_engine_and_plugins_are_imported_without_numba():
    code = """
import sys
import augury.cli.command_line, augury.engine.engine
augury.Registry.discover()
print(*sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert {name for name in told.split() if not name.startswith("_")} == {"attr", "attrs", "augury", "numpy", "pluggy"}


def test_the_wheel_holds_exactly_the_tree(tmp_path):
    clean = tmp_path / "clean"
    for folder in FOLDERS:
        copytree(ROOT / folder, clean / folder, ignore=ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, clean / name)
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(clean)]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {name_of(path).replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py") for path in SOURCES}
    assert shipped == expected | DATA
