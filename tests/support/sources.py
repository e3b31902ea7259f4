"""The source files, their modules' names, and who imports whom, at type-checking time too."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {"core": "augury", "backends": "augury.backends", "drafters": "augury.drafters", "plugins": "augury.plugins"}


def name_of(path):
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([FOLDERS[folder], *(part for part in rest if part != "__init__")])


SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MODULES = {name_of(path): path for path in SOURCES}


def imports_of(path):
    """What a file imports: modules of augury by their full names, of others what stands after `import` or `from`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found


@cache
def import_graph():
    """Of each module of augury, the modules of augury that it imports."""
    return {name: imports_of(path) & set(MODULES) - {name} for name, path in MODULES.items()}
