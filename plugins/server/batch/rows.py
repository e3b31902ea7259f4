"""The files of a batch: lines are read one by one, as they may be more than memory holds, and answers are added to rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, BinaryIO, Self

from attrs import frozen

from augury.errors import AuguryError, OptionError
from augury.files.atomic_file import locked

_SYNC_EVERY_S = 1.0


@frozen
class Line:
    """A line of the input."""

    text: str  # bytes that are no UTF-8 as surrogates, which nothing else in it is
    where: str  # FILE:LINE
    id: str | int  # its `id` or `custom_id`, or else its number: no two lines have the same
    request: dict[str, Any] | None  # what it is where that is a request in OpenAI's form; else it is a prompt, or neither


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file that are not empty. Raises AuguryError: it cannot be read."""
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield _line_of(text, f"{path}:{number}", number)
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


class RowFile:
    """Answers by id, a line of JSON each. A line is whole, or the last one and dropped when the file is opened again.

    Attributes:
        ids: Those that have an answer.
    """

    def __init__(self, path: Path) -> None:
        """Do nothing yet."""
        self.path = path
        self.ids = set[str | int]()
        self._synced_at = 0.0

    def __enter__(self) -> Self:
        """Open the file, made if it is not there.

        Raises:
            AuguryError: It cannot be written, another process does so, or it holds something else.
        """
        try:
            self._file: BinaryIO = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        except OSError as error:
            raise AuguryError(f"{self.path}: {error.strerror or error}") from None
        try:
            self._lock()
            self._file.truncate(self._read())
            self._file.seek(0, os.SEEK_END)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with self._file:
                self._sync()
        except OSError as found:
            if error is None:
                raise self._unwritten(found) from None

    def add(self, id_: str | int, row: Mapping[str, Any]) -> None:
        """Write an answer; a second later at the latest, with the next one, it survives a loss of power.

        Raises:
            AuguryError: It could not be written.
        """
        try:
            self._file.write(f"{json.dumps(row, ensure_ascii=False)}\n".encode("utf-8", "surrogatepass"))
            self._file.flush()
            if monotonic() - self._synced_at >= _SYNC_EVERY_S:
                self._sync()
        except OSError as error:
            raise self._unwritten(error) from None
        self.ids.add(id_)

    def _unwritten(self, error: OSError) -> AuguryError:
        return AuguryError(f"{self.path}: {error.strerror or error}; what is written stays, and the next run goes on")

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced_at = monotonic()

    def _lock(self) -> None:
        if locked(self._file) is False:
            raise AuguryError(f"{self.path}: another process is writing it; wait for its end, or name another file")

    def _read(self) -> int:
        """Learn which ids have an answer; the bytes of whole lines."""
        n_whole = 0
        for number, line in enumerate(self._file, start=1):
            try:
                row = json.loads(line)
                id_ = row["custom_id" if "custom_id" in row else "id"]
                self.ids.add(id_)
            except (ValueError, KeyError, TypeError, RecursionError):
                if self._file.read(1):
                    message = f"{self.path}:{number} is no answer of a batch; name another file, which is written anew"
                    raise AuguryError(message) from None
                break
            if not line.endswith(b"\n"):  # it may go on after what looks like its end
                self.ids.discard(id_)
                break
            n_whole += len(line)
        return n_whole
