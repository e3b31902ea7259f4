"""Drafters against plain decoding, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from augury.cli import align_rows, fold
from augury.plugins.bench.pair_stats import PairStats

_HEAD = ["drafter", "category", "plain tok/s", "tok/s", "speed-up", "p10", "accepted", "tokens/round", "identical"]


def comparison_lines(found: Mapping[tuple[str, str], Sequence[PairStats]]) -> list[str]:
    """A table by drafter and category; the categories' column is left out where there is only one."""
    rows, notes = [], stall_lines(stats for parts in found.values() for stats in parts)
    for (drafter, category), parts in found.items():
        stats = PairStats.pool(parts)
        share = f"{stats.n_accepted} of {stats.n_drafted} ({stats.acceptance_rate:.0%})"
        speeds = [f"{stats.plain_per_second:.1f}", f"{stats.per_second:.1f}"]
        ratios = [f"{stats.speedup:.2f}x", f"{stats.p10:.2f}x"]
        identical = "yes" if stats.is_identical else "NO" if stats.is_changed else "no (rejection)"
        identical = "synthetic" if stats.synthetic else identical
        rows.append([drafter, category, *speeds, *ratios, share, f"{stats.tokens_per_round:.2f}", identical])
    is_right = [False, False, True, True, True, True, True, True, False]
    if len({category for _, category in found}) == 1:
        rows = [[row[0], *row[2:]] for row in rows]
        return align_rows([[_HEAD[0], *_HEAD[2:]], *rows], is_right=[False, *is_right[2:]]) + notes
    return align_rows([_HEAD, *rows], is_right=is_right) + notes


def stall_lines(found: Iterable[PairStats]) -> list[str]:
    """A line about plain runs that stalled, if any did."""
    stats = PairStats.pool(found)
    if not stats.n_repeated and not stats.n_stalled:
        return []
    line = f"stalled: {stats.n_repeated} plain runs, slower than rounds that draft and verify, were repeated"
    if stats.n_stalled:
        line += f"; {stats.n_stalled} pairs stalled each time and are left out of the speeds: try again on a quiet machine"
    return [fold("", line, "")]
