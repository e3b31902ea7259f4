"""Two programs in turns on the same measures.

Ratios of single runs say little on a machine whose speed changes within seconds: here each ratio is that of two turns beside
each other, the programs swap places from pair to pair (ABBA), and the median of the pairs' ratios counts.
"""

from __future__ import annotations

import math
import statistics
from itertools import groupby
from time import sleep
from typing import TYPE_CHECKING

from attrs import frozen

from augury.interfaces import Progress
from augury.plugins.bench.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from augury.plugins.bench.measure import Measure, Runner

__all__ = ["MIN_PAIRS", "REST_S", "Ratio", "compare", "median_interval"]

MIN_PAIRS = 7  # with fewer than six, not even all of them hold the median in 95 of 100 cases
_TURN_S = 0.25  # short measures are repeated within a turn
_MAX_REPEATS = 10
REST_S = 0.03  # until the threads of the other program sleep


@frozen
class Ratio:
    """A measure of both, pair by pair."""

    ours: Timing
    theirs: Timing
    round_trips_ns: tuple[float, ...] = ()  # between two cores, before each pair, where that can be measured

    @property
    def pairs(self) -> tuple[float, ...]:
        """Their time over ours, in each pair: above 1 we are faster."""
        return tuple(b / a for a, b in zip(self.ours.seconds, self.theirs.seconds, strict=True))

    @property
    def median(self) -> float:
        """Of the pairs."""
        return statistics.median(self.pairs)

    @property
    def interval(self) -> tuple[float, float]:
        """Holds the median in at least 95 of 100 cases."""
        return median_interval(self.pairs)


def compare(
    ours: Runner,
    theirs: Runner,
    measures: Iterable[Measure],
    n_pairs: int = MIN_PAIRS,
    probe: Callable[[], float | None] = lambda: None,
    progress: Progress | None = None,
) -> list[Ratio]:
    """Run every measure with both, `n_pairs` times.

    Args:
        ours: The runner whose speed is over the fraction bar.
        theirs: The other one.
        measures: In any order.
        n_pairs: Of turns, for each measure.
        probe: Called before each pair, for the nanoseconds of a round trip between cores.
        progress: Told how many turns of both are through.

    Returns:
        Ratios in the order of `measures`, without repetitions where one was asked for twice.
    """
    order = list(dict.fromkeys(measures))
    seconds: dict[Measure, tuple[list[float], list[float]]] = {measure: ([], []) for measure in order}  # ours, theirs
    trips: dict[Measure, list[float]] = {measure: [] for measure in order}
    tell, n_done, n_turns = progress or Progress(), 0, len(order) * (1 + n_pairs)
    for depth, group in groupby(sorted(order, key=lambda measure: measure.depth), key=lambda measure: measure.depth):
        together = list(group)
        for runner in (ours, theirs):
            runner.prepare(depth)
            tell("take turns", n_done, n_turns)
            for measure in together:
                runner.seconds(measure)
        n_done += len(together)
        for pair in range(n_pairs):
            for measure in together:
                tell("take turns", n_done, n_turns)
                n_done += 1
                sleep(REST_S)
                if (trip := probe()) is not None:
                    trips[measure].append(trip)
                sides = list(zip((ours, theirs), seconds[measure], strict=True))
                for runner, found in sides if pair % 2 == 0 else reversed(sides):
                    found.append(_turn(runner, measure))
    return [
        Ratio(Timing(each, tuple(seconds[each][0])), Timing(each, tuple(seconds[each][1])), tuple(trips[each]))
        for each in order
    ]


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The narrowest pair of order statistics that holds the median with `confidence`, whatever the distribution.

    >>> median_interval([1, 2, 3, 4, 5, 6, 7])
    (1, 7)
    >>> median_interval(range(11))
    (1, 9)

    Returns:
        Lowest and highest of the values, where there are too few for the confidence.
    """
    ordered = sorted(values)
    n, rank, tail = len(ordered), 0, 0.0
    # the median lies below the value of rank r (from 0) where at most r of n values do
    while 2 * (tail := tail + math.comb(n, rank) / 2**n) <= 1 - confidence and rank < n // 2:
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[n - 1 - rank]


def _turn(runner: Runner, measure: Measure) -> float:
    """The median of a turn's repetitions; the first run of a short measure wakes the threads and is not counted."""
    sleep(REST_S)
    first = runner.seconds(measure)
    n_repeats = min(int(_TURN_S / first), _MAX_REPEATS) if first > 0 else _MAX_REPEATS
    return statistics.median(runner.seconds(measure) for _ in range(n_repeats)) if n_repeats else first
