"""The process around the app: its sockets and connections, its log, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from augury.cli import configure_logging, say
from augury.errors import AuguryError, OptionError
from augury.plugins.server.app import make_app
from augury.plugins.server.models import Models

if TYPE_CHECKING:
    from types import FrameType

_BACKLOG = 1024  # clients that the system lets wait
_N_ACCEPTED = 4  # of them at once: asyncio accepts as many as wait before the first is told that there are too many
_LAST_WORDS_S = 2.0  # for telling a client that its time is over
_MOST = 4096  # in addition to the system's limit
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, before a model is loaded for nothing.

    Raises:
        AuguryError: The address is taken, or none of this machine's.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise AuguryError(f"cannot listen on {host} port {port}: {error}; choose another with --host and --port") from None


def _log_requests(verbosity: int) -> None:
    """Let uvicorn log as augury does: each request by its method, path and status, never by its content."""
    configure_logging(verbosity=verbosity)
    ours, theirs = logging.getLogger("augury"), logging.getLogger("uvicorn")
    theirs.handlers[:], theirs.propagate = ours.handlers, False
    theirs.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)


def _process(models: Models, config: uvicorn.Config) -> uvicorn.Server:
    """uvicorn's, which would cut off running requests at the end of the shutdown's time without a word to clients."""

    class Process(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for listener in sockets or ():
                listener.listen(_BACKLOG)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if is_hurried.is_set():  # a third one: something holds the process, such as a plugin's call that never returns
                os._exit(128 + sig)
            elif self.should_exit:
                is_hurried.set()
            else:
                super().handle_exit(sig, frame)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending = asyncio.create_task(self._end_requests())
            await super().shutdown(sockets)
            ending.cancel()

        async def _end_requests(self) -> None:
            """End what still runs when its time is over, or at a second signal."""
            models.events.end()
            with suppress(TimeoutError):
                await asyncio.wait_for(is_hurried.wait(), models.options.shutdown_timeout_s)
            ending = (models.end_requests(), asyncio.sleep(_LAST_WORDS_S))  # the first may take as long as a round
            await asyncio.wait([*map(asyncio.create_task, ending)], timeout=_LAST_WORDS_S)
            for connection in list(self.server_state.connections):
                connection.transport.abort()

    is_hurried = asyncio.Event()
    return Process(config)


def serve(models: Models, listeners: list[socket.socket], *, verbosity: int) -> None:
    """Serve until a signal says to end."""
    _log_requests(verbosity)
    options = models.options
    config = uvicorn.Config(
        make_app(models),
        http=partial(  # type: ignore[arg-type] # of h11
            # the app answers late requests while it reads; a client that goes on after an answer is cut off
            Connection,
            head_s=options.patience_s,
            body_s=options.body_s + _LAST_WORDS_S,
            read_s=options.timeout_s,
        ),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=verbosity > 0,
        server_header=False,
        ssl_keyfile=options.ssl_key_file,
        ssl_certfile=options.ssl_cert_file,
        backlog=_N_ACCEPTED,
    )
    try:
        config.load()
    except ssl.SSLError as error:
        files = f"--ssl-cert-file {options.ssl_cert_file} and --ssl-key-file {options.ssl_key_file}"
        raise OptionError(f"{files} are not a certificate and its private key, as PEM: {error.reason or error}") from None
    process = _process(models, config)
    scheme = "https" if config.is_ssl else "http"
    addresses = [listener.getsockname()[:2] for listener in listeners]
    models.url = " and ".join(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in addresses)
    models.on_failure = lambda: setattr(process, "should_exit", True)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as after `nohup`
        signal.signal(signal.SIGHUP, process.handle_exit)  # uvicorn takes care of the other two
    with suppress(KeyboardInterrupt, SystemExit):  # uvicorn raises the signal once more when all is done
        process.run(sockets=listeners)
    if models.failure is None:
        say("the server has ended")


def most_connections() -> int:
    """How many clients may be connected: three of four descriptors that the process may have, 4096 at most."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _MOST
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
