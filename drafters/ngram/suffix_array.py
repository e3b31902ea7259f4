"""Texts sorted by the context before each token: a growing suffix array of the reversed texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from augury.drafters.ngram import kernels

_MIN_RECENT = 1024
_FEW = 32  # tokens that are quicker added one by one
_N_FOUND = 24  # of `kernels.find`


class SuffixArray:
    """Every token's context, up to `depth` tokens backwards, in the order of contexts.

    Contexts that agree with a given one in their last p tokens stand side by side, and the nearest ones agree longest: a binary
    search replaces the walk down a suffix tree. New contexts go to a second, smaller order, which is merged into the first when
    it has grown to an eighth of it: O(1) amortised copies per token.

    Beyond `n_max` tokens the older half is forgotten.

    Attributes:
        ending: (depth,) int32, the last tokens of the current text, the last one first; -1 from its beginning on.
    """

    def __init__(self, depth: int, n_max: int) -> None:
        self._n_max = n_max
        self._tokens = np.empty(1024, dtype=np.int32)
        self._n = 0
        self._sorted = np.empty(0, np.int32)
        self._recent = np.empty(_MIN_RECENT, np.int32)
        self._n_recent = 0
        self.ending = np.full(depth, -1, np.int32)

    def __len__(self) -> int:
        return self._n

    @property
    def tokens(self) -> np.ndarray:
        """All texts, (t,) int32, with -1 in front of each; a view that the next change may outdate."""
        return self._tokens[: self._n]

    def begin(self) -> None:
        """Start another text."""
        self._append(np.array([-1], dtype=np.int32))
        self.ending[:] = -1

    def extend(self, tokens: np.ndarray) -> None:
        """Append (t,) int32 tokens to the current text."""
        if len(tokens) < _FEW:
            self._insert(tokens)
        else:
            new = np.arange(self._n, self._n + len(tokens), dtype=np.int32)
            self._append(tokens)
            kernels.sort(self._tokens, new, len(self.ending))
            self._recent = self._merged(self._recent[: self._n_recent], new)
            self._n_recent = len(self._recent)
            last = tokens[: -len(self.ending) - 1 : -1]
            self.ending[len(last) :] = self.ending[: len(self.ending) - len(last)].copy()
            self.ending[: len(last)] = last
        if self._n > self._n_max:
            self._forget()
        elif self._n_recent > _MIN_RECENT and self._n_recent > len(self._sorted) // 8:
            self._sorted = self._merged(self._sorted, self._recent[: self._n_recent])
            self._n_recent = 0

    @contextmanager
    def guessed(self, tokens: np.ndarray) -> Iterator[None]:
        """Let (t,) int32 tokens be the current text's next ones, until the context is left."""
        n, ending = self._n, self.ending.copy()
        try:
            self._insert(tokens)
            yield
        finally:
            self._n_recent = kernels.cut(self._recent, self._n_recent, n)
            self._n, self.ending = n, ending

    def find(self, ending: np.ndarray) -> tuple[np.ndarray, int]:
        """The places in texts that agree with an ending, in at least half of the longest match.

        Args:
            ending: That of this array, or of another one of the same depth.

        Returns:
            Lengths, in tokens, at most the depth, and positions of the token after, (2, 24) int32, longest first, of equals
            latest first; and how many of them there are.
        """
        found = np.empty((2, _N_FOUND), np.int32)
        return found, kernels.find(self._tokens, self._sorted, self._recent, self._n_recent, ending, found)

    def _insert(self, tokens: np.ndarray) -> None:
        first, n_recent = self._n, self._n_recent + len(tokens)
        self._append(tokens)
        if n_recent > len(self._recent):
            self._recent = np.concatenate([self._recent, np.empty(n_recent, np.int32)])
        kernels.extend(self._tokens, first, self._n, self._recent, self._n_recent, self.ending)
        self._n_recent = n_recent

    def _append(self, tokens: np.ndarray) -> None:
        end = self._n + len(tokens)
        if end > len(self._tokens):
            self._tokens = np.concatenate([self.tokens, np.empty(max(end, len(self._tokens)), dtype=np.int32)])
        self._tokens[self._n : end] = tokens
        self._n = end

    def _merged(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        merged = np.empty(len(first) + len(second), np.int32)
        kernels.merge(self._tokens, first, second, len(self.ending), merged)
        return merged

    def _forget(self) -> None:
        """Keep the newer half."""
        kept = self.tokens[-(self._n_max // 2) :].copy()
        self._n = self._n_recent = 0
        self._append(kept)
        self._sorted = np.flatnonzero(kept >= 0).astype(np.int32)
        kernels.sort(self._tokens, self._sorted, len(self.ending))
