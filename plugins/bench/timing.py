"""Measurements of passes, the runners that take them, and a sweep that is fair to all of them."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import groupby
from time import perf_counter
from typing import Literal

from attrs import frozen

from augury.interfaces import Progress

_MIN_ROUNDS = 5
_MAX_ROUNDS = 100
_SECONDS = 1.5  # per measurement, unless the fewest rounds take longer

MeasurementKind = Literal["curve", "prefill", "decode"]


@frozen
class Measurement:
    """A measurement of `n` tokens after `depth` tokens that the slot holds already.

    curve: one pass over n tokens with the logits of all n, and the best token of each, as verifying a draft takes.
    prefill: n tokens of a prompt, with the logits of the last.
    decode: n tokens one by one, each the best after the one before.
    """

    kind: MeasurementKind
    n: int
    depth: int


@frozen
class Timing:
    """Seconds of repetitions of a measurement, in the order in which they were taken."""

    measurement: Measurement
    seconds: tuple[float, ...]

    @property
    def ms(self) -> float:
        """Milliseconds of the median repetition."""
        return statistics.median(self.seconds) * 1e3

    @property
    def tok_s(self) -> float:
        """Tokens per second of the median repetition."""
        return self.measurement.n * 1e3 / self.ms

    @property
    def spread_ms(self) -> tuple[float, float]:
        """The quartiles: half of the repetitions lie between them."""
        if len(self.seconds) == 1:
            return self.ms, self.ms
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low * 1e3, high * 1e3


class Runner(ABC):
    """A program that can be timed."""

    @abstractmethod
    def prepare(self, depth: int) -> None:
        """Fill the slot with `depth` tokens, untimed; measurements at this depth follow."""

    @abstractmethod
    def seconds(self, measurement: Measurement) -> float:
        """Run a measurement once, at the depth that was prepared last."""


def sweep(
    runner: Runner,
    measurements: Iterable[Measurement],
    seconds: float = _SECONDS,
    progress: Progress | None = None,
    *,
    n_repetitions: int | None = None,
) -> list[Timing]:
    """Time every measurement several times.

    Measurements of one kind and depth take turns, so that a machine that grows slower or faster meanwhile changes all of them
    alike: their ratios hold.

    Args:
        runner: It runs them.
        measurements: In any order.
        seconds: Time for the repetitions of one measurement; at least five are made, however long they take.
        progress: Called with how many of those are done.
        n_repetitions: Make so many instead.

    Returns:
        Timings in the order of `measurements`, without repetitions where one was asked for twice.
    """
    order = list(dict.fromkeys(measurements))
    found: dict[Measurement, list[float]] = {each: [] for each in order}
    n_least, n_most = (_MIN_ROUNDS, _MAX_ROUNDS) if n_repetitions is None else (n_repetitions, n_repetitions)
    tell, n_done, n_all = progress or Progress(), 0, len(order) * (1 + n_least)
    for (depth, _), group in groupby(sorted(order, key=_by_depth), key=_by_depth):
        together = list(group)
        runner.prepare(depth)
        tell("time passes", n_done, n_all)
        for each in together:
            runner.seconds(each)
        start = perf_counter()
        for n_rounds in range(1, n_most + 1):
            if n_rounds <= n_least:  # only short measurements have more
                tell("time passes", n_done + n_rounds * len(together), n_all)
            for each in together:
                found[each].append(runner.seconds(each))
            if n_rounds >= n_least and perf_counter() - start >= seconds * len(together):
                break
        n_done += (1 + n_least) * len(together)
    return [Timing(each, tuple(found[each])) for each in order]


def _by_depth(measurement: Measurement) -> tuple[int, str]:
    return measurement.depth, measurement.kind
