# ruff: noqa: INP001 - read by Sphinx, not imported
"""How `make docs-site` builds the pages: from the repository's root, so that links are the same there and on a code host."""

from __future__ import annotations

import ast
import inspect
import json
import operator
import shutil
import sys
import textwrap
from importlib import metadata
from typing import TYPE_CHECKING, Any, is_typeddict

import attrs

import augury
import augury.lowering
import augury.testing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

CONTENTS = {
    "Use": [
        "docs/README",
        "docs/install",
        "docs/coming-from",
        "docs/guide",
        "docs/learn",
        "docs/machines",
        "docs/library",
        "docs/notebook",
        "docs/receipts",
        "docs/server",
        "docs/security",
        "docs/options",
        "docs/models",
        "docs/benchmarks",
    ],
    "Extend": [
        "docs/plugins",
        "docs/write-a-drafter",
        "docs/write-a-constraint",
        "docs/write-an-architecture",
        "docs/write-a-plugin",
        "docs/hooks",
        "docs/reference/index",
    ],
    "Understand": ["docs/architecture", "docs/cuda", "docs/testing", "docs/notation", "CHANGELOG"],
}

project = "augury"
release = metadata.version(project)
html_title = f"{project} {release}"
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
smartquotes_action = "D"  # dashes

root_doc = "README"
include_patterns = ["*.md", "docs/**"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown", ".ipynb": "markdown"}
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
autosummary_generate = False  # its tables link to the reference, whose pages are written by hand
maximum_signature_line_length = 100
myst_heading_anchors = 4  # depth to which a heading can be linked to as on a code host
autodoc_member_order = "bysource"
napoleon_custom_sections = ["Numerics", "Source", ("Attributes", "params_style")]
napoleon_use_rtype = False  # what is returned is said in words

# Every link and every type in a signature has to lead somewhere, but for what is in no docs of ours.
nitpicky = True
default_role = "py:obj"  # `name` in a docstring is a link where it names something, and code where it does not
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    ("py:class", r"(abc|collections|gguf|np|numpy|pathlib|types)\..*|Path|Receipt"),
    (
        "py:class",
        r"augury\.files\.gguf\.(Default|Value)|(augury\.lowering\.(emitters|builder)\.)?_(Block|Emitter|Out_co)",
    ),  # type variables
]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", import_types)
    app.connect("source-read", prepare)
    app.connect("autodoc-process-docstring", add_fields, priority=400)  # before napoleon, at 500, reads the sections
    app.connect("build-finished", add_index)


def prepare(app: Sphinx, page: str, source: list[str]) -> None:
    """Make a page of a notebook, give the README the site's contents, and leave the dashes of flags alone."""
    app.env.settings["smart_quotes"] = page.startswith("docs/reference/")
    if app.env.doc2path(page).suffix == ".ipynb":
        source[0] = "\n\n".join(_cells(json.loads(source[0])))
    if page == root_doc:
        for caption, pages in CONTENTS.items():
            source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", *pages, "```", ""])


def _cells(notebook: dict[str, Any]) -> Iterator[str]:
    """A notebook's cells and what they show, as Markdown."""
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        yield f"```python\n{text}\n```" if cell["cell_type"] == "code" else text
        for output in cell.get("outputs", ()):
            for kind, shown in output["data"].items():
                yield f"```{'{raw} html' if kind == 'text/html' else 'text'}\n{shown}\n```"


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Let the site begin with the README."""
    if error is None:
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def import_types(app: Sphinx) -> None:  # noqa: ARG001 - an event's
    """Give modules the names that they import for type checkers alone, or signatures would show them as they are spelt."""
    for name in (*augury.__all__, "testing.check_drafter"):
        operator.attrgetter(name)(augury)  # imports the modules of the reference
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "augury"]:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                exec(compile(ast.Module(node.body, []), name, "exec"), vars(module))  # noqa: S102


def add_fields(app: Sphinx, what: str, name: str, cls: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001 - an event's
    """Give a class's docstring a section of its fields, from the comments beside them."""
    is_ours = what in {"class", "exception"} and cls.__module__.startswith("augury")
    is_ours = is_ours and not is_typeddict(cls)  # the page of options has these
    if is_ours and "Attributes:" not in lines and (fields := list(_fields(cls))):
        lines += ["", "Attributes:", *fields]


def _fields(cls: type[Any]) -> Iterator[str]:
    source = textwrap.dedent(inspect.getsource(cls))
    in_signature = attrs.fields_dict(cls) if attrs.has(cls) else {}
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    for line in node.body:
        target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0] if isinstance(line, ast.Assign) else None
        if not isinstance(target, ast.Name) or target.id.startswith("_"):
            continue
        comment = source.splitlines()[line.end_lineno - 1][line.end_col_offset :].partition("# ")[2]
        if target.id in in_signature and not comment:
            comment = in_signature[target.id].metadata.get("augury_option", {}).get("help")
        if comment or target.id not in in_signature:
            kind = f" ({ast.unparse(line.annotation)})" if isinstance(line, ast.AnnAssign) else ""
            yield f"    {target.id}{kind}: {comment}"
