"""Text files that a user names: reads them, and checks early that they can be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO

from augury.errors import AuguryError

__all__ = ["check_writable", "read_text"]

_MAX_SIZE = 2**28  # bytes of a file, or characters of standard input: several times what the longest contexts hold


def read_text(source: str | Path | TextIO) -> str:
    """The text of a file, without a byte order mark, or of standard input.

    Raises:
        AuguryError: It cannot be read, or is larger than any prompt; devices such as /dev/zero have no end.
    """
    name = source if isinstance(source, str | Path) else "standard input"
    try:
        if isinstance(source, str | Path):
            with Path(source).open(encoding="utf-8-sig") as file:
                text = file.read(_MAX_SIZE + 1)
        else:
            text = source.read(_MAX_SIZE + 1)
    except UnicodeDecodeError:
        raise AuguryError(f"{name}: not text in UTF-8") from None
    except OSError as error:
        raise AuguryError(f"{name}: {error.strerror or error}") from None
    if len(text) > _MAX_SIZE:
        raise AuguryError(f"{name}: larger than {_MAX_SIZE >> 20} MiB, more than any context holds; give a smaller prompt")
    return text


def check_writable(path: Path, flag: str) -> None:
    """Check, before minutes of work, that a file can be written.

    Raises:
        AuguryError: It cannot.
    """
    if not path.parent.is_dir():
        raise AuguryError(f"{flag}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise AuguryError(f"{flag}: {path} is not a file, expected the name of one")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise AuguryError(f"{flag}: {path} is not writable; choose another place")
