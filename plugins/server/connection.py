"""uvicorn's connection, with limits on how long a client may keep it waiting: each one holds a file descriptor."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection"]


class Connection(H11Protocol):
    """Ends when the head of a request takes longer than `head_s` seconds, or a client reads nothing for `read_s` seconds.

    uvicorn itself limits only the time until the first byte of a connection's next request. Bodies are limited elsewhere.
    """

    def __init__(self, *args: Any, head_s: float, read_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seconds = {"head": head_s, "read": read_s}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Wait for a request."""
        super().connection_made(transport)
        self._wait_for("head")

    def data_received(self, data: bytes) -> None:
        """Wait no longer once the head is complete."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for("head")
        else:
            self._stop_waiting("head")

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        super().pause_writing()
        self._wait_for("read")

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._stop_waiting("read")

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        super().connection_lost(exc)
        self._stop_waiting("head")
        self._stop_waiting("read")

    def _wait_for(self, what: str) -> None:
        if what not in self._timers:
            self._timers[what] = self.loop.call_later(self._seconds[what], self.transport.abort)

    def _stop_waiting(self, what: str) -> None:
        if (timer := self._timers.pop(what, None)) is not None:
            timer.cancel()
