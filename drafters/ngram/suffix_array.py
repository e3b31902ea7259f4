"""Texts sorted by the context before each token: a growing suffix array of the reversed texts."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

_N_NEIGHBOURS = 6  # looked at on either side in each part: enough to tell frequent from rare
_MIN_RECENT = 1024
_FEW = 32  # tokens that are quicker added one by one


class SuffixArray:
    """Every token's context, up to `depth` tokens backwards, in the order of contexts.

    Contexts that agree with a given one in their last p tokens stand side by side, and the nearest ones agree longest: a binary
    search replaces the walk down a suffix tree. A context is a string of bytes, last token first, so that sorting and searching
    are the interpreter's own. New contexts go to a second, smaller array, which is merged into the first when it has grown to
    an eighth of it: O(1) amortised copies per token.

    Beyond `n_max` tokens the older half is forgotten.
    """

    def __init__(self, depth: int, n_max: int) -> None:
        self._depth = depth
        self._n_max = n_max
        self._tokens = np.empty(1024, dtype=np.int32)
        self._n = 0
        self._start = 0  # of the text that grows
        self._sorted: list[bytes] = []
        self._recent: list[bytes] = []
        self._key = b""  # the context of the token that comes next

    def __len__(self) -> int:
        return self._n

    @property
    def tokens(self) -> np.ndarray:
        """All texts, (t,) int32, with -1 in front of each; a view that the next change may outdate."""
        return self._tokens[: self._n]

    def begin(self) -> None:
        """Start another text."""
        self._append(np.array([-1], dtype=np.int32))
        self._start = self._n
        self._key = bytes(4 * self._depth)

    def extend(self, tokens: np.ndarray) -> None:
        """Append (t,) int32 tokens to the current text."""
        first = self._n
        self._append(tokens)
        if self._n - first < _FEW:
            for position, token in enumerate(tokens.tolist(), first):
                insort(self._recent, self._key + position.to_bytes(4))
                self._key = (token + 1).to_bytes(4) + self._key[:-4]
        else:
            self._recent += self._entries(first, self._n)
            self._recent.sort()
            end = self._tokens[max(self._n - self._depth, self._start) : self._n]
            self._key = (end[::-1] + 1).astype(">u4").tobytes().ljust(4 * self._depth, b"\0")
        if self._n > self._n_max:
            self._forget()
        elif (n_recent := len(self._recent)) > _MIN_RECENT and n_recent > len(self._sorted) // 8:
            self._sorted += self._recent  # two sorted runs: sorting is one merge
            self._sorted.sort()
            self._recent = []

    @property
    def ending(self) -> tuple[bytes, int]:
        """The end of the current text: a context, and of how many tokens."""
        return self._key, min(self._n - self._start, self._depth)

    @contextmanager
    def guessed(self, tokens: np.ndarray) -> Iterator[None]:
        """Let (t,) int32 tokens be the current text's next ones, until the context is left."""
        n, key, places = self._n, self._key, []
        try:
            self._append(tokens)
            for position, token in enumerate(tokens.tolist(), n):
                entry = self._key + position.to_bytes(4)
                insort(self._recent, entry)
                places.append(entry)
                self._key = (token + 1).to_bytes(4) + self._key[:-4]
            yield
        finally:
            for entry in places:
                del self._recent[bisect_left(self._recent, entry)]
            self._n, self._key = n, key

    def matches(self, ending: tuple[bytes, int] | None = None) -> list[tuple[int, int]]:
        """The other places in texts that agree with the current one's end, in at least half of the longest match.

        Args:
            ending: That of another array of the same depth, to be looked up instead.

        Returns:
            Lengths, in tokens, at most the depth, and positions of the token after; longest first, of equals latest first.
        """
        key, n_held = ending or self.ending
        size, wanted = 4 * self._depth, int.from_bytes(key)
        found: list[tuple[int, int]] = []
        for entries in filter(None, (self._sorted, self._recent)):
            at = bisect_left(entries, key)
            found += _agreeing(entries[at : at + _N_NEIGHBOURS], size, wanted, n_held)
            found += _agreeing(entries[max(at - _N_NEIGHBOURS, 0) : at][::-1], size, wanted, n_held)
        found.sort(reverse=True)
        return [match for match in found if 2 * match[0] >= found[0][0]]

    def _append(self, tokens: np.ndarray) -> None:
        end = self._n + len(tokens)
        if end > len(self._tokens):
            self._tokens = np.concatenate([self.tokens, np.empty(max(end, len(self._tokens)), dtype=np.int32)])
        self._tokens[self._n : end] = tokens
        self._n = end

    def _entries(self, first: int, last: int) -> list[bytes]:
        """Context and position of the tokens `first` to `last` - 1, all of one text."""
        depth = self._depth
        start = max(first - depth, self._start)
        texts = np.zeros(last - first + depth, dtype=">u4")  # 0 is nothing, tokens count from 1
        texts[depth - (first - start) :] = self._tokens[start:last] + 1
        contexts = np.lib.stride_tricks.sliding_window_view(texts[::-1], depth)[1:][::-1]
        rows = np.empty((last - first, depth + 1), dtype=">u4")
        rows[:, :depth] = contexts
        rows[:, depth] = np.arange(first, last)
        data, size = rows.tobytes(), 4 * (depth + 1)
        return [data[i : i + size] for i in range(0, len(data), size)]

    def _forget(self) -> None:
        """Keep the newer half."""
        kept = self.tokens[-(self._n_max // 2) :].copy()
        starts = [0, *(np.flatnonzero(kept < 0) + 1).tolist()]
        self._n, self._sorted, self._recent = 0, [], []
        self._append(kept)
        for start, end in zip(starts, [*(start - 1 for start in starts[1:]), len(kept)], strict=True):
            self._start = start
            self._sorted += self._entries(start, end)
        self._sorted.sort()


def _agreeing(entries: Iterable[bytes], size: int, wanted: int, n_held: int) -> list[tuple[int, int]]:
    """Lengths and positions of `entries`, which agree less and less with a context of `n_held` tokens, while they do."""
    found: list[tuple[int, int]] = []
    for entry in entries:
        length = min((8 * size - (int.from_bytes(entry[:size]) ^ wanted).bit_length()) // 32, n_held)
        if not length or (found and 2 * length < found[0][0]):
            break
        found.append((length, int.from_bytes(entry[size:])))
    return found
