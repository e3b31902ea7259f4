"""The formats of the templates in `tests/data/templates`, each learnt once."""

from functools import cache
from pathlib import Path

from augury.plugins.server.tools import ChatFormat
from augury.text.chat_template import ChatTemplate

FOLDER = Path(__file__).parents[1] / "data" / "templates"


@cache
def format_of(name):
    """How calls are written by a template of this name, and the marks around reasoning."""
    template = ChatTemplate((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
    found = ChatFormat(template, None)
    template.close()
    return found.tools, found.tags
