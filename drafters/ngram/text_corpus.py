"""Texts of all requests of a process, kept in a file from one process to the next.

A file is a magic number, a version and a checksum of all that follows, then a digest of the vocabulary, and the texts as int32,
each after a -1, the oldest first.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from augury.drafters.ngram import MAX_CORPUS_TOKENS, SUFFIX_STATE, kernels
from augury.errors import ModelFileError, OptionError
from augury.files.atomic_file import AtomicFile
from augury.files.cache import checksum
from augury.log import get_logger

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

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
        lent: A `SUFFIX_STATE`, see `lend`.
    """

    def __init__(self, depth: int, n_max: int) -> None:
        self._n_max = n_max
        self._tokens = np.empty(1024, dtype=np.int32)
        self._n = 0
        self._sorted = np.empty(0, np.int32)
        self._recent = np.empty(_MIN_RECENT, np.int32)
        self._n_recent = 0
        self.ending = np.full(depth, -1, np.int32)
        self.lent = np.zeros((), SUFFIX_STATE)
        self._lent_at = int(self.lent.ctypes.data)  # to ask for an address takes long
        self._lent_arrays: tuple[np.ndarray, ...] = ()  # whose addresses are there

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
        self._tidy()

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

    def lend(self, n_more: int) -> int:
        """Hand the texts over to compiled drafts, with room for so many tokens, until `take_back`.

        Returns:
            The address of `lent`, where fields of the texts are set.
        """
        self._tokens, self._recent = _grown(self._tokens, self._n, n_more), _grown(self._recent, self._n_recent, n_more)
        arrays = self._tokens, self._sorted, self._recent, self.ending
        if not self._lent_arrays or any([one is not other for one, other in zip(arrays, self._lent_arrays, strict=True)]):  # noqa: C419
            self._lent_arrays = arrays
            for name, each in zip(("tokens", "sorted", "recent", "ending"), arrays, strict=True):
                self.lent[name], self.lent[f"n_{name}"] = each.ctypes.data, len(each)
        self.lent["n"], self.lent["n_used"] = self._n, self._n_recent
        return self._lent_at

    def take_back(self) -> None:
        """Go on with the tokens that were added."""
        self._n, self._n_recent = int(self.lent["n"]), int(self.lent["n_used"])
        self._tidy()

    def _insert(self, tokens: np.ndarray) -> None:
        first = self._n
        self._append(tokens)
        self._recent = _grown(self._recent, self._n_recent, len(tokens))
        kernels.extend(self._tokens, first, self._n, self._recent, self._n_recent, self.ending)
        self._n_recent += len(tokens)

    def _append(self, tokens: np.ndarray) -> None:
        self._tokens = _grown(self._tokens, self._n, len(tokens))
        self._n += len(tokens)
        self._tokens[self._n - len(tokens) : self._n] = tokens

    def _tidy(self) -> None:
        """Merge recent contexts into the others where they are many, or forget the older half of all."""
        if self._n > self._n_max:
            self._forget()
        elif self._n_recent > _MIN_RECENT and self._n_recent > len(self._sorted) // 8:
            self._sorted = self._merged(self._sorted, self._recent[: self._n_recent])
            self._n_recent = 0

    def _merged(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        merged = np.empty(len(first) + len(second), np.int32)
        kernels.merge(self._tokens, first, second, len(self.ending), merged)
        return merged

    def _forget(self) -> None:
        kept = self.tokens[-(self._n_max // 2) :].copy()
        self._n = self._n_recent = 0
        self._append(kept)
        self._sorted = np.flatnonzero(kept >= 0).astype(np.int32)
        kernels.sort(self._tokens, self._sorted, len(self.ending))


def _grown(array: np.ndarray, n: int, n_more: int) -> np.ndarray:
    """The array, or a longer copy where it has no room for so many numbers after the first n."""
    if n + n_more <= len(array):
        return array
    return np.concatenate([array[:n], np.empty(max(n_more, len(array)), np.int32)])


_LOG = "augury.drafters.suffix"
_HEAD = struct.Struct("<8sI16s")
_MAGIC = b"augury\0t"
_VERSION = 1
_DIGEST_SIZE = 16
_FIRST_TOKEN = _HEAD.size + _DIGEST_SIZE
_TOKEN_SIZE = 4
_SAVED_EVERY = 1 << 14  # learnt tokens: a killed process loses no more, unless they could not be saved
_WAIT_S = 10.0  # at close, for another process that saves; it may have been stopped
_PAUSE_S = 0.02
_MODE = 0o600  # of a new file: answers to all clients are no business of the machine's other users
_BEGINNING = np.array([-1], np.int32)


class TextCorpus:
    """A suffix array that all slots add to. Beyond `n_max` tokens the older half is forgotten, here and in the file.

    Several processes may have one file: each saves by adding to the file's tokens at that time. A new file is its owner's alone
    to read; one that is there keeps its permissions.
    """

    def __init__(self, path: Path, vocabulary: bytes, depth: int, n_max: int, *, learns: bool = True) -> None:
        """Start with the tokens of the file, if there is one.

        Args:
            path: The file.
            vocabulary: The digest of the meaning of tokens, see `vocabulary_digest`.
            depth: See `SuffixArray`.
            n_max: Tokens at most.
            learns: Whether it is to be saved, too; otherwise its folder may be read-only.

        Raises:
            ModelFileError: The file is damaged, or of another vocabulary.
            OptionError: There is no folder for it, or it learns and the folder is not writable.
        """
        if not path.parent.is_dir():
            raise OptionError(f"{path}: there is no folder {path.parent} for the corpus; make it, or choose another")
        if learns and not os.access(path.parent, os.W_OK):
            raise OptionError(
                f"{path}: {path.parent} is not writable, so the corpus could not be saved; choose another, or read it alone "
                "with corpus_learns=false"
            )
        self.texts = SuffixArray(depth, n_max)
        self._path, self._vocabulary, self._n_max = path, vocabulary, n_max
        self._new = np.empty(0, np.int32)  # texts that are not in the file, each after a -1
        self._n_until_save = _SAVED_EVERY
        held = self._newest(_read(path, vocabulary, n_max))
        for text in np.split(held, np.flatnonzero(held < 0))[1:]:
            self._add(text[1:])

    def learn(self, text: np.ndarray) -> None:
        """Add a text (t,) int32. The file has it when the engine closes, or after some more."""
        text = text[-(self._n_max // 2) :]
        self._add(text)
        self._new = self._newest(np.concatenate([self._new, _BEGINNING, text]))
        self._n_until_save -= 1 + len(text)
        if self._n_until_save <= 0:
            self._n_until_save = _SAVED_EVERY
            self._save(0, get_logger(_LOG).warning)

    def close(self) -> None:
        """Save the learnt tokens, after ten seconds at most for another process that saves.

        A file that cannot be written, or has ceased to be a corpus, stays, and the log has an error.
        """
        self._save(_WAIT_S, get_logger(_LOG).error)

    def _save(self, wait_s: float, log: Callable[..., object]) -> None:
        end = time.monotonic() + wait_s
        while len(self._new):
            try:
                self._write()
            except (OSError, ModelFileError) as error:
                if isinstance(error, BlockingIOError) and time.monotonic() < end:
                    time.sleep(_PAUSE_S)
                    continue
                log("the corpus could not be saved", path=str(self._path), reason=str(error), n_unsaved=len(self._new))
                return

    def _write(self) -> None:
        with AtomicFile(self._path.resolve(), waits=False) as out:  # no other process saves until this one is through
            texts = self._newest(np.concatenate([_read(self._path, self._vocabulary, self._n_max), self._new]))
            body = self._vocabulary + texts.tobytes()
            if hasattr(os, "fchmod"):
                os.fchmod(out.file.fileno(), _MODE)
            out.file.write(_HEAD.pack(_MAGIC, _VERSION, checksum(BytesIO(body), len(body))) + body)
            out.publish(is_durable=True)
        self._new = np.empty(0, np.int32)

    def _add(self, text: np.ndarray) -> None:
        self.texts.begin()
        self.texts.extend(text)

    def _newest(self, texts: np.ndarray) -> np.ndarray:
        """The last texts of several, as many as there is room for."""
        kept = texts[-self._n_max :]
        return kept[next(iter(np.flatnonzero(kept < 0)), len(kept)) :]


def vocabulary_digest(tokenizer: Tokenizer | None, n_vocab: int) -> bytes:
    """16 bytes that tell vocabularies apart; without a tokenizer their sizes alone."""
    texts = [str(n_vocab)] if tokenizer is None else map(tokenizer.text, range(tokenizer.n_vocab))
    data = "\0".join(texts).encode("utf-8", "surrogateescape")
    return checksum(BytesIO(data), len(data))


def _read(path: Path, vocabulary: bytes, n_max: int) -> np.ndarray:
    """The last texts of a file, (t,) int32 with t up to `n_max`, each after a -1; none where there is no file.

    Raises:
        ModelFileError: It cannot be read, is damaged, or of another vocabulary.
    """
    try:
        if not path.exists():
            return np.empty(0, np.int32)
        if not path.is_file():
            raise ModelFileError(f"{path}: is not a file, expected a corpus of the drafter suffix, or none yet")
        with path.open("rb") as file:
            _check(path, file, vocabulary)
            n = (os.fstat(file.fileno()).st_size - _FIRST_TOKEN) // _TOKEN_SIZE
            file.seek(_FIRST_TOKEN + _TOKEN_SIZE * max(n - n_max, 0))
            return np.frombuffer(file.read(_TOKEN_SIZE * n_max), np.int32)
    except OSError as error:
        raise ModelFileError(f"{path}: the corpus could not be read: {error.strerror}") from error


def _check(path: Path, file: BinaryIO, vocabulary: bytes) -> None:
    """Check a file, which may be another one of any size.

    Raises:
        ModelFileError: It is no corpus, is damaged, or of another vocabulary.
    """
    head = file.read(_HEAD.size)
    magic, version, stated = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, b"")
    if magic != _MAGIC:
        raise ModelFileError(f"{path}: is no corpus of the drafter suffix; choose another name")
    if version != _VERSION:
        raise ModelFileError(
            f"{path}: is a corpus of version {version}, expected {_VERSION}; remove it, or choose another name"
        )
    n_bytes = os.fstat(file.fileno()).st_size - _HEAD.size
    is_whole = n_bytes % _TOKEN_SIZE == 0 and 0 <= n_bytes - _DIGEST_SIZE <= _TOKEN_SIZE * MAX_CORPUS_TOKENS
    if not is_whole or checksum(file, n_bytes) != stated:
        what = "checksum" if is_whole else "size"
        raise ModelFileError(f"{path}: is a damaged corpus, its {what} is wrong; remove it, or choose another name")
    file.seek(_HEAD.size)
    if file.read(_DIGEST_SIZE) != vocabulary:
        raise ModelFileError(f"{path}: is a corpus of another vocabulary than this model's; choose another name")
