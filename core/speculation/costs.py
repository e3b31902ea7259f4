"""The costs of passes and drafters on this machine and model: measured at load, and corrected by all later ones."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
from attrs import define, field, frozen

from augury.batch import Batch
from augury.interfaces import Model
from augury.interruption import interrupted
from augury.speculation.constants import CONSTANTS, kernels


@frozen
class PassTime:
    """A measured pass: so many tokens of one slot after `depth` others, all with logits."""

    n: int
    depth: int
    seconds: float


class PassCosts:
    """Seconds of a pass, as a function of its tokens and of how deep in their contexts they stand.

    Between measured sizes it is interpolated, beyond them extended along the last slope. Costs have cliffs, where a kernel's
    tile is full: measure the sizes around them.

    A figure that rests on few passes learns fast. A larger pass never counts as cheaper than a smaller one.
    """

    def __init__(self, times: Sequence[PassTime], n_largest: int, pass_sizes: Sequence[int] = ()) -> None:
        """Start from measured times.

        Args:
            times: At least one at the smallest depth; those at a larger one give the cost of a context.
            n_largest: Passes of up to so many tokens have figures of their own.
            pass_sizes: See `Model.pass_sizes`; each is a step of the curve.
        """
        sizes = np.arange(n_largest + 1)
        if len(pass_sizes):
            steps = np.minimum(np.searchsorted(pass_sizes, sizes), len(pass_sizes) - 1)
            sizes = np.maximum(np.array(pass_sizes)[steps], sizes)
        shallow = min(time.depth for time in times)
        flat = _extended([(time.n, time.seconds) for time in times if time.depth == shallow], sizes)
        slopes = [
            (time.n, max(time.seconds - flat[time.n], 0.0) / (time.depth - shallow)) for time in times if time.depth > shallow
        ]
        ones, per_position = np.ones(len(sizes)), _extended(slopes, sizes) if slopes else np.zeros(len(sizes))
        hopes = np.where(np.arange(len(sizes)) <= 1, 1.0, 1 - CONSTANTS.doubt / 2)  # plain decoding is the unit of all
        logs = np.log2(np.maximum(np.arange(len(sizes)), 1))
        self._n = len(sizes)
        self._table = np.stack([flat, per_position, ones, ones, hopes, logs])  # see `kernels.find_curves`
        self._common = [1.0, 1.0]  # factors of all figures of passes without drafts, and with them
        self._n_unseen = [0, 0]  # passes since one without drafts was seen, and one with them
        self._depth: float | None = None  # that the curves were last asked for at
        self._curves = np.empty((2, len(sizes)))

    def seconds(self, n: int, depth: float) -> float:
        """The seconds of a pass of n tokens, each after `depth` others on average."""
        return float(self.curves(n, depth)[0, n])

    def curves(self, n: int, depth: float) -> np.ndarray:
        """`seconds` of passes of 0 to n tokens, or of more, and as far as they may turn out to be (2, >n); not to be changed.

        Sizes that were seen little are worth a try. Otherwise a figure that is too high would never be corrected, because such
        passes would not be made.
        """
        if self._depth != depth:  # asked several times in a round, at one depth
            self._depth = depth
            kernels.find_curves(self._table, *self._common, depth, self._curves)
        if n < self._n:
            return self._curves
        more = self._curves[0, -1] * np.arange(self._n, n + 1) / (self._n - 1)
        return np.concatenate([self._curves, [more, more]], axis=1)

    def observe(self, n: int, depth: float, seconds: float) -> None:
        """A pass of n tokens took so long."""
        if not 0 < n < self._n:
            return
        ratio = min(max(seconds / float(self.curves(n, depth)[0, n]), 1 / CONSTANTS.outlier), CONSTANTS.outlier)
        own, other = (0, 1) if n == 1 else (1, 0)  # drafting or not is the greatest difference
        self._n_unseen[own], self._n_unseen[other] = 0, self._n_unseen[other] + 1
        self._common[own] *= ratio**CONSTANTS.learn_all
        self._common[other] *= ratio ** (
            CONSTANTS.learn_all + CONSTANTS.learn_near * min(self._n_unseen[other] / CONSTANTS.stale, 1.0)
        )
        kernels.learn_pass(self._table, n, ratio)
        self._depth = None


class PassCurve(NamedTuple):
    """Passes of a round: with n tokens drafted they take `known[n]` seconds, or as little as `hoped[n]`."""

    known: Sequence[float] | np.ndarray
    hoped: Sequence[float] | np.ndarray

    def extra_s(self, n: int, before: int = 0) -> float:
        """Seconds that n drafted tokens add to a pass with so many before them."""
        return float(self.known[before + n] - self.known[before])


class OthersPass(NamedTuple):
    """A pass as one slot finds it: the tokens of the others."""

    curve: PassCurve
    n: int  # drafted tokens
    expected: float  # tokens
    draft_s: float

    def rate(self, expected: float, n: int, draft_s: float) -> float:
        """Tokens per second of all slots, where this one expects so many, brings n into the pass and drafts for `draft_s`."""
        return (self.expected + expected) / (self.curve.hoped[self.n + n] + self.draft_s + draft_s)


@define
class DraftCost:
    """Seconds that one drafter takes for a slot."""

    per_ask: float = 0.0  # on average
    per_token: float = 0.0  # that it drafts; of a whole draft where that `is_fixed`
    per_missed: float = 0.0  # that was emitted while it was not asked
    n_asks: int = 0
    is_fixed: bool = False  # whether a draft of any length takes the same time
    per_trip: float = 0.0  # of each draft, beside that of its tokens

    @property
    def is_known(self) -> bool:
        """Whether more than a first ask was measured, which also compiles, allocates and fills caches."""
        return self.n_asks > 1

    @property
    def is_warm(self) -> bool:
        """Whether all work that is done only once is over."""
        return self.n_asks > CONSTANTS.warm_up

    def seconds(self, k: int, n_missed: int) -> float:
        """The time of a draft of k tokens."""
        per_trip = self.per_trip if k else 0.0
        return per_trip + self.per_token * (min(k, 1) if self.is_fixed else k) + self.per_missed * n_missed

    def hopeful_seconds(self, k: int, n_missed: int) -> float:
        """The same as far as it may turn out to be; see `PassCosts.curves`."""
        return self.seconds(k if self.is_known else 0, n_missed)

    @property
    def per_further_token(self) -> float:
        """The time of one more token in a draft."""
        return 0.0 if self.is_fixed else self.per_token

    def observe(self, k: int, n_missed: int, seconds: float) -> None:
        """A draft of k tokens took so long. After many missed tokens, catching up took the time.

        One that took less than half of the known time shows that earlier ones were interrupted.
        """
        self.n_asks += 1
        most = CONSTANTS.outlier * self.per_ask
        counted = most if 0 < most < seconds and self.is_warm else seconds
        self.per_ask += (counted - self.per_ask) * max(CONSTANTS.learn_draft, 1 / self.n_asks)
        n = k or 1  # to decline takes as long as a token
        if n_missed > CONSTANTS.much_missed * n:
            self.per_missed += CONSTANTS.learn_draft * (max(seconds - self.seconds(k, 0), 0.0) / n_missed - self.per_missed)
            return
        measured = max(seconds - self.per_trip - self.per_missed * n_missed, 0.0) / (1 if self.is_fixed else n)
        if self.per_token and not 0 < CONSTANTS.outlier * measured < self.per_token:
            measured = self.per_token + CONSTANTS.learn_draft * (
                min(measured, CONSTANTS.outlier * self.per_token) - self.per_token
            )
        self.per_token = measured

    def observe_prompt(self, n_tokens: int, seconds: float) -> None:
        """A prompt took so long: this measures catching up.

        It says little where the drafter held the prompt from before, in which case it is far quicker than it was.
        """
        per_token = seconds / n_tokens
        if self.per_missed == 0.0:
            self.per_missed = per_token
        elif per_token > self.per_missed / 2:
            self.per_missed += CONSTANTS.learn_draft * (per_token - self.per_missed)


@define
class LossBudget:
    """Seconds that drafting may lose. It grows with the gains of drafting and, by a small share, with time."""

    seconds: float
    share: float
    most: float
    first: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.first = self.seconds

    def covers(self, seconds: float, *, is_least: bool = False) -> bool:
        """Whether a draft may be made that loses so much at worst. The shortest one may always be tried once."""
        return seconds <= self.seconds or (is_least and self.seconds >= self.first)

    def book(self, seconds: float) -> None:
        """Drafting gained or, below 0, lost so much."""
        self.seconds = min(self.seconds + seconds, self.most)

    def credit(self, seconds: float) -> None:
        """Drafting would have gained so much: that makes up for losses, up to the initial budget."""
        self.seconds = max(self.seconds, min(self.seconds + seconds, self.first))

    def pass_time(self, seconds: float, gained_s: float = 0.0) -> None:
        """So much time went by, in which drafting gained or, below 0, lost so much."""
        self.seconds = min(min(self.seconds + self.share * seconds, self.most) + gained_s, self.most)


def _extended(points: Sequence[tuple[int, float]], sizes: np.ndarray) -> np.ndarray:
    """A curve through `points` at `sizes`, straight after the last.

    It never falls: a size that took longer than a larger one was disturbed when it was measured.
    """
    xs, ys = (np.array(column, float) for column in zip(*sorted(points), strict=True))
    ys = np.minimum.accumulate(ys[::-1])[::-1]
    curve = np.interp(sizes, xs, ys)
    slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]) if len(xs) > 1 else ys[-1] / xs[-1]
    return curve + slope * np.maximum(sizes - xs[-1], 0)


_SIZES = (1, 2, 4, 8, 16)  # timed several times over, before anything else
# once, in the order of their worth: a slow machine's time is up before the last
_FINE_SIZES = (32, 64, 3, 6, 12, 24, 5, 9, 17, 48)
_DEEP_SIZES = (1, 4, 16)
_DEPTH = 1024  # where the cost of a context is measured
_SHALLOWEST = 256  # the least depth that says something about it
_CHUNK = 64  # tokens of a text that is processed to get there
_NO_ROWS = np.empty(0, np.int32)
_LARGEST = 128  # tokens of a pass that has a figure of its own: every round goes through all figures
_BUDGET_S = 0.5  # felt at a start, but not much
_TURNS = 2


def measure_passes(model: Model, n_largest: int) -> PassCosts:
    """Time passes of 1 to `n_largest` tokens, all with logits, on slot 0, whose states are overwritten.

    The least of several times is taken: other programs only ever add.
    """
    spec = model.state_spec
    steps = [n for n in model.pass_sizes if n not in _SIZES] or _FINE_SIZES
    sizes, fine = ([n for n in each if n <= min(n_largest, spec.n_ctx)] for each in (_SIZES, steps))
    best: dict[tuple[int, int], float] = {}
    _seconds(model, sizes[-1], 0)  # memory is touched for the first time
    start = perf_counter()
    for turn in range(_TURNS):
        rest: list[tuple[int, int]] = []
        if turn == _TURNS - 1:
            depth = 0
            if spec.n_ctx >= _DEPTH // 2 and spec.n_bytes_per_position:
                depth = _fill(model, min(_DEPTH, spec.n_ctx - 1), start + _BUDGET_S)
            deep = [(n, min(depth, spec.n_ctx - n)) for n in _DEEP_SIZES if n in sizes and depth]
            rest = [*deep, *((n, 0) for n in fine)]
        for n, depth in [*((n, 0) for n in sizes), *rest]:
            is_needed = turn == 0 and n <= 2 and depth == 0  # the least that measures the cost of drafting
            if is_needed or perf_counter() - start < _BUDGET_S:
                best[n, depth] = min(_seconds(model, n, depth), best.get((n, depth), np.inf))
    times = [PassTime(n, depth, seconds) for (n, depth), seconds in best.items()]
    return PassCosts(times, min(n_largest, _LARGEST), model.pass_sizes)


def _fill(model: Model, depth: int, end: float) -> int:
    """Fill the positions before `depth`: a pass must not attend to positions that were never stored.

    It would also read memory that the system has not given yet, and be faster than one after a text. Keys and values of the
    first position are moved to all others. A recurrent state follows a text alone, which is processed for half of the time
    that is left until `end`, by the clock.

    Returns:
        Up to which position; 0: not far enough to measure the cost of a context.
    """
    if not model.state_spec.n_bytes_per_sequence:
        if perf_counter() >= end:
            return 0
        targets = np.arange(1, depth, dtype=np.int32)
        moves = np.stack([np.zeros_like(targets), np.zeros_like(targets), targets], axis=1)  # slot, from, to
        model.forward(Batch.chain([0], start=depth, accepted=moves))
        return depth
    end -= (end - perf_counter()) / 2
    filled, per_chunk = 0, 0.0
    while filled < depth and (before := perf_counter()) + per_chunk < end:
        n = min(_CHUNK, depth - filled)
        model.forward(Batch.chain(np.zeros(n, np.int32), start=filled, rows=_NO_ROWS)).wait()
        filled, per_chunk = filled + n, perf_counter() - before
    return filled if filled >= _SHALLOWEST else 0


def _seconds(model: Model, n: int, depth: int) -> float:
    spec, aside = model.state_spec, None
    if spec.n_bytes_per_sequence and spec.can_keep_aside and n > 1:  # as drafts are verified
        aside = np.arange(n) >= max(1, n - (n if spec.draft_max is None else spec.draft_max))
    batch = Batch.chain(np.zeros(n, np.int32), start=depth, is_drafted=aside)
    start, before = perf_counter(), interrupted.seconds
    device_s = model.forward(batch).wait()
    seconds, lost_s = perf_counter() - start if device_s is None else device_s, interrupted.seconds - before
    return seconds - lost_s if lost_s < seconds else seconds
