"""What is measured, and what came of it."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from typing import Literal

from attrs import frozen

__all__ = ["Kind", "Measure", "Runner", "Timing"]

Kind = Literal["curve", "prefill", "decode"]


@frozen
class Measure:
    """One figure: `n` tokens behind `depth` tokens that the slot holds already.

    curve: one pass over n tokens with the logits of all n, and the best token of each, as checking a draft takes.
    prefill: n tokens of a prompt, with the logits of the last.
    decode: n tokens one by one, each the best behind the one before.
    """

    kind: Kind
    n: int
    depth: int


@frozen
class Timing:
    """Seconds of repetitions of a measure, in the order in which they were taken."""

    measure: Measure
    seconds: tuple[float, ...]

    @property
    def ms(self) -> float:
        """Milliseconds of the median repetition."""
        return statistics.median(self.seconds) * 1e3

    @property
    def tok_s(self) -> float:
        """Tokens per second of the median repetition."""
        return self.measure.n * 1e3 / self.ms

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
        """Fill the slot with `depth` tokens, untimed; measures of this depth follow."""

    @abstractmethod
    def seconds(self, measure: Measure) -> float:
        """Run a measure once, at the depth that was prepared last."""
