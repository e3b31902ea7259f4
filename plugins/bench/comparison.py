"""Comparisons as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.cli.table import fold, table
from augury.plugins.bench.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["comparison_lines", "stall_lines"]

_HEAD = ["drafter", "category", "plain tok/s", "tok/s", "speed-up", "p10", "accepted", "tokens/round", "identical"]


def comparison_lines(found: Mapping[tuple[str, str], Sequence[Figures]]) -> list[str]:
    """A table by drafter and category; the categories' column is left out where there is only one."""
    rows, notes = [], stall_lines(figures for parts in found.values() for figures in parts)
    for (drafter, category), parts in found.items():
        figures = Figures.pool(parts)
        share = f"{figures.n_accepted} of {figures.n_drafted} ({figures.acceptance_rate:.0%})"
        speeds = [f"{figures.plain_per_second:.1f}", f"{figures.per_second:.1f}"]
        ratios = [f"{figures.speedup:.2f}x", f"{figures.p10:.2f}x"]
        identical = "yes" if figures.is_identical else "NO" if figures.is_changed else "no (rejection)"
        identical = "synthetic" if figures.synthetic else identical
        rows.append([drafter, category, *speeds, *ratios, share, f"{figures.tokens_per_round:.2f}", identical])
    is_right = [False, False, True, True, True, True, True, True, False]
    if len({category for _, category in found}) == 1:
        rows = [[row[0], *row[2:]] for row in rows]
        return table([[_HEAD[0], *_HEAD[2:]], *rows], is_right=[False, *is_right[2:]]) + notes
    return table([_HEAD, *rows], is_right=is_right) + notes


def stall_lines(found: Iterable[Figures]) -> list[str]:
    """What to know where plain runs stalled: nothing, or a line."""
    figures = Figures.pool(found)
    if not figures.n_repeated and not figures.n_stalled:
        return []
    line = f"stalled: {figures.n_repeated} plain runs, slower than rounds that draft and verify, were repeated"
    if figures.n_stalled:
        line += f"; {figures.n_stalled} pairs stalled each time and are left out of the speeds: try again on a quiet machine"
    return [fold("", line, "")]
