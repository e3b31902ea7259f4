"""Where n-grams occurred in a text that grows."""

from __future__ import annotations

import functools

import numpy as np

# Tokens are digits of a number in this base, modulo 2^64: any odd base that has an inverse there and mixes high bits does
# (this one is 2^64 over the golden ratio, Knuth's multiplicative hashing).
_BASE = 0x9E3779B97F4A7C15
_N_FIRST = 2048  # powers that are kept: a round's n-grams need no more


class NgramIndex:
    """The latest start of every n-gram, by hash.

    An n-gram counts once a token follows it, and never where it starts at the text's first token. A new token costs O(1)
    amortised, however long the text and however repetitive it is; n tokens are hashed anew by each call.

    A dict, because its keys are hashes of whole n-grams already: nothing is left to loop over.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._latest: dict[int, int] = {}
        self._next = 1  # the first start that is not in the index

    def clear(self) -> None:
        """Forget the text."""
        self._latest.clear()
        self._next = 1

    def extend(self, text: np.ndarray) -> None:
        """Index the new tokens of `text` (t,) int32, whose beginning was indexed before."""
        end = len(text) - self._n  # the n-gram that starts here is the text's last: no token follows it
        if self._next >= end:
            return
        hashes = window_hashes(text[self._next : end + self._n - 1], self._n)
        self._latest.update(zip(hashes.tolist(), range(self._next, end), strict=True))
        self._next = end

    def find(self, text: np.ndarray, ngram: np.ndarray) -> int | None:
        """The latest indexed start of `ngram` (n,) int32 in `text`, or None."""
        start = self._latest.get(window_hashes(ngram, self._n).item())
        if start is None or np.array_equal(text[start : start + self._n], ngram):
            return start
        # Two n-grams share a hash, and the index knows the later one only: the one text in 2^64, or one made for it.
        return self._scan(text, ngram)

    def _scan(self, text: np.ndarray, ngram: np.ndarray) -> int | None:
        starts = np.arange(1, self._next)
        for offset, token in enumerate(ngram):
            starts = starts[text[starts + offset] == token]
        return int(starts[-1]) if len(starts) else None


class NgramOccurrences:
    """Every start's nearest earlier start of the same n-gram. A new token costs O(1), however repetitive the text is."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._latest: dict[int, int] = {}  # by hash
        self._earlier: list[int] = []  # by start; -1 where there is none

    def clear(self) -> None:
        """Forget the text."""
        self._latest.clear()
        self._earlier.clear()

    def extend(self, text: np.ndarray) -> None:
        """Index the new tokens of `text` (t,) int32, whose beginning was indexed before."""
        start = len(self._earlier)
        if len(text) - start < self._n:
            return
        for i, digest in enumerate(window_hashes(text[start:], self._n).tolist(), start):
            self._earlier.append(self._latest.get(digest, -1))
            self._latest[digest] = i

    def between(self, text: np.ndarray, first: int, last: int) -> list[int]:
        """The rising starts, `first` to `last`, of the n-gram that stands at `last`."""
        ngram = text[last : last + self._n].tobytes()
        starts = []
        start = last
        while start >= first:
            if text[start : start + self._n].tobytes() == ngram:  # another n-gram may have the same hash
                starts.append(start)
            start = self._earlier[start]
        starts.reverse()
        return starts


def window_hashes(tokens: np.ndarray, n: int, base: int = _BASE) -> np.ndarray:
    """Hash every n-gram of a text; equal n-grams have equal hashes, wherever they stand.

    The hash of t[i], …, t[i+n-1] is the sum of t[i+k]·B^k modulo 2^64: a difference of two prefix sums of t[j]·B^j, moved to
    the origin by B^-i.

    Args:
        tokens: (t,) int32, t ≥ n, non-negative.
        n: Length of an n-gram.
        base: B, odd.

    Returns:
        (t - n + 1,) uint64.
    """
    sums = np.zeros(len(tokens) + 1, dtype=np.uint64)
    np.cumsum(tokens.astype(np.uint64) * _powers(base, len(tokens)), out=sums[1:])
    hashes: np.ndarray = (sums[n:] - sums[:-n]) * _powers(pow(base, -1, 2**64), len(tokens) - n + 1)
    return hashes


def _powers(base: int, count: int) -> np.ndarray:
    """base^0, base^1, … modulo 2^64, (count,) uint64."""
    return _first_powers(base)[:count] if count <= _N_FIRST else _computed_powers(base, count)


@functools.cache
def _first_powers(base: int) -> np.ndarray:
    return _computed_powers(base, _N_FIRST)


def _computed_powers(base: int, count: int) -> np.ndarray:
    powers = np.full(count, base, dtype=np.uint64)
    powers[0] = 1
    np.cumprod(powers, out=powers)
    return powers
