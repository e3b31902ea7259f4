"""All places where an n-gram stands in a text that grows."""

from __future__ import annotations

import numpy as np

from augury.drafters.ngram.index import window_hashes


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
