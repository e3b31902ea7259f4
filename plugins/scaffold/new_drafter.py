"""`augury new-drafter`: writes a pip package with a working drafter, as a starting point for your own."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.errors import AuguryError, OptionError
from augury.files.atomic_file import write_atomically
from augury.hookspecs import hookimpl

if TYPE_CHECKING:
    from augury import Registry

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_RESERVED = ("auto",)  # which --spec-type takes for something else
_FILES = {  # template: where it goes
    "pyproject.toml": "pyproject.toml",
    "drafter.py": "{module}.py",
    "test_drafter.py": "tests/test_{module}.py",
    "README.md": "README.md",
    "workflow.yml": ".github/workflows/test.yml",
    "gitignore": ".gitignore",
}


@hookimpl
def augury_commands(subparsers: Any, registry: Registry) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "new-drafter",
        help="start a drafter of your own",
        description="Write a pip package with a drafter of some twenty lines, its tests, README and CI, into a new folder.",
    )
    parser.add_argument(
        "name", metavar="NAME", help="of the drafter, for --spec-type, and of the folder: lower-case letters, digits, hyphens"
    )
    parser.set_defaults(run=_run, registry=registry)


def _run(args: argparse.Namespace) -> int:
    name = _checked(args.name, args.registry)
    folder = Path(name)
    module = f"augury_{name.replace('-', '_')}"
    facts = {
        "name": name,
        "distribution": f"augury-{name}",
        "module": module,
        "class_name": "".join(part.capitalize() for part in name.split("-")),
        "version": metadata.version("augury"),
    }
    try:
        folder.mkdir()
    except FileExistsError:
        raise AuguryError(f"{folder} already exists; choose another name, or move it away") from None
    written = []
    try:
        for template, place in _FILES.items():
            path = folder / place.format(module=module)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _rendered(template, facts))
            written.append(path)
    except BaseException:  # a full disk, Ctrl-C: half a package is of no use, and in the way of the next try
        shutil.rmtree(folder, ignore_errors=True)
        raise
    sys.stdout.write("".join(f"{path}\n" for path in written))
    sys.stdout.write(
        f"\nIt works as it is. Install it, try it and test it:\n\n"
        f"  pip install -e './{folder}[test]'\n"
        f'  augury run --spec-type {name} --temp 0 -n 40 --stats -p "a b c d a b c d a b c d a b"\n'
        f"  pytest {folder} --augury-drafter {name}\n"
    )
    return 0


def _checked(name: str, registry: Registry) -> str:
    """Check the name of the drafter. Raises OptionError: it cannot be a name, or is taken."""
    if _NAME.fullmatch(name) is None:
        good = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789") or "my-drafter"
        raise OptionError(
            f"{name!r} is not a name for a drafter; use lower-case letters, digits and single hyphens, or try {good!r}"
        )
    for record in registry.records:
        if record.kind == "drafter" and name in (record.name, *record.plugin.aliases):
            where = f"{record.distribution} {record.version}".strip()
            raise OptionError(f"there is already a drafter {name!r}, of {where}; try 'my-{name}'")
    if name in _RESERVED:
        raise OptionError(f"--spec-type {name} means something else; try 'my-{name}'")
    return name


def _rendered(template: str, facts: dict[str, str]) -> str:
    from jinja2 import Environment, StrictUndefined

    source = files("augury.plugins.scaffold").joinpath("drafter_template", f"{template}.jinja").read_text(encoding="utf-8")
    # it writes Python, TOML and Markdown, in which HTML's escapes would be wrong
    environment = Environment(autoescape=False, undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701
    return environment.from_string(source).render(facts)
