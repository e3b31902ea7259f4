"""The caller's end of a request: iterate it, wait for it, cancel it."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from augury.types import Result, Token

__all__ = ["Running"]


class Running:
    """A request that was submitted. Its methods may be called from any thread.

    Iterating yields every token once, as it comes; an iterator that is given up cancels the request.
    """

    def __init__(self) -> None:
        self.is_cancelled = False  # read by the loop before every round
        self._pieces: queue.SimpleQueue[Token | None] = queue.SimpleQueue()  # None: no more will come
        self._is_done = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Token]:
        try:
            while (piece := self._pieces.get()) is not None:
                yield piece
            self._pieces.put(None)  # for whoever iterates again
            if self._error is not None:
                raise self._error
        finally:
            self.cancel()

    def result(self) -> Result:
        """Wait for the end; of a cancelled request, what it had come to.

        Raises:
            AuguryError: The request failed.
        """
        try:
            self._is_done.wait()
        except BaseException:  # Ctrl-C while waiting: nobody will ask again
            self.cancel()
            raise
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    @property
    def is_done(self) -> bool:
        """Whether the request has ended."""
        return self._is_done.is_set()

    def cancel(self) -> None:
        """End the request after the round in progress; no effect on one that has ended."""
        self.is_cancelled = True

    # The engine's side

    def deliver(self, piece: Token) -> None:
        """Pass on a token."""
        self._pieces.put(piece)

    def finish(self, result: Result | None, error: BaseException | None = None) -> None:
        """Say that it is over."""
        self._result, self._error = result, error
        self._is_done.set()
        self._pieces.put(None)
