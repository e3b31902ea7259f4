"""Pages of figures, each one file without scripts: `--html` of commands that measure."""

from __future__ import annotations

from html import escape
from pathlib import Path

from augury.cli.text_file import check_writable
from augury.errors import OptionError
from augury.files.atomic_file import write_atomically

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 58rem; padding: 1.5rem 1rem; }
table { border-collapse: collapse; margin: .3rem 0 1.5rem; width: 100%; } th { text-align: left; }
td, th { border-top: 1px solid #8884; padding: .2rem .8rem .2rem 0; vertical-align: top; }
td { overflow-wrap: anywhere; white-space: pre-wrap; }
"""


def check_page(path: Path) -> None:
    """See that a page can be written, and takes the place of no other file, but perhaps of an earlier page.

    Raises:
        AuguryError: It cannot, or would.
    """
    check_writable(path, "--html")
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            if b"<title>augury " not in file.read(1024):
                message = "exists and is no page of augury; it is left as it is, name another file"
                raise OptionError(f"--html: {path} {message}")


def write_page(path: Path, title: str, *tables: str) -> None:
    """Write a page of tables, which are HTML, as `notebook.table` writes them."""
    head = f'<!doctype html><meta charset="utf-8"><title>augury {escape(title)}</title><style>{_STYLE}</style>'
    write_atomically(path, f"{head}<h1>{escape(title)}</h1>{''.join(tables)}\n")
