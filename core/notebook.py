"""What notebooks show: results and engines as HTML, and long tasks as bars."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from time import monotonic
from typing import Any

from augury.interfaces.source import Progress

_COLOURS = ("#2e7d32", "#00838f", "#8e24aa", "#ef6c00", "#1565c0")  # readable on light and on dark
_SHOWN_AFTER_S = 0.5
_DRAW_EVERY_S = 0.1


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


def shown_progress() -> Progress:
    """What shows tasks in the cell that runs them; in a program, which has no cells, nothing is shown."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return NotebookProgress() if hasattr(shell, "kernel") else Progress()


class NotebookProgress(Progress):
    """Draws a bar for each task that takes longer than half a second, and removes it at its end."""

    def __init__(self) -> None:
        self._begun_at: dict[str, float] = {}
        self._bars: dict[str, Any] = {}  # IPython's handles of what is displayed
        self._drawn_at = 0.0

    def __call__(self, task: str, done: int, total: int) -> None:
        now, is_over = monotonic(), 0 < total <= done
        begun_at = self._begun_at.setdefault(task, now)
        if is_over:
            del self._begun_at[task]
            if (bar := self._bars.pop(task, None)) is not None:
                bar.update(_html(""))
        elif (bar := self._bars.get(task)) is None:
            if now - begun_at >= _SHOWN_AFTER_S:
                self._bars[task] = import_module("IPython.display").display(_bar(task, done, total), display_id=True)
        elif now - self._drawn_at >= _DRAW_EVERY_S:
            self._drawn_at = now
            bar.update(_bar(task, done, total))


def _bar(task: str, done: int, total: int) -> Any:
    value = f' value="{done}" max="{total}"' if total else ""
    return _html(f"{escape(task)} <progress{value}></progress> {f'{done / total:.0%}' if total else done}")


def _html(text: str) -> Any:
    return import_module("IPython.display").HTML(text)
