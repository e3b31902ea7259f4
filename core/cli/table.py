"""Tables as lines of text, folded where the terminal is too narrow."""

from __future__ import annotations

import io
import shutil
import textwrap
from collections.abc import Sequence
from typing import Literal

_UNBOUNDED = 1 << 16  # columns where there is no terminal: programs read a row as a line


def align_rows(rows: Sequence[Sequence[str]], is_right: Sequence[bool] = (), *, has_head: bool = True) -> list[str]:
    """Format rows as aligned columns, as lines of text; in a narrow terminal cells are folded.

    Args:
        rows: Cells, the head's first.
        is_right: Which columns are aligned to the right.
        has_head: Whether there is a head.
    """
    from rich.console import Console  # here: importing rich takes longer than most commands without a table
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=has_head, pad_edge=False, padding=(0, 2, 0, 0))
    for i, name in enumerate(rows[0]):
        justify: Literal["left", "right"] = "right" if any(is_right[i : i + 1]) else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", min_width=max(map(len, name.split()), default=0))
    for row in rows[int(has_head) :]:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    Console(file=text, width=_n_columns(), color_system=None).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def fold(begin: str, text: str, indent: str) -> str:
    """Fold `begin` and `text` to the width of the terminal; all lines but the first begin with `indent`."""
    lines = textwrap.wrap(text, _n_columns(), initial_indent=begin, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines) or begin.rstrip()


def _n_columns() -> int:
    return shutil.get_terminal_size((_UNBOUNDED, 0)).columns
