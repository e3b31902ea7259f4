"""The steps of sampling: each keeps some tokens or changes their logits. A request's logits processors are such steps, too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import frozen

_LEAST_DIVISOR = 1e-200  # below it logits become infinite

SamplingStep = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""A `step(history, ids, logits)` returns the tokens that stay and their logits, both (m,) again.

`history` (h,) int32 is the prompt and the output, read-only; `ids` (m,) int32 are tokens, `logits` (m,) theirs, which may be
changed in place. A step is a pure function of these three, because it is also called for drafted texts, some of which are
rejected.
"""


def best_first(ids: np.ndarray, logits: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n best tokens, equals by rising id, and their logits."""
    places = best_places(ids, logits, n)
    return ids[places], logits[places]


def best_places(ids: np.ndarray, logits: np.ndarray, n: int) -> np.ndarray:
    """Where the n best tokens stand, best first, equals by rising id."""
    if n >= len(logits):
        return np.lexsort((ids, -logits))
    near = np.flatnonzero(logits >= np.partition(logits, -n)[-n])  # more than n where several equal the last
    return near[np.lexsort((ids[near], -logits[near]))[:n]]


# The samplers. They are given the best token first, and keep it so. All but `top_n_sigma`, `min_p` and `temperature` need the
# others in order, too.


class Adjustment(ABC):
    """Changes the logits of some tokens, which the history names: a step that need not look at all the others."""

    @property
    @abstractmethod
    def is_neutral(self) -> bool:
        """Whether nothing changes."""

    @abstractmethod
    def recent(self, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens, rising, and a count of each."""

    @abstractmethod
    def changed(self, logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The logits of tokens with such counts."""

    def __call__(self, history: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `SamplingStep`."""
        recent, counts = self.recent(history)
        _, at, of_recent = np.intersect1d(ids, recent, assume_unique=True, return_indices=True)
        logits[at] = self.changed(logits[at], counts[of_recent])
        return best_first(ids, logits, len(ids))


@frozen
class Penalties(Adjustment):
    """Lowers the logits of the last tokens."""

    repeat: float
    presence: float
    frequency: float
    n_last: int

    @property
    def is_neutral(self) -> bool:
        return (self.repeat == 1.0 and self.presence == 0.0 and self.frequency == 0.0) or self.n_last == 0

    def recent(self, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The last tokens, rising, and how often each is among them."""
        return np.unique(history if self.n_last < 0 else history[-self.n_last :], return_counts=True)

    def changed(self, logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The logits of tokens that occurred so often."""
        logits = np.where(logits <= 0, logits * self.repeat, logits / self.repeat)
        logits -= counts * self.frequency + self.presence
        return logits


def _truncation(keep: Callable[[np.ndarray], Any]) -> SamplingStep:
    """A step that keeps some tokens: `keep` makes of their logits a slice, a mask or rising indices."""

    def step(_: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kept = keep(logits)
        return ids[kept], logits[kept]

    return step


def top_k(k: int) -> SamplingStep:
    """Keep the k best tokens."""
    return _truncation(lambda _: slice(k))


def top_p(p: float) -> SamplingStep:
    """Keep the most probable tokens that sum to p."""

    def keep(logits: np.ndarray) -> slice:
        sums = np.cumsum(np.exp(logits - logits[0]))
        return slice(int(np.searchsorted(sums, p * sums[-1], side="left")) + 1)

    return _truncation(keep)


def min_p(p: float) -> SamplingStep:
    """Keep the tokens that are at least p times as probable as the best."""
    margin = np.log(p)
    return _truncation(lambda logits: logits >= logits[0] + margin)


def typical(p: float) -> SamplingStep:
    """Keep the tokens whose surprise is nearest to the entropy, up to p (Meister et al. 2022, section 3)."""

    def keep(logits: np.ndarray) -> np.ndarray:
        weights = np.exp(logits - logits[0])
        probabilities = weights / weights.sum()
        with np.errstate(divide="ignore"):
            surprise = -np.log(probabilities)
        is_possible = probabilities > 0
        entropy = float((probabilities[is_possible] * surprise[is_possible]).sum())
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        n_kept = int(np.searchsorted(np.cumsum(probabilities[order]), p, side="left")) + 1
        return np.sort(order[:n_kept])

    return _truncation(keep)


def top_n_sigma(n: float) -> SamplingStep:
    """Keep the tokens whose logits are at most n standard deviations below the best (Tang et al. 2024, section 3)."""

    def keep(logits: np.ndarray) -> np.ndarray:
        return logits >= logits[0] - n * logits[logits > -np.inf].std()

    return _truncation(keep)


def xtc(probability: float, threshold: float, chance: Callable[[int], float]) -> SamplingStep:
    """With this probability drop all tokens as probable as the threshold but the least probable one of them.

    `chance` gives a number in [0, 1) for a length of the history.
    """

    def step(history: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if chance(len(history)) > probability:
            return ids, logits
        weights = np.exp(logits - logits[0])
        n_dropped = max(np.count_nonzero((weights >= threshold * weights.sum()) & (logits > -np.inf)) - 1, 0)
        return ids[n_dropped:], logits[n_dropped:]

    return step


def temperature(value: float) -> SamplingStep:
    """Divide the logits."""
    return lambda _, ids, logits: (ids, logits / value)


def dynamic_temperature(value: float, spread: float, exponent: float) -> SamplingStep:
    """Divide the logits by `value - spread` where they leave no doubt, up to `value + spread` where all are equal."""

    def step(_: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = np.count_nonzero(logits > -np.inf)
        if n < 2:
            return ids, logits
        weights = np.exp(logits - logits[0])
        probabilities = weights[weights > 0] / weights.sum()
        share = -float((probabilities * np.log(probabilities)).sum()) / np.log(n)
        least = max(value - spread, 0.0)
        divisor = least + (value + spread - least) * max(share, 0.0) ** exponent
        if divisor < _LEAST_DIVISOR:
            return ids[:1], logits[:1]
        return ids, logits / divisor

    return step
