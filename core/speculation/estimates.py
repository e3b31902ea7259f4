"""How likely the next tokens of a drafter are right, learnt from every token that it was seen to get right or wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

__all__ = ["CERTAIN", "LOOKUP", "MODEL", "Acceptance", "Kind"]

_KEEP_ALL = 0.998  # of the trials of all requests with each new one


@frozen
class Kind:
    """What is known of a drafter before it was seen."""

    runs: tuple[int, ...]  # first run of each bucket that is counted apart
    prior: tuple[float, ...]  # chance by bucket
    weight: float  # trials that this, and for a request what other requests taught, counts as
    keep: float  # of a request's own trials with each new one in the bucket: texts change their mind

    def buckets(self) -> tuple[int, ...]:
        """The bucket of every run, the last for all longer ones."""
        return tuple(sum(run >= first for first in self.runs[1:]) for run in range(self.runs[-1] + 1))


LOOKUP = Kind((0, 1, 2, 3, 5, 9, 17, 33), (0.4, 0.55, 0.65, 0.75, 0.85, 0.9, 0.93, 0.96), 4.0, 0.93)
"""Text is copied in stretches, so the run says more than the place in a draft."""

MODEL = Kind((0,), (0.65,), 14.0, 0.98)
"""A model is asked now and then only, and then seen at few runs: counted apart, the others would never be corrected. One wrong
token says little of it: a model that is right nine times of ten may well begin with one."""

CERTAIN = Kind((0,), (1.0,), 1.0, 0.98)
"""What is right as far as anybody can know. If it is not, it soon shows."""


class _Trials:
    """Right and wrong tokens, old ones counting less."""

    __slots__ = ("n", "n_right")

    def __init__(self) -> None:
        self.n = self.n_right = 0.0

    def add(self, keep: float, *, is_right: bool) -> None:
        self.n = self.n * keep + 1.0
        self.n_right = self.n_right * keep + is_right


class Acceptance:
    """The chance that a drafter's next token is right, by its run: how many it got right in a row up to there.

    After twenty right tokens the next one is likely right, whether they were verified in one pass or in twenty. A token is a
    trial only where everything before it was right; what comes after a wrong token, a cut or the end of the draft was not seen
    and counts as nothing. So a draft that was right to its end says "at least", not "exactly".

    `child` makes one for a request, which starts from what all requests taught and then follows its own text.
    """

    def __init__(self, kind: Kind, parent: Acceptance | None = None) -> None:
        self.run = 0
        self._kind = kind
        self._parent = parent
        self._bucket = kind.buckets()
        self._keep = _KEEP_ALL if parent is None else kind.keep
        self._trials = [_Trials() for _ in kind.runs]

    def child(self) -> Acceptance:
        """For a new request of the same drafter."""
        return Acceptance(self._kind, self)

    def chance(self, run: int) -> float:
        """The chance that the token after `run` right ones is right."""
        return self._chance(self._bucket[min(run, len(self._bucket) - 1)])

    def survival(self, k: int) -> list[float]:
        """[j] is the chance that the next j + 1 tokens are all right, for j from 0 to k - 1."""
        alive, chances = 1.0, []
        bucket, chance, last = -1, 0.0, len(self._bucket) - 1
        for run in range(self.run, self.run + k):
            if (here := self._bucket[min(run, last)]) != bucket:
                bucket, chance = here, self._chance(here)
            alive *= chance
            chances.append(alive)
        return chances

    def see(self, proposed: Sequence[int], emitted: Sequence[int]) -> int:
        """Compare a proposal with what was emitted instead or because of it; returns how many of its tokens were right."""
        n_seen = min(len(proposed), len(emitted))
        for i in range(n_seen):
            if proposed[i] != emitted[i]:
                self._try(is_right=False)
                self.run = 0
                return i
            self._try(is_right=True)
            self.run += 1
        return n_seen

    def see_each(self, is_right: Iterable[bool]) -> None:
        """Take in tokens in a row that were each guessed from the true text before it: of these all were seen."""
        for each in is_right:
            self._try(is_right=each)
            self.run = self.run + 1 if each else 0

    def decline(self) -> None:
        """The drafter proposed nothing, or was not asked: what it finds next is another stretch."""
        self.run = 0

    def _chance(self, bucket: int) -> float:
        own = self._trials[bucket]
        before = self._kind.prior[bucket] if self._parent is None else self._parent._chance(bucket)  # noqa: SLF001 - of this class
        return (own.n_right + self._kind.weight * before) / (own.n + self._kind.weight)

    def _try(self, *, is_right: bool) -> None:
        bucket = self._bucket[min(self.run, len(self._bucket) - 1)]
        self._trials[bucket].add(self._keep, is_right=is_right)
        if self._parent is not None:
            self._parent._trials[bucket].add(_KEEP_ALL, is_right=is_right)  # noqa: SLF001
