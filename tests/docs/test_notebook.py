"""The notebook of the docs runs from its first cell to its last, and shows what is stored in it."""

import json
import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def shown(notebook):
    """The texts that cells show: of answers without who drafted what, which depends on the machine's speed."""
    outputs = [output["data"] for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return [re.sub("<[^>]*>", "", text.partition("<small>")[0]) for each in outputs for text in each.values()]


def test_the_cells_show_what_is_stored():
    stored = json.loads((DOCS / "notebook.ipynb").read_text())
    found = runpy.run_path(str(DOCS / "notebook.py"))["executed"](stored)
    assert shown(found) == shown(stored)
    assert len(shown(stored)) == 5
    assert {key: each for key, each in stored.items() if key != "cells"} == {
        key: each for key, each in found.items() if key != "cells"
    }
