"""Parts of HTML, for what notebooks show of results and engines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_COLOURS = ("#2e7d32", "#00838f", "#8e24aa", "#ef6c00", "#1565c0")  # readable on light and on dark


def coloured_text(pieces: Sequence[tuple[str, str | None]], below: str) -> str:
    """Pieces of text, each in the colour of whoever is named beside it, over a line that `below` begins and a legend ends."""
    names = dict.fromkeys(name for _, name in pieces if name is not None)
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    text = "".join(_coloured(text, colours.get(name or "")) for text, name in pieces)
    legend = ", ".join(_coloured(name, colour) for name, colour in colours.items())
    return f'<pre style="white-space: pre-wrap">{text}</pre><small>{escape(below)}{legend and ": "}{legend}</small>'


def table(title: str, head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table under a title."""
    return f"<code>{escape(title)}</code><table>{_row('th', head)}{''.join(_row('td', row) for row in rows)}</table>"


def _coloured(text: str, colour: str | None) -> str:
    return escape(text) if colour is None else f'<span style="color: {colour}">{escape(text)}</span>'


def _row(tag: str, cells: Iterable[object]) -> str:
    told = ("" if cell is None else escape(str(cell)) for cell in cells)
    return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in told)}</tr>"
