"""How likely a drafted token is right, learnt from every token that was emitted, by the buckets it was proposed in."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from copy import copy
from typing import Self

import numpy as np
from attrs import frozen

from augury.speculation.constants import CONFIDENCE, EDGES, EVIDENCE, KEEP_ALL, RUNS, STEPS, TYPICAL, kernels

# Prior chances of tokens: docs/benchmarks.md, "What buckets are worth", says how they were measured
_RUN_CHANCES = (0.78, 0.78, 0.85, 0.84, 0.94, 0.96, 0.98, 0.99)
_CONFIDENCE_CHANCES = (0.01, 0.035, 0.07, 0.23, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.925, 0.965, 0.99)

_KINDS = ("alone", "agreed", "contested")  # in the order of the kernels' ALONE, AGREED and CONTESTED
_RATIOS = (  # by kind and step, of right tokens to expected ones before any was seen; docs/benchmarks.md says how measured
    (1.2, 0.89, 0.95, 0.98, 0.91, 1.0, 1.0, 1.0),
    (4.9, 2.1, 1.5, 0.95, 1.0, 1.1, 1.1, 1.0),
    (0.77, 0.37, 0.43, 0.51, 0.54, 0.82, 0.82, 0.89),
)
_AGREEMENT_WEIGHT = 4.0  # tokens right as expected, which these ratios count as

_LOOKUP = 4.0, 0.93  # trials that the prior counts as, and the share of a request's own that is kept: texts change
_MODEL = 14.0, 0.98  # one wrong token says little of a model, or of a bucket that its drafter knows: it may be one of ten
_MODEL_CHANCE = 0.65


@frozen
class Bucket:
    """The bucket in which a token is judged, in words, and its chance, or the change of it, before any was seen."""

    name: str
    prior: float


class Chances:
    """The chance that a token is right where all before it are, by the buckets in which one drafter proposed it.

    The buckets are the drafter's `evidence` where it gives that, else its confidence, in steps. A draft without either is
    judged by its run: how many tokens the drafter got right in a row up to there. After twenty right tokens the next one is
    likely right, whether they were verified in one pass or in twenty. A model's tokens without confidence are judged together.

    A token is a trial only where everything before it was right. Tokens after a wrong one or after the text's end are no
    trials.

    `child` makes the chances of one request, which start from those of all requests and then follow their own text.

    Attributes:
        prior: (b,) float64, the chances of the buckets before any trial.
        table: (3, b) float64: of each bucket the trials, the right ones, and the chance. Old trials count less.
        values: (b,) float64, the last of these rows.
        has_runs: Whether a token without evidence or confidence is judged by its run.
        above: Those of all requests, of one request's; None of these.
        learning: How many trials the prior counts as, and the share of a request's own trials that is kept with each new one.
    """

    def __init__(self, evidence: Sequence[float] = (), *, is_costly: bool = False, is_certain: bool = False) -> None:
        """Start from prior chances, of the drafter's own buckets by its `evidence`; see `DrafterTraits.evidence_chances`."""
        self.has_runs = not (is_costly or is_certain)
        self.learning = _MODEL if is_costly or len(evidence) else _LOOKUP
        self.above: Chances | None = None
        self._begin(np.array([1.0 if is_certain else _MODEL_CHANCE, *_RUN_CHANCES, *_CONFIDENCE_CHANCES, *evidence]))

    def child(self) -> Self:
        """For a new request of the same drafter."""
        made = copy(self)
        made.above = self
        made._begin(self.values)  # noqa: SLF001 - of this class
        return made

    def _begin(self, prior: np.ndarray) -> None:
        """Start from prior chances, which are read where they change."""
        self.prior, self.table = prior, np.stack([np.zeros(len(prior)), np.zeros(len(prior)), prior])
        self.values = self.table[2]

    @property
    def typical(self) -> float:
        """The chance of any token, in any bucket."""
        return float(self.values[TYPICAL])

    @property
    def surest(self) -> float:
        """The chance of a token of which the drafter is as confident as can be."""
        return float(self.values[EVIDENCE - 1])

    @property
    def n_evidence(self) -> int:
        """How many buckets are the drafter's own."""
        return len(self.prior) - EVIDENCE

    def bucket(self, bucket: int) -> Bucket:
        """One of the `buckets`, in words."""
        if bucket >= EVIDENCE:
            name = f"evidence {bucket - EVIDENCE}"
        elif bucket >= CONFIDENCE:
            least, most = (0.0, *EDGES, 1.0)[bucket - CONFIDENCE :][:2]
            name = f"confidence {least:g} to {most:g}"
        else:
            name = "any" if bucket == TYPICAL else f"run from {RUNS[bucket - 1]}"
        return Bucket(name, float(self.prior[bucket]))

    def see(self, bucket: int, *, is_right: bool) -> None:
        """A token of this bucket was right or wrong."""
        weight, keep_own = self.learning
        if self.above is not None:
            self.above.see(bucket, is_right=is_right)
        kernels.see(self.table, self.prior, bucket, is_right, weight, KEEP_ALL if self.above is None else keep_own)


class Agreement:
    """The effect on a token's chance of another drafter's proposal, the same or a different one.

    It is learnt by the chance of the token's own drafter, in steps: the ratio of the number of right tokens to the expected
    number.

    Attributes:
        table: (3, n) float64, the rows that `augury.speculation.kernels` names, by step and kind.
    """

    def __init__(self) -> None:
        ratios = np.array(_RATIOS).T.ravel()
        expected = np.full(len(ratios), _AGREEMENT_WEIGHT)
        self.table = np.stack([expected, expected * ratios, ratios])

    @staticmethod
    def bucket(kind: int, chance: float) -> Bucket:
        """What is learnt of such a token, in words, and the ratio that it begins with."""
        step = bisect(STEPS, chance)
        least, most = (0.0, *STEPS, 1.0)[step:][:2]
        return Bucket(f"{_KINDS[kind]}, chance {least:g} to {most:g}", _RATIOS[kind][step])


def survival(chance: float, k: int) -> list[float]:
    """[j] is the chance that the next j + 1 tokens are all right, for j from 0 to k - 1, with one chance for each.

    >>> survival(0.5, 3)
    [0.5, 0.25, 0.125]
    """
    return [chance**j for j in range(1, k + 1)]
