"""Shows the progress of long tasks: bars on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Any, Self

from augury.interfaces import Progress

_LINE_EVERY_S = 3.0
_DRAW_EVERY_S = 0.1
_MANY = 1_000_000  # totals from here on are bytes


class ProgressDisplay(Progress):
    """Draws on standard error, and removes its bars when it is closed. Outside a terminal short tasks print nothing.

    It draws only when it is called, never from a thread of its own, which would disturb timings.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._bars: Any = None  # rich is imported when something takes long enough to be shown
        self._tasks: dict[str, Any] = {}
        self._said_at: dict[str, float] = {}
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, task: str, done: int, total: int) -> None:
        if self._is_terminal:
            self._draw(task, done, total)
        else:
            self._write(task, done, total)

    def close(self) -> None:
        """Remove the bars."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
            self._tasks.clear()

    def _draw(self, task: str, done: int, total: int) -> None:
        if self._bars is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress as Bars, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[amount]}"),
                TimeRemainingColumn(),
            )
            self._bars = Bars(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
            self._bars.start()
        if task not in self._tasks:
            self._tasks[task] = self._bars.add_task(task, total=total or None, amount="")
        self._bars.update(self._tasks[task], completed=done, total=total or None, amount=_amount(done, total))
        if monotonic() - self._drawn_at >= _DRAW_EVERY_S or done == total:
            self._drawn_at = monotonic()
            self._bars.refresh()

    def _write(self, task: str, done: int, total: int) -> None:
        said_at = self._said_at.setdefault(task, monotonic())
        if monotonic() - said_at >= _LINE_EVERY_S:
            self._said_at[task] = monotonic()
            sys.stderr.write(f"{task}: {_amount(done, total)}\n")
            sys.stderr.flush()


def _amount(done: int, total: int) -> str:
    if max(done, total) >= _MANY:
        return f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else f"{done / 1e6:.0f} MB"
    return f"{done} of {total}" if total else f"{done}"
