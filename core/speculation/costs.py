"""The costs of passes and drafters on this machine and model: measured, and corrected by all later ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np
from attrs import define, frozen

__all__ = ["DraftCost", "PassCosts", "PassTime"]

_LEARN_ALL = 0.03  # how far one pass moves the figures of all sizes: the machine's speed drifts for all of them
_LEARN_NEAR = 0.15  # how much further those of its own size, and less those of sizes up to half and double
_MANY = 1 / _LEARN_NEAR - 1  # passes, of which a new one counts as much as that
_ALIKE = 0.5  # the share of that for all other passes of several tokens
_STALE = 32  # passes with drafts, or without, after which the others' figures follow theirs: none of these were seen
_DOUBT = 0.2  # of a figure that rests on nothing; a measurement halves it, and every pass since lowers it
_OUTLIER = 2.0  # a longer time by this factor is an interruption, and counts as this factor
_LEARN_DRAFT = 0.2  # weight of a new measurement of a drafter's time
_WARM_UP = 16  # asks: the first are slow
_MUCH_MISSED = 4  # times the draft's length: tokens to catch up with, beyond which it is they that took the time


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
        # lists: a round uses them once, after a pass that has emptied the caches, and NumPy's calls then take far longer
        self._flat: list[float] = flat.tolist()
        self._per_position: list[float] = (_extended(slopes, sizes) if slopes else np.zeros(len(sizes))).tolist()
        self._common = [1.0, 1.0]  # factors of all figures of passes without drafts, and with them
        self._n_unseen = [0, 0]  # passes since one without drafts was seen, and one with them
        self._factors = [1.0] * len(sizes)
        self._n_seen = [1.0] * len(sizes)  # passes that a size's figure rests on
        # factors of the figures as far as they may turn out to be; plain decoding is the unit of all
        self._hopes = [1.0 if i <= 1 else 1 - _DOUBT / 2 for i in range(len(sizes))]
        self._logs: np.ndarray = np.log2(np.maximum(np.arange(n_largest + 1), 1))
        self._nearness: dict[
            int, list[tuple[float, float]]
        ] = {}  # by size: how near the others are, and so how much it says of them
        self._depth: float | None = None  # that the curve was last asked for at
        self._curve: list[float] = []
        self._hopeful: list[float] = []

    def seconds(self, n: int, depth: float) -> float:
        """The seconds of a pass of n tokens, each after `depth` others on average."""
        return self.curve(n, depth)[n]

    def curve(self, n: int, depth: float) -> list[float]:
        """`seconds` of passes of 0 to n tokens, or of more; not to be changed."""
        if self._depth != depth:  # asked several times in a round, at one depth
            self._depth = depth
            figures = self._figures(len(self._flat), depth)
            self._curve = list(accumulate(figures, max))
            self._hopeful = list(accumulate(map(mul, figures, self._hopes), max))
        n_more = range(len(self._curve), n + 1)
        return self._curve + [self._curve[-1] * i / (len(self._flat) - 1) for i in n_more] if n_more else self._curve

    def hopeful_curve(self, n: int, depth: float) -> list[float]:
        """The same as far as it may turn out to be: sizes that were seen little are worth a try.

        Otherwise a figure that is too high would never be corrected, because such passes would not be made.
        """
        known = self.curve(n, depth)
        return self._hopeful + known[len(self._hopeful) :]

    def observe(self, n: int, depth: float, seconds: float) -> None:
        """A pass of n tokens took so long."""
        if not 0 < n < len(self._flat):
            return
        if n not in self._nearness:
            near = np.maximum(1.0 - abs(self._logs - self._logs[n]), 0.0)
            self._nearness[n] = list(zip(near.tolist(), np.maximum(near, _ALIKE).tolist(), strict=True))
        ratio = min(max(seconds / max(self._figures(n + 1, depth)), 1 / _OUTLIER), _OUTLIER)
        own, other = (0, 1) if n == 1 else (1, 0)  # drafting or not is the greatest difference
        self._n_unseen[own], self._n_unseen[other] = 0, self._n_unseen[other] + 1
        self._common[own] *= ratio**_LEARN_ALL
        self._common[other] *= ratio ** (_LEARN_ALL + _LEARN_NEAR * min(self._n_unseen[other] / _STALE, 1.0))
        nearness, factors, n_seen = self._nearness[n], self._factors, self._n_seen
        for i in (0, 1) if n == 1 else range(2, len(factors)):
            near, weight = nearness[i]
            factors[i] *= ratio ** (weight * (1 / (1 + n_seen[i]) if n_seen[i] < _MANY else _LEARN_NEAR))
            if near:
                n_seen[i] += near
                self._hopes[i] = 1.0 if i <= 1 else 1 - _DOUBT / (1 + n_seen[i])
        self._depth = None

    def _figures(self, n: int, depth: float) -> list[float]:
        """The times of passes of 0 to n - 1 tokens, without a call for each."""
        known, (plain, several) = zip(self._factors[:n], self._flat, self._per_position, strict=False), self._common
        figures = [several * factor * (flat + slope * depth) for factor, flat, slope in known]
        figures[:2] = [figure * plain / several for figure in figures[:2]]
        return figures


@define
class DraftCost:
    """Seconds that one drafter takes for a slot."""

    per_ask: float = 0.0  # on average
    per_token: float = 0.0  # that it drafts; of a whole draft where that `is_fixed`
    per_missed: float = 0.0  # that was emitted while it was not asked
    n_asks: int = 0
    is_fixed: bool = False  # whether a draft of any length takes the same time

    @property
    def is_known(self) -> bool:
        """Whether more than a first ask was measured, which also compiles, allocates and fills caches."""
        return self.n_asks > 1

    @property
    def is_warm(self) -> bool:
        """Whether all work that is done only once is over."""
        return self.n_asks > _WARM_UP

    def seconds(self, k: int, n_missed: int) -> float:
        """The time of a draft of k tokens."""
        return self.per_token * (min(k, 1) if self.is_fixed else k) + self.per_missed * n_missed

    def hopeful_seconds(self, k: int, n_missed: int) -> float:
        """The same as far as it may turn out to be; see `PassCosts.hopeful_curve`."""
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
        self.per_ask += (seconds - self.per_ask) * max(_LEARN_DRAFT, 1 / self.n_asks)
        n = k or 1  # to decline takes as long as a token
        if n_missed > _MUCH_MISSED * n:
            self.per_missed += _LEARN_DRAFT * (max(seconds - self.seconds(k, 0), 0.0) / n_missed - self.per_missed)
            return
        measured = max(seconds - self.per_missed * n_missed, 0.0) / (1 if self.is_fixed else n)
        if self.per_token and not 0 < _OUTLIER * measured < self.per_token:
            measured = self.per_token + _LEARN_DRAFT * (min(measured, _OUTLIER * self.per_token) - self.per_token)
        self.per_token = measured

    def observe_prompt(self, n_tokens: int, seconds: float) -> None:
        """A prompt took so long: this measures catching up.

        It says little where the drafter held the prompt from before, in which case it is far quicker than it was.
        """
        per_token = seconds / n_tokens
        if self.per_missed == 0.0:
            self.per_missed = per_token
        elif per_token > self.per_missed / 2:
            self.per_missed += _LEARN_DRAFT * (per_token - self.per_missed)


def _extended(points: Sequence[tuple[int, float]], sizes: np.ndarray) -> np.ndarray:
    """A curve through `points` at `sizes`, straight after the last.

    It never falls: a size that took longer than a larger one was disturbed when it was measured.
    """
    xs, ys = (np.array(column, float) for column in zip(*sorted(points), strict=True))
    ys = np.minimum.accumulate(ys[::-1])[::-1]
    curve = np.interp(sizes, xs, ys)
    slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]) if len(xs) > 1 else ys[-1] / xs[-1]
    return curve + slope * np.maximum(sizes - xs[-1], 0)
