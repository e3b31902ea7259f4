"""Text that a user gives as a file or on standard input, and an early check that a file can be written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from augury.errors import AuguryError, OptionError

_MAX_SIZE = 2**28  # characters of a text or of a line: several times the longest contexts


def read_text(source: str | Path | TextIO) -> str:
    """The text of a file, without a byte order mark, or of standard input. Raises AuguryError: it is none, or too large."""
    if not isinstance(source, str | Path):
        return _read(source.read, "standard input")
    try:
        with Path(source).open(encoding="utf-8-sig") as file:
            if os.fstat(file.fileno()).st_size > 4 * _MAX_SIZE:  # a character takes four bytes at most
                raise _too_large(str(source))
            return _read(file.read, str(source))
    except OSError as error:
        raise AuguryError(f"{source}: {error.strerror or error}") from None


def read_lines(stream: TextIO) -> Iterator[str]:
    """The lines of standard input as they come. Raises the errors of `read_text`."""
    while line := _read(stream.readline, "standard input"):
        yield line


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """The lines of a text that are not blank, with their numbers from 1 on."""
    # not `splitlines`: strings in JSON may hold characters that it takes for the end of a line
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def check_writable(path: Path, flag: str, *, over: tuple[str, bytes] | None = None) -> None:
    """Check, before minutes of work, that a file can be written; `over` is the one kind of file that it may replace.

    A kind is its name, and what is near its start. Raises AuguryError: the file cannot be written, or is of another kind.
    """
    if not path.parent.is_dir():
        raise AuguryError(f"{flag}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise AuguryError(f"{flag}: {path} is not a file, expected the name of one")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise AuguryError(f"{flag}: {path} is not writable; choose another place")
    if over is not None and path.exists() and path.stat().st_size:
        kind, start = over
        with path.open("rb") as file:
            if start not in file.read(1024):
                raise OptionError(f"{flag}: {path} exists and is no {kind}; it is left as it is, name another file")


def _read(read: Callable[[int], str], name: str) -> str:
    try:
        text = read(_MAX_SIZE + 1)
    except UnicodeDecodeError:
        raise AuguryError(f"{name}: not text in UTF-8") from None
    if len(text) > _MAX_SIZE:
        raise _too_large(name)
    return text


def _too_large(name: str) -> AuguryError:
    return AuguryError(f"{name}: larger than {_MAX_SIZE >> 20} MiB, more than any context holds; give less text")
