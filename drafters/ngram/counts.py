"""Followers of the n-grams of texts, and their counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from attrs import define

_ONCE = 1 << 32  # a lone follower is kept as one number: its token, and in the high half how often it was seen
_TOKEN = _ONCE - 1


@define(eq=False)
class Followers:
    """The tokens that followed one n-gram.

    Attributes:
        counts: How often each was seen.
        n_seen: The sum of that.
        leader: The most frequent one, of equals the lowest.
    """

    counts: dict[int, int]
    n_seen: int
    leader: int

    @classmethod
    def of(cls, counts: dict[int, int]) -> Followers:
        """The followers with these `counts`, of which there is at least one."""
        return cls(counts, sum(counts.values()), max(counts, key=lambda token: (counts[token], -token)))

    def add(self, token: int, n: int = 1) -> None:
        """Count `token`, seen `n` times more."""
        count = self.counts[token] = self.counts.get(token, 0) + n
        self.n_seen += n
        most = self.counts[self.leader]
        if count > most or (count == most and token < self.leader):
            self.leader = token

    def best(self, weights: Mapping[int, int], factor: int) -> int:
        """The token with the largest count times weight, of equals the lowest.

        Args:
            weights: Positive. A token has its weight times `factor`, or 1 where it has none.
            factor: At least 1, so that a token without a weight can only win if it is the leader.
        """
        best, score = self.leader, self.counts[self.leader]
        for token in min(self.counts, weights, key=len):
            theirs = self.counts.get(token, 0) * factor * weights.get(token, 0)
            if theirs > score or (theirs == score and token < best):
                best, score = token, theirs
        return best


class NgramCounts:
    """Followers of all n-grams of up to `n_max` tokens. A new token costs O(1).

    An n-gram is looked up by its bytes: its tokens as int32, one after the other, as in a text's memory.
    """

    def __init__(self, n_max: int) -> None:
        self._n_max = n_max
        self._found: dict[bytes, int | Followers] = {}

    def __len__(self) -> int:
        return len(self._found)

    def get(self, ngram: bytes) -> Followers | None:
        """The followers of `ngram`, or None."""
        found = self._found.get(ngram)
        return _unpacked(found) if isinstance(found, int) else found

    def items(self) -> Iterator[tuple[bytes, Followers]]:
        """All n-grams with their followers, in the order in which they were first seen."""
        return ((ngram, _unpacked(found) if isinstance(found, int) else found) for ngram, found in self._found.items())

    def put(self, ngram: bytes, followers: Followers) -> None:
        """Take over the followers of an n-gram."""
        self._found[ngram] = followers

    def extend(self, text: np.ndarray, first: int) -> None:
        """Count the tokens of `text` (t,) int32 from `first` on as followers of the n-grams before them."""
        start = max(first - self._n_max, 0)
        data, tokens = text[start:].tobytes(), text[start:].tolist()
        found = self._found
        for n in range(1, self._n_max + 1):
            for i in range(max(first - start, n), len(tokens)):
                ngram, token = data[4 * (i - n) : 4 * i], tokens[i]
                known = found.get(ngram)
                if known is None:
                    found[ngram] = token | _ONCE
                elif not isinstance(known, int):
                    known.add(token)
                elif known & _TOKEN == token:
                    found[ngram] = known + _ONCE
                else:
                    found[ngram] = _unpacked(known)
                    found[ngram].add(token)  # type: ignore[union-attr]

    def forget(self, n_kept: int) -> None:
        """Keep the `n_kept` n-grams that were seen most, of equals those first seen last."""
        kept = set(sorted(self._found, key=self._n_seen)[-n_kept:])
        self._found = {ngram: found for ngram, found in self._found.items() if ngram in kept}

    def _n_seen(self, ngram: bytes) -> int:
        found = self._found[ngram]
        return found // _ONCE if isinstance(found, int) else found.n_seen


def _unpacked(found: int) -> Followers:
    token, n = found & _TOKEN, found // _ONCE
    return Followers({token: n}, n, token)
