"""Tables as lines of text, folded where the terminal is too narrow."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence

_LEAST = 20  # columns that a last column of text needs, or else each row is set by itself
_BLANK = "\N{NO-BREAK SPACE}"  # which `textwrap` leaves alone


def align_rows(rows: Sequence[Sequence[str]], is_right: Sequence[bool] = (), *, has_head: bool = True) -> list[str]:
    """Format rows as aligned columns, one text per row; in a narrow terminal a row has several lines.

    There the last column is folded. Where that is not enough, a row is its first cell and, below it, each other cell with the
    name of its column; the head is left out.

    Args:
        rows: Cells, the head's first.
        is_right: Which columns are aligned to the right.
        has_head: Whether there is a head.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    flush = [*is_right, *[False] * (len(widths) - len(is_right))]
    aligned = [
        [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, flush, strict=True)]
        for row in rows
    ]
    n_columns = _terminal_width()
    indent = sum(widths[:-1]) + 2 * (len(widths) - 1)
    if n_columns is None or indent + widths[-1] <= n_columns:
        return ["  ".join(cells).rstrip() for cells in aligned]
    if not flush[-1] and n_columns - indent >= _LEAST:
        return [fold("  ".join([*cells[:-1], ""]), row[-1], " " * indent) for cells, row in zip(aligned, rows, strict=True)]
    head = rows[0] if has_head and len(widths) > 2 else [""] * len(widths)
    return [
        f"{row[0]}\n"
        + fold("  ", ", ".join(_item(*pair, n_columns) for pair in zip(head[1:], row[1:], strict=True) if pair[1]), "  ")
        for row in rows[int(has_head) :]
    ]


def fold(begin: str, text: str, indent: str) -> str:
    """Fold `begin` and `text` to the width of the terminal; all lines but the first begin with `indent`."""
    n_columns = _terminal_width()
    if n_columns is None:
        return begin + text
    lines = textwrap.wrap(text, n_columns, initial_indent=begin, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines or [begin]).replace(_BLANK, " ").rstrip()


def _item(name: str, cell: str, n_columns: int) -> str:
    item = f"{name} {cell}".strip()
    return item if len(item) + 3 > n_columns else item.replace(" ", _BLANK)


def _terminal_width() -> int | None:
    """The width of the terminal that standard output is, or that COLUMNS says; None where there is neither."""
    if (said := os.environ.get("COLUMNS", "")).isdigit() and int(said) > 0:
        return int(said)
    try:
        return (os.get_terminal_size(sys.stdout.fileno()).columns or None) if sys.stdout.isatty() else None
    except OSError:
        return None
