"""The lines of a batch's input, read one by one: the file may be larger than memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from augury.errors import AuguryError, OptionError


@frozen
class Line:
    """A line of the input."""

    text: str
    where: str  # FILE:LINE
    id: str | int  # its `id` or `custom_id`, or else its number: no two lines have the same
    request: dict[str, Any] | None  # what it is where that is a request in OpenAI's form; else it is a prompt, or neither


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file that are not empty.

    Raises:
        AuguryError: It cannot be read.
    """
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield _line_of(text, f"{path}:{number}", number)
    except UnicodeDecodeError:
        raise AuguryError(f"{path}: not text in UTF-8 after line {number}") from None
    except OSError as error:
        raise AuguryError(f"{path}: {error.strerror or error}") from None


def ids_of(path: Path) -> dict[str | int, str]:
    """Where each id of a file stands.

    Raises:
        OptionError: Two lines have the same, or there is none.
        AuguryError: The file cannot be read.
    """
    places = dict[str | int, str]()
    for line in read_lines(path):
        if (other := places.setdefault(line.id, line.where)) != line.where:
            raise OptionError(
                f"{line.where} has the id {line.id!r} of {other}, expected another; answers are told apart by ids"
            )
    if not places:
        raise OptionError(f"{path} has no lines, expected a prompt in each")
    return places


def _line_of(text: str, where: str, number: int) -> Line:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # told when it is to be answered
        found = None
    fields = found if isinstance(found, dict) else {}
    request = fields if "custom_id" in fields else None
    id_ = fields.get("id" if request is None else "custom_id")
    return Line(text, where, id_ if isinstance(id_, str | int) and not isinstance(id_, bool) else number, request)
