"""Where n-grams occurred in a text that grows, and which token followed them last: by hashes of n tokens."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import numpy as np

from augury.options import option


def size_option(default: int, drafter: str, letter: str, text: str) -> Any:
    """The option of a drafter for one of its lengths, `n` or `m`."""
    aliases = (f"spec-{drafter}-size-{letter}", f"spec-ngram-size-{letter}")
    return option(default, help=text, ge=1, le=1024, aliases=aliases)


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


# llama.cpp's hash is a polynomial in 2654435761 with the first token in front, of which its table of 2^18 entries uses the low
# bits. Here the last token is in front, hence the inverse; a factor of B^(n-1) remains, which only renames the entries.
_FIRST_BASE = pow(2654435761, -1, 2**64)
_N_FIRST_ENTRIES = 1 << 18


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
        self._starts = np.zeros(_N_FIRST_ENTRIES, dtype=np.int32)  # 0: free
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
        entry = int(window_hashes(ngram, self._n, _FIRST_BASE)[0]) & (_N_FIRST_ENTRIES - 1)
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
        hashes = window_hashes(text[first : last + self._n], self._n, _FIRST_BASE)
        return (hashes & np.uint64(_N_FIRST_ENTRIES - 1)).astype(np.int64)

    def _insert(self, entries: np.ndarray, first: int) -> None:
        """Take the entries that are free; of several starts that want one, numpy assigns the last."""
        starts = np.arange(first, first + len(entries), dtype=np.int32)
        is_free = self._starts[entries] == 0
        self._starts[entries[is_free]] = starts[is_free]


# llama.cpp's hash: the n-gram as a number in this base (Knuth's MMIX multiplier), modulo the number of entries
_POOL_BASE = 6364136223846793005
_POOL_INVERSE = pow(_POOL_BASE, -1, 2**64)
_N_POOL_ENTRIES = 1 << 22
_POOL_MASK = _N_POOL_ENTRIES - 1


class NgramPool:
    """From the hash of n tokens to the token after them; two n-grams with one hash overwrite each other.

    An entry is a token and, in the high half, the era that it was written in: emptying the pool starts a new era, which takes
    no time, and memory that was never written to is never touched.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._top = pow(_POOL_BASE, n - 1, _N_POOL_ENTRIES)  # weight of an n-gram's first token
        self._entries = np.zeros(_N_POOL_ENTRIES, dtype=np.int64)
        self._view = self._entries.data  # reads single entries faster than the array
        self._era = 1
        self._n_used = 0
        self._writer: object = None  # the writer of all entries, from the beginning of a text on

    @property
    def fill(self) -> float:
        """Share of the entries that are in use."""
        return self._n_used / _N_POOL_ENTRIES

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
        hashes = window_hashes(text[first:-1], self._n, _POOL_INVERSE) * np.uint64(pow(_POOL_BASE, self._n - 1, 2**64))
        entries = (hashes & np.uint64(_POOL_MASK)).astype(np.int64)
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
            entry = (entry * _POOL_BASE + token) & _POOL_MASK
        for i in range(n_max):
            found = self._view[entry]
            if found >> 32 != self._era:
                break
            token = found & 0xFFFFFFFF
            entry = ((entry - tokens[i] * self._top) * _POOL_BASE + token) & _POOL_MASK
            tokens.append(token)
        return tokens[self._n :]
