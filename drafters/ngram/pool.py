"""The token that followed an n-gram last, in all texts together: a table of fixed size, without the n-grams themselves."""

from __future__ import annotations

import numpy as np

from augury.drafters.ngram.index import window_hashes

# llama.cpp's hash: the n-gram as a number in this base (Knuth's MMIX multiplier), modulo the number of entries
_BASE = 6364136223846793005
_INVERSE = pow(_BASE, -1, 2**64)
_N_ENTRIES = 1 << 22
_MASK = _N_ENTRIES - 1


class NgramPool:
    """From the hash of n tokens to the token after them; two n-grams with one hash overwrite each other.

    An entry is a token and, in the high half, the era that it was written in: emptying the pool starts a new era, which takes
    no time, and memory that was never written to is never touched.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._top = pow(_BASE, n - 1, _N_ENTRIES)  # weight of an n-gram's first token
        self._entries = np.zeros(_N_ENTRIES, dtype=np.int64)
        self._view = self._entries.data  # reads single entries faster than the array
        self._era = 1
        self._n_used = 0
        self._writer: object = None  # the writer of all entries, from the beginning of a text on

    @property
    def fill(self) -> float:
        """Share of the entries that are in use."""
        return self._n_used / _N_ENTRIES

    def is_only_of(self, writer: object) -> bool:
        """Whether all there is comes from `writer`, so that to empty the pool and to add its text again changes nothing."""
        return self._writer is writer

    def clear(self) -> None:
        """Forget all."""
        self._era += 1
        self._n_used = 0
        self._writer = None

    def add(self, writer: object, text: np.ndarray, first: int) -> None:
        """Add the n-grams of `text` (t,) int32 that start at `first` or later and that a token follows."""
        if len(text) - self._n <= first:
            return
        if self._n_used == 0 and first == 0:
            self._writer = writer
        elif self._writer is not writer:
            self._writer = None
        hashes = window_hashes(text[first:-1], self._n, _INVERSE) * np.uint64(pow(_BASE, self._n - 1, 2**64))
        entries = (hashes & np.uint64(_MASK)).astype(np.int64)
        self._n_used += self._count_free(entries)
        # where an n-gram occurs more than once, numpy assigns the last
        self._entries[entries] = text[first + self._n :].astype(np.int64) | self._era << 32

    def _count_free(self, entries: np.ndarray) -> int:
        """How many different ones of `entries` are free, which are scribbled on."""
        free = entries[self._entries[entries] >> 32 != self._era]
        marks = np.arange(len(free))
        self._entries[free] = marks
        return int(np.count_nonzero(self._entries[free] == marks))

    def follow(self, ngram: np.ndarray, n_max: int) -> list[int]:
        """The up to `n_max` tokens that follow `ngram` (n,) int32, each looked up with the n before it."""
        tokens = ngram.tolist()
        entry = 0
        for token in tokens:
            entry = (entry * _BASE + token) & _MASK
        for i in range(n_max):
            found = self._view[entry]
            if found >> 32 != self._era:
                break
            token = found & 0xFFFFFFFF
            entry = ((entry - tokens[i] * self._top) * _BASE + token) & _MASK
            tokens.append(token)
        return tokens[self._n :]
