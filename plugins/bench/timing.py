"""Measurements of passes, the runners that take them, a model's without the engine, and fair orders: a sweep, and turns.

Ratios of single runs say little on a machine whose speed changes within seconds: two programs take turns beside each other and
swap places from pair to pair (A B, B A, ...), and the median of the pairs' ratios counts.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from time import perf_counter, sleep
from typing import Literal

import numpy as np
from attrs import frozen

from augury.batch import Batch
from augury.errors import CapacityError
from augury.interfaces import Model, Progress

_MIN_ROUNDS = 5
_MAX_ROUNDS = 100
_SECONDS = 1.5  # per measurement, unless the fewest rounds take longer

MIN_PAIRS = 7  # with fewer than six, not even all of them hold the median in 95 of 100 cases
_TURN_S = 0.25  # short measurements are repeated within a turn
_MAX_REPEATS = 10
_REST_S = 0.03  # until the threads of the other program sleep

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

    @property
    def cells(self) -> list[str]:
        """In a table."""
        return ["pass" if self.kind == "curve" else self.kind, str(self.n), str(self.depth)]


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
    alike: their ratios hold. Repetitions of one take so many `seconds`, but five at least are made, or `n_repetitions` instead.

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


def _turn(runner: Runner, measurement: Measurement) -> float:
    """The median of a turn's repetitions; the first run of a short one wakes the threads and is not counted."""
    sleep(_REST_S)
    first = runner.seconds(measurement)
    n_repeats = min(int(_TURN_S / first), _MAX_REPEATS) if first > 0 else _MAX_REPEATS
    return statistics.median(runner.seconds(measurement) for _ in range(n_repeats)) if n_repeats else first


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


_CHUNK = 512  # tokens per pass while a slot is filled
_SEED = 1


class ModelRunner(Runner):
    """Passes of a model over random tokens, in its first slot: `tokens` (n_ctx,) int32, from which generated ones differ."""

    def __init__(self, model: Model, progress: Progress | None = None) -> None:
        """Take over a loaded model; `progress` is called with how far its slot is filled."""
        self._model = model
        self._progress = progress or Progress()
        n_ctx = model.state_spec.n_ctx
        self.tokens = np.random.default_rng(_SEED).integers(0, model.info.n_vocab, n_ctx, dtype=np.int32)
        self._n_filled = 0

    def prepare(self, depth: int) -> None:
        """Fill the slot; the contents of earlier measurements are as good as any."""
        for start in range(self._n_filled, depth, _CHUNK):
            self._progress("fill the slot", start, depth)
            self._model.forward(self.batch(start, min(_CHUNK, depth - start), n_rows=0))
        if depth > self._n_filled:
            self._progress("fill the slot", depth, depth)
            self._n_filled = depth

    def seconds(self, measurement: Measurement) -> float:
        """Run a measurement once. Batches are made before the clock starts.

        Raises:
            CapacityError: It does not fit into a slot.
        """
        end, n_ctx = measurement.depth + measurement.n, self._model.state_spec.n_ctx
        if end > n_ctx:
            raise CapacityError(
                f"{measurement.n} tokens at depth {measurement.depth} do not fit into a slot of {n_ctx} positions"
            )
        if measurement.kind == "decode":
            return self._decode([self.batch(position, 1, n_rows=1) for position in range(measurement.depth, end)])
        batch = self.batch(measurement.depth, measurement.n, n_rows=measurement.n if measurement.kind == "curve" else 1)
        start = perf_counter()
        self._model.forward(batch).argmax()
        return perf_counter() - start

    def _decode(self, batches: list[Batch]) -> float:
        start = perf_counter()
        token = batches[0].tokens[0]
        for batch in batches:
            batch.tokens[0] = token
            token = max(self._model.forward(batch).argmax()[0], 0)
        return perf_counter() - start

    def batch(self, start: int, n: int, *, n_rows: int) -> Batch:
        """Tokens `start` to `start + n`, of which the last `n_rows` have logits."""
        return Batch.chain(self.tokens[start : start + n], start=start, rows=np.arange(n - n_rows, n, dtype=np.int32))
