"""Lines of aligned columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["table"]


def table(rows: Sequence[Sequence[str]], is_right: Sequence[bool] = ()) -> list[str]:
    """Lines of aligned columns; `is_right` says which are set flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    flush = [*is_right, *[False] * (len(widths) - len(is_right))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, flush, strict=True)
        ).rstrip()
        for row in rows
    ]
