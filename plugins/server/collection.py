"""Answered requests, kept on disk: `augury learn` trains a head on them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path

from augury.log import get_logger

_N_BYTES = 64 << 20  # in all, some ten million tokens


class Collection:
    """The folder of `--collect`: each request is a line of JSON with the tokens of its prompt and answer.

    The newest are in `requests.jsonl`. At half of the limit that file replaces `requests-before.jsonl`, and the oldest requests
    are gone. Only the owner may read them. Several servers may share a folder.
    """

    def __init__(self, folder: Path) -> None:
        """Keep requests in a folder that exists."""
        self._folder, self._path, self._is_refused = folder, folder / "requests.jsonl", False

    def add(self, tokens: Sequence[int]) -> None:
        """Keep a request; called on any thread. Where the disk refuses it is not kept, and the first time a warning says so."""
        line = (json.dumps({"tokens": tokens}, separators=(",", ":")) + "\n").encode()
        try:
            lock = os.open(self._folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._append(line)
            finally:
                os.close(lock)
            self._is_refused = False
        except OSError as error:
            if not self._is_refused:
                get_logger("augury.server").warning("requests cannot be kept", folder=str(self._folder), error=str(error))
            self._is_refused = True

    def _append(self, line: bytes) -> None:
        n = self._path.stat().st_size if self._path.exists() else 0
        if n + len(line) > _N_BYTES // 2 and n:
            self._path.replace(self._folder / "requests-before.jsonl")
            n = 0
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(file, line) < len(line):  # the disk is full
                os.ftruncate(file, n)
                raise OSError(f"there is no room for {len(line)} bytes")
        finally:
            os.close(file)
