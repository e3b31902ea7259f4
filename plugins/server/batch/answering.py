"""Answers lines, so many at a time, and adds the rows to a file."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from datetime import timedelta
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from attrs import Factory, define

from augury.cli import say
from augury.plugins.server.batch.answers import Row

if TYPE_CHECKING:
    from augury.plugins.server.batch.lines import Line
    from augury.plugins.server.batch.rows import RowFile

_SAY_EVERY_S = 10.0


@define
class Tally:
    """Counts what is done, and says so now and then."""

    n_before: int  # answers of earlier runs
    n_lines: int
    n_done: int = 0
    n_errors: int = 0
    n_tokens: int = 0
    n_by_worker: Counter[str] = Factory(Counter)
    started_at: float = Factory(monotonic)
    said_at: float = Factory(monotonic)

    def count(self, row: Row) -> None:
        """Take an answer in."""
        self.n_done += 1
        self.n_errors += row.is_error
        self.n_tokens += row.n_tokens
        self.n_by_worker[row.worker] += 1
        if monotonic() - self.said_at >= _SAY_EVERY_S:
            self.show()

    def show(self) -> None:
        """Say how far it is, how quick, and how long the rest will take."""
        self.said_at = monotonic()
        seconds = self.said_at - self.started_at
        n_left = self.n_lines - self.n_before - self.n_done
        parts = [f"{self.n_before + self.n_done} of {self.n_lines} lines", f"{self.n_tokens / seconds:.1f} tok/s"]
        parts += [f"{self.n_errors} error{'s' * (self.n_errors > 1)}"] if self.n_errors else []
        if n_left and self.n_done:
            parts.append(f"{timedelta(seconds=round(seconds / self.n_done * n_left))} left")
        if any(self.n_by_worker):
            shares = (f"{name} {n / self.n_done:.0%}" for name, n in sorted(self.n_by_worker.items()))
            parts.append(", ".join(shares))
        say(" | ".join(parts))


class Answering(Protocol):
    """What answers lines: an engine here, or workers elsewhere."""

    async def answer(self, line: Line) -> Row:
        """The row of a line."""


def answer_all(
    lines: Iterator[Line], answers: Answering, rows: RowFile, tally: Tally, *, n_ahead: int, is_ordered: bool
) -> None:
    """Add a row for each line, as it is ready or in the order of the lines.

    Args:
        lines: Read as they are needed.
        answers: See `Answers`, and `Workers` of `augury.plugins.ray`.
        rows: Where they are added.
        tally: Counts them.
        n_ahead: So many lines run, or wait in the engine.
        is_ordered: Whether rows have the order of the lines.

    Raises:
        AuguryError: The engine has ended, or a row could not be written; the rows before it are there.
    """
    asyncio.run(_add(_answered(lines, answers, n_ahead, is_ordered=is_ordered), rows, tally))


async def _add(answered: AsyncGenerator[Row], rows: RowFile, tally: Tally) -> None:
    async with aclosing(answered):
        async for row in answered:
            rows.add(row.id, row.fields)
            tally.count(row)


async def _answered(lines: Iterator[Line], answers: Answering, n_ahead: int, *, is_ordered: bool) -> AsyncGenerator[Row]:
    pending = list[asyncio.Task[Row]]()
    try:
        while True:
            pending += [asyncio.create_task(answers.answer(line)) for line in islice(lines, n_ahead - len(pending))]
            if not pending:
                return
            done, _ = await asyncio.wait(pending[: 1 if is_ordered else n_ahead], return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in pending if task in done]:
                pending.remove(task)
                yield task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
