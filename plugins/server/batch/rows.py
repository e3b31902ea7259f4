"""The file of a batch's answers: rows are added one by one, and what an earlier run has left is gone on with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, BinaryIO, Self

from augury.errors import AuguryError
from augury.files.file_lock import locked

_SYNC_EVERY_S = 1.0


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
        with self._file:
            self._sync()

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
            raise AuguryError(
                f"{self.path}: {error.strerror or error}; what is written stays, and the next run goes on"
            ) from None
        self.ids.add(id_)

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
