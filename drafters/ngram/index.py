"""Where n-grams occurred in a text that grows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import takewhile

import numpy as np

# Tokens are digits of a number in this base, modulo 2^64: any odd base that has an inverse there and mixes high bits does
# (this one is 2^64 over the golden ratio, Knuth's multiplicative hashing).
_BASE = 0x9E3779B97F4A7C15
_N_FIRST = 2048  # powers that are kept: a round's n-grams need no more


class NgramIndex:
    """The latest start of every n-gram, by hash, and before each start the nearest earlier one.

    A new token costs O(1) amortised, however long the text and however repetitive it is; n tokens are hashed anew by each call.

    A dict, because its keys are hashes of whole n-grams already: nothing is left to loop over.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._latest: dict[int, int] = {}
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

    def find(self, text: np.ndarray, ngram: np.ndarray) -> int:
        """The latest indexed start of `ngram` (n,) int32 in `text`, or -1."""
        start = self._latest.get(window_hashes(ngram, self._n).item(), -1)
        return next(self._starts(text, ngram.tobytes(), start), -1)

    def between(self, text: np.ndarray, first: int, last: int) -> list[int]:
        """The rising starts, `first` to `last`, of the n-gram that stands at `last`."""
        starts = self._starts(text, text[last : last + self._n].tobytes(), last)
        return [*takewhile(lambda start: start >= first, starts)][::-1]

    def _starts(self, text: np.ndarray, ngram: bytes, start: int) -> Iterator[int]:
        """The starts of an n-gram from one of its hash on backwards, which another n-gram may have as well."""
        while start >= 0:
            if text[start : start + self._n].tobytes() == ngram:
                yield start
            start = self._earlier[start]


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
