"""The first occurrences of n-grams in a growing text: a table of fixed size that keeps its entries."""

from __future__ import annotations

import numpy as np

from augury.drafters.ngram.index import window_hashes

# llama.cpp's hash is a polynomial in 2654435761 with the first token in front, of which its table of 2^18 entries uses the low
# bits. Here the last token is in front, hence the inverse; a factor of B^(n-1) remains, which only renames the entries.
_BASE = pow(2654435761, -1, 2**64)
_N_ENTRIES = 1 << 18


class NgramFirstTable:
    """One start per n-gram: the latest of the ones that were first indexed together.

    As in llama.cpp's `common_ngram_map`, whose finds these are: an entry is never replaced, so an n-gram keeps its start, and
    one whose entry another n-gram has taken is found among the starts that are new in this round only. A start is indexed once
    the n-gram and m more tokens come after it, the text's first token never. The prompt's starts come before all others,
    and those whose m-gram reaches beyond the prompt's end are left out.

    A round takes time only for its new tokens. The table is read in O(1); only where a prompt's n-grams collide is the prompt
    scanned, once, in the request's first round.
    """

    def __init__(self, n: int, m: int) -> None:
        self._n = n
        self._m = m
        self._starts = np.zeros(_N_ENTRIES, dtype=np.int32)  # 0: free
        self._n_prompt = 0
        self._last = 0  # starts up to here were indexed, or left out
        self._is_first = True  # no round has looked at the prompt yet

    def clear(self, prompt: np.ndarray) -> None:
        """Forget the text, and index the new one's `prompt` (p,) int32, where p may be 0."""
        if self._last:
            self._starts.fill(0)
        self._n_prompt = len(prompt)
        self._last = max(len(prompt) - self._n - self._m - 1, 0)
        self._is_first = True
        self._insert(self._entries(prompt, 1, self._last), 1)

    def find(self, text: np.ndarray, ngram: np.ndarray) -> int:
        """The start of `ngram` (n,) int32 in `text` (t,) int32, t ≥ 2n + m, or 0; new tokens of the text are then indexed."""
        end = len(text) - self._n - self._m - 1
        entry = int(window_hashes(ngram, self._n, _BASE)[0]) & (_N_ENTRIES - 1)
        key = ngram.tobytes()
        start = int(self._starts[entry])
        if start and (not self._is_at(text, start, key) or (start >= end and not self._is_first)):
            start = self._latest(text, key, np.arange(1, self._last + 1)) if self._is_first else 0
        first = max(self._last, self._n_prompt) + 1
        new = self._entries(text, first, end)
        if not start:
            start = self._latest(text, key, first + np.flatnonzero(new == entry))
        self._insert(new, first)
        self._last = max(self._last, end)
        self._is_first = False
        return start

    def _is_at(self, text: np.ndarray, start: int, key: bytes) -> bool:
        return text[start : start + self._n].tobytes() == key

    def _latest(self, text: np.ndarray, key: bytes, starts: np.ndarray) -> int:
        """The last of rising `starts` where the n-gram stands, or 0."""
        if len(starts) > self._n:  # a scan: narrow it down token by token
            for offset, token in enumerate(np.frombuffer(key, dtype=np.int32)):
                starts = starts[text[starts + offset] == token]
        return next((start for start in reversed(starts.tolist()) if self._is_at(text, start, key)), 0)

    def _entries(self, text: np.ndarray, first: int, last: int) -> np.ndarray:
        """The entries of the n-grams that start at `first` to `last`, (last - first + 1,) int64."""
        if last < first:
            return np.empty(0, dtype=np.int64)
        hashes = window_hashes(text[first : last + self._n], self._n, _BASE)
        return (hashes & np.uint64(_N_ENTRIES - 1)).astype(np.int64)

    def _insert(self, entries: np.ndarray, first: int) -> None:
        """Take the entries that are free; of several starts that want one, numpy assigns the last."""
        starts = np.arange(first, first + len(entries), dtype=np.int32)
        is_free = self._starts[entries] == 0
        self._starts[entries[is_free]] = starts[is_free]
