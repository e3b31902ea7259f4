"""Shows long tasks as bars in a notebook."""

from __future__ import annotations

import sys
from html import escape
from importlib import import_module
from time import monotonic
from typing import Any

from augury.interfaces import Progress

_SHOWN_AFTER_S = 0.5
_DRAW_EVERY_S = 0.1


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
