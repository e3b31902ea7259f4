"""uvicorn's connection, with limits on how long a client may keep it waiting, and on how many there are.

Each connection holds a file descriptor.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST = 4096  # in addition to the system's limit
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def most_connections() -> int:
    """How many clients may be connected: three of four descriptors that the process may have, 4096 at most."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if limit == resource.RLIM_INFINITY else min(limit * 3 // 4, _MOST)


class Connection(H11Protocol):
    """Ends when a client takes too long: for the head of a request, for its whole body, or to read.

    uvicorn itself limits only the time until the first byte of a connection's next request. Where there are too many
    connections, the one ends whose client keeps it waiting longest for a request; if none does, the new one gets 503.
    """

    def __init__(self, *args: Any, head_s: float, body_s: float, read_s: float, **kwargs: Any) -> None:
        """Limit the seconds of each."""
        super().__init__(*args, **kwargs)
        self._seconds = {"head": head_s, "body": body_s, "read": read_s}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.since = 0.0  # when it began to wait for a request

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a request, or for the rest of one."""
        return "head" in self._timers or "body" in self._timers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Wait for a request, if there is room for one more connection."""
        super().connection_made(transport)
        if (connected := transport.get_extra_info("socket")) is not None:
            # asyncio does so for sockets that name their protocol, which those it accepts do not
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.since = self.loop.time()
        self._wait_for("head")
        if len(self.connections) > most_connections():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Stop waiting for a part that is complete."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.since = self.loop.time()
        super().on_response_complete()
        self._watch()

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
        for what in self._seconds:
            self._stop_waiting(what)

    def _watch(self) -> None:
        for what, state in (("head", h11.IDLE), ("body", h11.SEND_BODY)):
            if self.conn.their_state is state:
                self._wait_for(what)
            else:
                self._stop_waiting(what)

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        if waiting := [each for each in others if each.is_waiting]:
            oldest = min(waiting, key=lambda each: each.since)
            self.connections.discard(oldest)  # at once: it is lost later, and others may come before
            oldest.transport.abort()
        else:
            self.transport.write(_FULL)
            self.transport.close()

    def _wait_for(self, what: str) -> None:
        if what not in self._timers:
            self._timers[what] = self.loop.call_later(self._seconds[what], self.transport.abort)

    def _stop_waiting(self, what: str) -> None:
        if (timer := self._timers.pop(what, None)) is not None:
            timer.cancel()
