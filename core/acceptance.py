"""How likely the next tokens of a drafter are right, learnt from every token that it was seen to get right or wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PRIOR", "PRIOR_OF_MODELS", "Acceptance"]

_RUNS = (0, 1, 2, 3, 5, 9, 17, 33)  # first run of each bucket
_BUCKET = tuple(sum(run >= first for first in _RUNS[1:]) for run in range(_RUNS[-1] + 1))
PRIOR = (0.4, 0.55, 0.65, 0.75, 0.85, 0.9, 0.93, 0.96)  # by bucket, before anything was seen: of what looks texts up
PRIOR_OF_MODELS = (0.7, 0.75, 0.75, 0.8, 0.8, 0.85, 0.9, 0.9)  # of what knows the language
_PRIOR_WEIGHT = 4.0  # trials that the prior, and here what other requests taught, counts as
_KEEP_OWN = 0.93  # of a request's own trials with each new one in the bucket: texts change their mind
_KEEP_ALL = 0.998  # of the trials of all requests


class _Bucket:
    """Trials at one run, decaying."""

    __slots__ = ("n", "n_right")

    def __init__(self) -> None:
        self.n = self.n_right = 0.0

    def see(self, is_right: bool, keep: float) -> None:  # noqa: FBT001 - private, and called per token
        self.n = self.n * keep + 1.0
        self.n_right = self.n_right * keep + is_right


class Acceptance:
    """The chance that a drafter's next token is right, by its run: how many it got right in a row up to there.

    Text is copied in stretches, so the run says more than the position in a draft: behind twenty right tokens the next one is
    likely right, whether they were verified in one pass or in twenty. A token is a trial only where everything before it was
    right; what lies behind a wrong token, a cut or the end of the draft was not seen and counts as nothing. So a draft that was
    right to its end says "at least", not "exactly".

    `child` makes one for a request, which starts from what all requests taught and then follows its own text.
    """

    def __init__(self, prior: Sequence[float] = PRIOR, parent: Acceptance | None = None) -> None:
        self.run = 0
        self._prior = prior
        self._parent = parent
        self._keep = _KEEP_ALL if parent is None else _KEEP_OWN
        self._buckets = [_Bucket() for _ in _RUNS]

    def child(self) -> Acceptance:
        """For a new request of the same drafter."""
        return Acceptance(self._prior, self)

    def chance(self, run: int) -> float:
        """That the token behind `run` right ones is right."""
        return self._chance(_BUCKET[min(run, _RUNS[-1])])

    def survival(self, k: int) -> list[float]:
        """[j] is the chance that the next j + 1 tokens are all right, for j from 0 to k - 1."""
        alive, chances = 1.0, []
        bucket, chance = -1, 0.0
        for run in range(self.run, self.run + k):
            if (here := _BUCKET[min(run, _RUNS[-1])]) != bucket:
                bucket, chance = here, self._chance(here)
            alive *= chance
            chances.append(alive)
        return chances

    def see(self, proposed: Sequence[int], emitted: Sequence[int]) -> int:
        """Compare a proposal with what was emitted instead or because of it; returns how many of its tokens were right."""
        n_seen = min(len(proposed), len(emitted))
        for i in range(n_seen):
            if proposed[i] != emitted[i]:
                self._trial(is_right=False)
                self.run = 0
                return i
            self._trial(is_right=True)
            self.run += 1
        return n_seen

    def decline(self) -> None:
        """The drafter proposed nothing, or was not asked: what it finds next is another stretch."""
        self.run = 0

    def _chance(self, bucket: int) -> float:
        own = self._buckets[bucket]
        before = self._prior[bucket] if self._parent is None else self._parent._chance(bucket)  # noqa: SLF001 - of this class
        return (own.n_right + _PRIOR_WEIGHT * before) / (own.n + _PRIOR_WEIGHT)

    def _trial(self, *, is_right: bool) -> None:
        bucket = _BUCKET[min(self.run, _RUNS[-1])]
        self._buckets[bucket].see(is_right, self._keep)
        if self._parent is not None:
            self._parent._buckets[bucket].see(is_right, _KEEP_ALL)  # noqa: SLF001
