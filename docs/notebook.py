# ruff: noqa: INP001 - run by `make docs` and by a test, not imported
"""Runs the cells of `docs/notebook.ipynb` in order, as Jupyter does, and keeps what they show."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("notebook.ipynb")


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook with the outputs of its cells: of each the value of its last line, if that is an expression."""
    names: dict[str, Any] = {}
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            data = _shown("".join(cell["source"]), names)
            result = {"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data}
            cell = {**cell, "outputs": [result] if data else []}  # noqa: PLW2901 - the same cell
        cells.append(cell)
    return {**notebook, "cells": cells}


def _shown(source: str, names: dict[str, Any]) -> dict[str, str]:
    """What a cell shows, by media type."""
    *body, last = ast.parse(source).body
    is_value = isinstance(last, ast.Expr)
    exec(compile(ast.Module(body if is_value else [*body, last], []), PAGE.name, "exec"), names)  # noqa: S102
    value = eval(compile(ast.Expression(last.value), PAGE.name, "eval"), names) if is_value else None  # noqa: S307
    if value is None:
        return {}
    bundle = value._repr_mimebundle_() if hasattr(value, "_repr_mimebundle_") else {"text/plain": repr(value)}
    return {kind: text for kind, text in bundle.items() if kind == "text/html" or "text/html" not in bundle}


if __name__ == "__main__":
    PAGE.write_text(json.dumps(executed(json.loads(PAGE.read_text())), indent=1, ensure_ascii=False) + "\n")
