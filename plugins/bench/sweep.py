"""Runs measures in an order that is fair to all of them."""

from __future__ import annotations

from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING

from augury.interfaces import Progress
from augury.plugins.bench.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from augury.plugins.bench.measure import Measure, Runner

__all__ = ["sweep"]

_MIN_ROUNDS = 5
_MAX_ROUNDS = 100
_SECONDS = 1.5  # per measure, unless the fewest rounds take longer


def sweep(
    runner: Runner,
    measures: Iterable[Measure],
    seconds: float = _SECONDS,
    progress: Progress | None = None,
    *,
    n_repetitions: int | None = None,
) -> list[Timing]:
    """Time every measure several times.

    Measures of one kind and depth take turns, so that a machine that grows slower or faster meanwhile changes all of them
    alike: their ratios hold.

    Args:
        runner: Who runs them.
        measures: In any order.
        seconds: Time for the repetitions of one measure; at least five are made, however long they take.
        progress: Told how many of those are through.
        n_repetitions: Make so many instead.

    Returns:
        Timings in the order of `measures`, without repetitions where one was asked for twice.
    """
    order = list(dict.fromkeys(measures))
    found: dict[Measure, list[float]] = {measure: [] for measure in order}
    n_least, n_most = (_MIN_ROUNDS, _MAX_ROUNDS) if n_repetitions is None else (n_repetitions, n_repetitions)
    tell, n_done, n_all = progress or Progress(), 0, len(order) * (1 + n_least)
    for (depth, _), group in groupby(sorted(order, key=_by_depth), key=_by_depth):
        together = list(group)
        runner.prepare(depth)
        tell("time passes", n_done, n_all)
        for measure in together:
            runner.seconds(measure)
        start = perf_counter()
        for n_rounds in range(1, n_most + 1):
            if n_rounds <= n_least:  # more are made of short measures alone
                tell("time passes", n_done + n_rounds * len(together), n_all)
            for measure in together:
                found[measure].append(runner.seconds(measure))
            if n_rounds >= n_least and perf_counter() - start >= seconds * len(together):
                break
        n_done += (1 + n_least) * len(together)
    return [Timing(measure, tuple(found[measure])) for measure in order]


def _by_depth(measure: Measure) -> tuple[int, str]:
    return measure.depth, measure.kind
