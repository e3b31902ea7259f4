"""Answered requests, kept on disk with hidden states: `augury learn` trains a head on them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.files.atomic_file import locked
from augury.log import get_logger
from augury.plugins.learn import head, hidden_states

if TYPE_CHECKING:
    from augury import Engine

_NEWEST, _BEFORE = "requests.jsonl", "requests-before.jsonl"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows opens no folders, so that `add` keeps nothing there, and says so
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINK
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | _NO_LINK
_N_BYTES = 64 << 20  # in all, some ten million tokens
_PART = ".part"
_N_HEADER = 144  # bytes of such a file beside its numbers


class Collection:
    """The folder of `--collect`: each request is a line of JSON with the tokens of its prompt and answer.

    The newest are in `requests.jsonl`. At half of the limit that file replaces `requests-before.jsonl`, and the oldest requests
    are gone. Hidden states lie beside them, in a file for each request; of these, too, the oldest go first. Only the owner may
    read them. Several servers may share a folder. A link in place of a file, or of the folder once the server runs, is not
    followed.
    """

    def __init__(self, folder: Path, n_states_bytes: int = 0) -> None:
        """Keep requests in a folder that exists, and at most so many bytes of hidden states."""
        self._folder, self._is_refused, self._n_states_bytes = folder, False, n_states_bytes

    def states_of(self, engine: Engine, params: Mapping[str, Any]) -> hidden_states.HiddenStates | None:
        """What a request with these arguments of `submit` is to tell beside its tokens; None where none is kept."""
        if not self._n_states_bytes or "lora" in params:
            return None
        columns = head.columns_of(engine.info.n_layers)
        is_told = not {*columns} - {*engine.hidden_state_names}
        return hidden_states.HiddenStates(columns, engine.info.n_embd) if is_told else None

    def add(self, tokens: Sequence[int], states: hidden_states.HiddenStates | None = None) -> None:
        """Keep a request; called on any thread. Where the disk refuses it is not kept, and the first time a warning says so."""
        text = np.array(tokens, np.int32)
        rows = None if states is None else states.of(text, states.first)
        line = (json.dumps({"tokens": tokens}, separators=(",", ":")) + "\n").encode()
        try:
            folder = os.open(self._folder, _FOLDER)
            try:
                locked(folder, waits=True)
                _append(folder, line)
                if rows is not None and len(rows):
                    _add_rows(folder, f"{hidden_states.Piece(text).name}.npy", rows, self._n_states_bytes)
            finally:
                os.close(folder)
            self._is_refused = False
        except OSError as error:
            if not self._is_refused:
                get_logger("augury.server").warning("requests cannot be kept", folder=str(self._folder), error=str(error))
            self._is_refused = True


def _add_rows(folder: int, name: str, rows: np.ndarray, n_most: int) -> None:
    """Keep the hidden states of a request, and of the others the newest that have room in `n_most` bytes."""
    with suppress(FileExistsError):
        os.mkdir(hidden_states.STATES, 0o700, dir_fd=folder)
    states = os.open(hidden_states.STATES, _FOLDER, dir_fd=folder)
    try:
        with suppress(FileNotFoundError):
            os.unlink(_PART, dir_fd=states)  # of a server that was killed
        with os.scandir(states) as entries:
            found = [(each.name, each.stat(follow_symlinks=False)) for each in entries]
        n_bytes = rows.nbytes + _N_HEADER + sum(status.st_size for _, status in found)
        for old, status in sorted(found, key=lambda each: each[1].st_mtime_ns):
            if n_bytes > n_most:
                os.unlink(old, dir_fd=states)
                n_bytes -= status.st_size
        if n_bytes > n_most:
            return
        file = os.open(_PART, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600, dir_fd=states)
        with os.fdopen(file, "r+b") as out:
            hidden_states.write_rows(out, rows)
        os.rename(_PART, name, src_dir_fd=states, dst_dir_fd=states)
    finally:
        os.close(states)


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
