"""Answered requests, kept on disk: `augury learn` trains a head on them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from augury.files.file_lock import locked
from augury.log import get_logger

_NEWEST, _BEFORE = "requests.jsonl", "requests-before.jsonl"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
_N_BYTES = 64 << 20  # in all, some ten million tokens


class Collection:
    """The folder of `--collect`: each request is a line of JSON with the tokens of its prompt and answer.

    The newest are in `requests.jsonl`. At half of the limit that file replaces `requests-before.jsonl`, and the oldest requests
    are gone. Only the owner may read them. Several servers may share a folder. A link in place of a file, or of the folder once
    the server runs, is not followed.
    """

    def __init__(self, folder: Path) -> None:
        """Keep requests in a folder that exists."""
        self._folder, self._is_refused = folder, False

    def add(self, tokens: Sequence[int]) -> None:
        """Keep a request; called on any thread. Where the disk refuses it is not kept, and the first time a warning says so."""
        line = (json.dumps({"tokens": tokens}, separators=(",", ":")) + "\n").encode()
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                locked(folder, waits=True)
                _append(folder, line)
            finally:
                os.close(folder)
            self._is_refused = False
        except OSError as error:
            if not self._is_refused:
                get_logger("augury.server").warning("requests cannot be kept", folder=str(self._folder), error=str(error))
            self._is_refused = True


def _append(folder: int, line: bytes) -> None:
    """Add a line to the newest requests; at half of the limit they become those before."""
    with _newest(folder) as file:
        n = os.fstat(file).st_size
        if n + len(line) <= _N_BYTES // 2 or not n:
            _write(file, line, n)
            return
    os.rename(_NEWEST, _BEFORE, src_dir_fd=folder, dst_dir_fd=folder)
    with _newest(folder) as file:
        _write(file, line, 0)


@contextmanager
def _newest(folder: int) -> Iterator[int]:
    """The file of the newest requests.

    Raises:
        OSError: Something else has its name: a link would lead to another file, and a pipe keep the server waiting.
    """
    file = os.open(_NEWEST, _FLAGS, 0o600, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(f"{_NEWEST} is a link, or no file; remove it")
        yield file
    finally:
        os.close(file)


def _write(file: int, line: bytes, n: int) -> None:
    """Add a whole line to a file of `n` bytes, or nothing."""
    if os.write(file, line) < len(line):  # the disk is full
        os.ftruncate(file, n)
        raise OSError(f"there is no room for {len(line)} bytes")
