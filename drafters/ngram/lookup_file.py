"""Files with counts of n-grams and their followers, as llama.cpp's `llama-lookup-create` writes them.

A file is a sequence of records of int32, in the machine's byte order: the four tokens of an n-gram, -1 after the last of a
shorter one; the number of followers; of each follower its token and how often it was seen. The file does not name the
vocabulary of its tokens: a file that was made with another model's vocabulary is noticed only where it names tokens that this
one does not have.

Source: llama.cpp, `common/ngram-cache.cpp` and `common/ngram-cache.h`.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from struct import unpack

import numpy as np
from attrs import define, frozen

from augury.errors import ModelFileError, OptionError
from augury.files.atomic_file import AtomicFile
from augury.log import get_logger

_ONCE = 1 << 32  # a lone follower is kept as one number: its token, and in the high half how often it was seen
_TOKEN = _ONCE - 1


@define(eq=False)
class Followers:
    """The tokens that followed one n-gram."""

    counts: dict[int, int]  # how often each was seen
    n_seen: int  # the sum of that
    leader: int  # the most frequent one, of equals the lowest

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


MAX_NGRAM = 4
_HEAD = MAX_NGRAM + 1  # numbers of a record before its followers
_MAX_COUNT = 2**31 - 1
_CHUNK = 1 << 16  # records written at once
_PAIR = 2  # llama.cpp's LLAMA_NGRAM_STATIC: its corpora are counted by pairs


@frozen(eq=False)
class LookupTable:
    """The contents of a file, checked."""

    values: np.ndarray  # (v,) int32, the whole file
    starts: np.ndarray  # (r,) int64, where in `values` each record starts
    sizes: np.ndarray  # (r,) int64, tokens of each n-gram, 1 to 4

    def counts(self, start: int) -> dict[int, int]:
        """How often each follower was seen, of the record at `start` in `values`."""
        pairs = self.values[start + _HEAD : start + _HEAD + 2 * int(self.values[start + MAX_NGRAM])]
        return dict(zip(pairs[::2].tolist(), pairs[1::2].tolist(), strict=True))


class NgramCorpus:
    """The pairs of tokens of a file, and their followers, which stay as the file has them until they are asked for."""

    def __init__(self, table: LookupTable) -> None:
        self._table = table
        starts = table.starts[table.sizes == _PAIR]
        firsts, seconds = (table.values[starts + i].astype(np.uint64) for i in range(_PAIR))
        keys = firsts << np.uint64(32) | seconds
        order = np.argsort(keys, kind="stable")  # of pairs that occur twice the first counts, as in llama.cpp
        self._starts = starts[order]
        self._keys = keys[order].data  # bisect reads single numbers of it faster than of the array
        self._found: dict[bytes, Followers] = {}  # no more than there are pairs

    def get(self, pair: bytes) -> Followers | None:
        """The followers of `pair`, two int32 as bytes, or None."""
        if (found := self._found.get(pair)) is not None:
            return found
        first, second = unpack("=ii", pair)
        key = first << 32 | second
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            return None
        found = self._found[pair] = Followers.of(self._table.counts(int(self._starts[at])))
        return found


def read_lookup(path: Path, n_vocab: int) -> LookupTable:
    """Read a file; allocations are bounded by its size.

    Raises:
        ModelFileError: It is missing, unreadable, damaged, or names a token beyond `n_vocab`.
    """
    try:
        if not path.is_file():
            what = "is a folder, expected a lookup file" if path.is_dir() else "there is no such lookup file"
            raise ModelFileError(f"{path}: {what}")
        n_bytes = path.stat().st_size
        if n_bytes % 4:
            raise ModelFileError(f"{path}: is {n_bytes} bytes long, expected whole numbers of four bytes; it is no lookup file")
        # mapped until it is known to be such a file: another one may be larger than the memory
        values = np.memmap(path, np.int32, mode="r") if n_bytes else np.empty(0, np.int32)
        starts = _starts(path, values)
        values = np.array(values)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read as a lookup file: {error.strerror or error}") from error
    ngrams = values[starts[:, None] + np.arange(MAX_NGRAM)]
    sizes = (ngrams >= 0).sum(axis=1)
    is_wrong = (sizes == 0) | (ngrams != np.where(np.arange(MAX_NGRAM) < sizes[:, None], ngrams, -1)).any(axis=1)
    if is_wrong.any() or (ngrams < -1).any():
        at = int(starts[int((is_wrong | (ngrams < -1).any(axis=1)).argmax())])
        raise ModelFileError(f"{path}: the record at byte {4 * at} begins with no n-gram; the file is damaged")
    is_head = np.zeros(len(values), dtype=bool)
    is_head[starts[:, None] + np.arange(_HEAD)] = True
    tokens, counts = values[~is_head].reshape(-1, 2).T
    if (counts < 1).any() or (tokens < 0).any():
        raise ModelFileError(f"{path}: a follower has no token or no positive count; the file is damaged")
    largest = max(ngrams.max(initial=-1), tokens.max(initial=-1))
    if largest >= n_vocab:
        raise ModelFileError(
            f"{path}: names token {largest}, but the model has {n_vocab} tokens; the file was made with another vocabulary"
        )
    return LookupTable(values, starts, sizes)


def _starts(path: Path, values: np.ndarray) -> np.ndarray:
    """Where the records start, found by walking from each to the next."""
    starts = array("q")
    numbers = values.data  # reads single numbers faster than the array
    at, end = 0, len(values)
    while at < end:
        n_followers = numbers[at + MAX_NGRAM] if at + _HEAD <= end else 0
        if n_followers < 1 or at + _HEAD + 2 * n_followers > end:
            raise ModelFileError(f"{path}: the record at byte {4 * at} is cut off or has no followers; the file is damaged")
        starts.append(at)
        at += _HEAD + 2 * n_followers
    return np.array(starts, dtype=np.int64)


def write_lookup(path: Path, items: Iterable[tuple[bytes, Followers]]) -> None:
    """Write n-grams, as bytes of their tokens, and their followers; the file is replaced as a whole or not at all.

    Raises:
        OSError: It could not be written; the error names it.
    """
    with AtomicFile(path.resolve()) as out:
        numbers = array("i")
        for ngram, followers in items:
            tokens = array("i", ngram)
            numbers.extend(tokens)
            numbers.extend([-1] * (MAX_NGRAM - len(tokens)))
            numbers.append(len(followers.counts))
            for token, count in followers.counts.items():
                numbers.append(token)
                numbers.append(min(count, _MAX_COUNT))
            if len(numbers) > _CHUNK * _HEAD:
                out.file.write(numbers.tobytes())
                numbers = array("i")
        out.file.write(numbers.tobytes())
        out.publish(is_durable=True)


_N_MAX = 1_000_000  # n-grams: about 150 MB, and 300,000 generated tokens or more


class NgramPast:
    """Counts that all slots add to. Beyond a million n-grams the half that was seen least is forgotten."""

    def __init__(self, path: Path | None, n_vocab: int) -> None:
        """Start with the contents of the file at `path`, if there is one; it is written when the engine closes.

        Raises:
            ModelFileError: The file is damaged, or of another vocabulary.
            OptionError: There is no folder to write it to, or the folder is not writable.
        """
        self.counts = NgramCounts(MAX_NGRAM)
        self._path = path
        self._is_changed = False
        if path is None:
            return
        if not path.parent.is_dir():
            raise OptionError(f"{path}: there is no folder {path.parent} for the lookup file; make it, or choose another")
        if not os.access(path.parent, os.W_OK):
            raise OptionError(f"{path}: {path.parent} is not writable, so the lookup file could not be saved; choose another")
        if path.exists():
            self._load(path, n_vocab)

    def learn(self, text: np.ndarray, n_prompt: int) -> None:
        """Count the generated tokens, which are `text` (t,) int32 after the prompt."""
        if len(text) <= n_prompt:
            return
        self.counts.extend(text, n_prompt)
        self._is_changed = True
        if len(self.counts) > _N_MAX:
            self.counts.forget(_N_MAX // 2)

    def close(self) -> None:
        """Save the counts."""
        if self._path is None or not self._is_changed:
            return
        self._is_changed = False
        try:
            write_lookup(self._path, self.counts.items())
        except OSError as error:
            get_logger("augury.drafters.ngram_cache").error(
                "the lookup file could not be saved", path=str(self._path), reason=str(error)
            )

    def _load(self, path: Path, n_vocab: int) -> None:
        table = read_lookup(path, n_vocab)
        data = table.values.tobytes()
        for start, size in zip(table.starts.tolist(), table.sizes.tolist(), strict=True):
            ngram = data[4 * start : 4 * (start + size)]
            if self.counts.get(ngram) is None:
                self.counts.put(ngram, Followers.of(table.counts(start)))
        if len(self.counts) > _N_MAX:
            self.counts.forget(_N_MAX // 2)
