"""Whether chances are true: of the tokens that were proposed with a chance, how many were right, by chance and by bucket.

A token counts where all before it was right, for each drafter that proposed it and once for all together. The chance is that of
the planner, after the effect of other drafters' proposals; to measure that effect, it is that of the token's own drafters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any, TypeVar

from attrs import Factory, asdict, frozen

from augury.speculation.trials import Trial

N_STEPS = 10
"""The number of steps of chances, equally wide."""

TOGETHER = "together"
"""In the place of a drafter's name: all tokens, each once."""

_Z = 1.96  # 95 of 100 cases

Key = TypeVar("Key")


@frozen
class Tally:
    """Tokens that were tried.

    Attributes:
        n: How many.
        expected: The sum of their chances.
        n_right: How many were right.
    """

    n: int = 0
    expected: float = 0.0
    n_right: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Both."""
        return Tally(self.n + other.n, self.expected + other.expected, self.n_right + other.n_right)

    @property
    def chance(self) -> float:
        """Their mean chance."""
        return self.expected / self.n if self.n else 0.0

    @property
    def share(self) -> float:
        """How many of them were right."""
        return self.n_right / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Holds the share that more such tokens would have in 95 of 100 cases, were each of them drawn by itself.

        Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
        """
        if not self.n:
            return 0.0, 1.0
        spread = _Z * sqrt(self.share * (1 - self.share) / self.n + _Z**2 / (4 * self.n**2))
        low, high = ((self.share + _Z**2 / (2 * self.n) + sign * spread) / (1 + _Z**2 / self.n) for sign in (-1, 1))
        return max(low, 0.0), min(high, 1.0)


@frozen
class Reliability:
    """The results of trials.

    Attributes:
        steps: By drafter, and of all together first: a tally for each tenth of chances.
        buckets: By drafter and bucket: the chance that tokens proposed on it have before any was seen, and a tally.
        agreement: By what others propose in a token's place and its own drafters' chance: the ratio of right tokens to expected
            ones that is taken before any was seen, and a tally, which expects what that chance promises.
    """

    steps: Mapping[str, Sequence[Tally]] = Factory(dict)
    buckets: Mapping[tuple[str, str], tuple[float, Tally]] = Factory(dict)
    agreement: Mapping[str, tuple[float, Tally]] = Factory(dict)

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> Reliability:
        """Count trials."""
        steps: dict[str, list[Tally]] = {}
        buckets: dict[tuple[str, str], tuple[float, Tally]] = {}
        agreement: dict[str, tuple[float, Tally]] = {}
        for trial in trials:
            step, one = min(int(N_STEPS * trial.chance), N_STEPS - 1), Tally(1, trial.chance, int(trial.is_right))
            for name in (TOGETHER, *trial.buckets):
                steps.setdefault(name, [Tally()] * N_STEPS)[step] += one
            for name, bucket in trial.buckets.items():
                _add(buckets, (name, bucket.name), bucket.prior, one)
            if trial.agreement is not None:
                own = Tally(1, trial.own_chance, int(trial.is_right))
                _add(agreement, trial.agreement.name, trial.agreement.prior, own)
        return cls(steps, buckets, agreement)

    @classmethod
    def pool(cls, parts: Iterable[Reliability]) -> Reliability:
        """Join counts."""
        steps: dict[str, Sequence[Tally]] = {}
        buckets: dict[tuple[str, str], tuple[float, Tally]] = {}
        agreement: dict[str, tuple[float, Tally]] = {}
        for part in parts:
            for name, mine in part.steps.items():
                before = steps.get(name, (Tally(),) * N_STEPS)
                steps[name] = tuple(a + b for a, b in zip(before, mine, strict=True))
            for key, (prior, tally) in part.buckets.items():
                _add(buckets, key, prior, tally)
            for kind, (ratio, tally) in part.agreement.items():
                _add(agreement, kind, ratio, tally)
        return cls(steps, buckets, agreement)

    def as_json(self) -> dict[str, Any]:
        """As `augury bench drafters --json` prints it: rows of tokens, the sum of their chances, and how many were right."""
        buckets: dict[str, dict[str, Any]] = {}
        for (drafter, bucket), (prior, tally) in self.buckets.items():
            buckets.setdefault(drafter, {})[bucket] = {"prior": prior, "n": tally.n, "n_right": tally.n_right}
        steps = {name: [[each.n, each.expected, each.n_right] for each in mine] for name, mine in self.steps.items()}
        agreement = {name: {"prior": ratio} | asdict(tally) for name, (ratio, tally) in self.agreement.items()}
        return {"steps": steps, "buckets": buckets, "agreement": agreement}


def _add(found: dict[Key, tuple[float, Tally]], key: Key, prior: float, tally: Tally) -> None:
    found[key] = prior, found.get(key, (prior, Tally()))[1] + tally
