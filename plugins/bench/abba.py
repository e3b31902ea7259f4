"""Two programs in turns, ABBA: on passes, and on whole answers to prompts.

Ratios of single runs say little on a machine whose speed changes within seconds: here each ratio is that of two turns beside
each other, the programs swap places from pair to pair (A B, B A, ...), and the median of the pairs' ratios counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby, takewhile
from time import sleep
from typing import Any

from attrs import frozen

from augury.cli import Prompt
from augury.interfaces import Progress
from augury.plugins.bench.timing import Measurement, Runner, Timing

Side = Callable[[Prompt], "Answer"]  # answers a prompt, which it processes in full

MIN_PAIRS = 7  # with fewer than six, not even all of them hold the median in 95 of 100 cases
_TURN_S = 0.25  # short measurements are repeated within a turn
_MAX_REPEATS = 10
_REST_S = 0.03  # until the threads of the other program sleep


@frozen
class PairedTiming:
    """A measurement of both programs, pair by pair."""

    ours: Timing
    theirs: Timing
    round_trips_ns: tuple[float, ...] = ()  # between two cores, before each pair, where that can be measured

    @property
    def ratios(self) -> tuple[float, ...]:
        """Their time over ours, in each pair: above 1 we are faster."""
        return tuple(b / a for a, b in zip(self.ours.seconds, self.theirs.seconds, strict=True))

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """Holds the median in at least 95 of 100 cases."""
        return median_interval(self.ratios)


@frozen
class Answer:
    """A program's answer to a prompt, and its speed."""

    tokens: tuple[int, ...]
    prompt_per_second: float
    per_second: float  # after the first token
    n_drafted: int = 0
    n_accepted: int = 0


@frozen
class AnswerPair:
    """Both answers to a prompt."""

    prompt: Prompt
    ours: Answer
    theirs: Answer
    round_trip_ns: float | None = None  # between two cores, just before

    @property
    def n_same(self) -> int:
        """Tokens up to the first that differs."""
        both = zip(self.ours.tokens, self.theirs.tokens, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


@frozen
class AnswerPairs:
    """Pairs of one category."""

    category: str
    pairs: tuple[AnswerPair, ...]

    def as_json(self) -> dict[str, Any]:
        """As `augury bench prompts --json` prints it; `prompt` and `generation` are ours over theirs."""
        found: dict[str, Any] = {"category": self.category, "pairs": len(self.pairs)}
        sides = [pair.ours for pair in self.pairs], [pair.theirs for pair in self.pairs]
        for what, name in (("prompt", "prompt_per_second"), ("generation", "per_second")):
            ours, theirs = ([getattr(each, name) for each in side] for side in sides)
            ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b > 0]
            found[what] = {
                "tok_s": statistics.median(ours),
                "peer_tok_s": statistics.median(theirs),
                "ratio": statistics.median(ratios) if ratios else 0.0,
                "interval": list(median_interval(ratios)) if ratios else [0.0, 0.0],
            }
        found["same"] = sum(pair.n_same for pair in self.pairs) / max(sum(len(each.tokens) for each in sides[0]), 1)
        for name in ("n_drafted", "n_accepted"):
            found[name.removeprefix("n_")] = [sum(getattr(each, name) for each in side) for side in sides]
        found["round_trip_ns"] = [pair.round_trip_ns for pair in self.pairs if pair.round_trip_ns is not None]
        return found


def compare_passes(
    ours: Runner,
    theirs: Runner,
    measurements: Iterable[Measurement],
    n_pairs: int = MIN_PAIRS,
    probe: Callable[[], float | None] = lambda: None,
    progress: Progress | None = None,
) -> list[PairedTiming]:
    """Run every measurement with both, `n_pairs` times; `probe` gives nanoseconds of a round trip between cores before each.

    Returns:
        In the order of `measurements`, without repetitions where one was asked for twice.
    """
    order = list(dict.fromkeys(measurements))
    seconds: dict[Measurement, tuple[list[float], list[float]]] = {each: ([], []) for each in order}  # ours, theirs
    trips: dict[Measurement, list[float]] = {each: [] for each in order}
    tell, n_done, n_turns = progress or Progress(), 0, len(order) * (1 + n_pairs)
    for depth, group in groupby(sorted(order, key=lambda each: each.depth), key=lambda each: each.depth):
        together = list(group)
        for runner in (ours, theirs):
            runner.prepare(depth)
            tell("take turns", n_done, n_turns)
            for each in together:
                runner.seconds(each)
        n_done += len(together)
        for pair in range(n_pairs):
            for each in together:
                tell("take turns", n_done, n_turns)
                n_done += 1
                sleep(_REST_S)
                if (trip := probe()) is not None:
                    trips[each].append(trip)
                sides = list(zip((ours, theirs), seconds[each], strict=True))
                for runner, found in sides if pair % 2 == 0 else reversed(sides):
                    found.append(_turn(runner, each))
    return [
        PairedTiming(Timing(each, tuple(seconds[each][0])), Timing(each, tuple(seconds[each][1])), tuple(trips[each]))
        for each in order
    ]


def compare_answers(
    prompts: Iterable[Prompt],
    sides: Callable[[], AbstractContextManager[tuple[Side, Side]]],
    n_pairs: int,
    *,
    is_fresh: bool,
    probe: Callable[[], float | None] = lambda: None,
) -> list[AnswerPairs]:
    """Let both answer every prompt, so often that each category has at least `n_pairs` pairs; by category, in their order.

    `sides` starts both programs, ours and theirs; if `is_fresh` anew for every pair, so that drafters forget a prompt before
    the next. `probe` is as above.
    """
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    order = [prompt for group in groups.values() for prompt in group * -(-n_pairs // len(group))]
    found: dict[str, list[AnswerPair]] = {category: [] for category in groups}
    number = 0
    for batch in [[prompt] for prompt in order] if is_fresh else [order]:
        with sides() as (ours, theirs):
            for prompt in batch:
                found[prompt.category].append(_pair(prompt, ours, theirs, number, probe))
                number += 1
    return [AnswerPairs(category, tuple(pairs)) for category, pairs in found.items()]


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The narrowest pair of order statistics that holds the median with `confidence`, for any distribution.

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


def _turn(runner: Runner, measurement: Measurement) -> float:
    """The median of a turn's repetitions; the first run of a short one wakes the threads and is not counted."""
    sleep(_REST_S)
    first = runner.seconds(measurement)
    n_repeats = min(int(_TURN_S / first), _MAX_REPEATS) if first > 0 else _MAX_REPEATS
    return statistics.median(runner.seconds(measurement) for _ in range(n_repeats)) if n_repeats else first


def _pair(prompt: Prompt, ours: Side, theirs: Side, number: int, probe: Callable[[], float | None]) -> AnswerPair:
    sleep(_REST_S)
    trip = probe()
    answers = []
    for side in (ours, theirs) if number % 2 == 0 else (theirs, ours):
        sleep(_REST_S)
        answers.append(side(prompt))
    first, second = answers if number % 2 == 0 else reversed(answers)
    return AnswerPair(prompt, first, second, trip)
