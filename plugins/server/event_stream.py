"""Answers piece by piece: as server-sent events, or as lines of JSON.

A stream that has nothing to send for long, while a prompt is processed or waits for a slot, sends keep-alives, so that proxies
and clients do not hang up. One that begins before its model is loaded tells how far that is: in comments, or in Ollama's lines
without text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from fastapi.sse import format_sse_event
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from augury.errors import AuguryError
from augury.plugins.server.errors import RequestError, as_request_error, error_body
from augury.plugins.server.fields import EngineFields
from augury.plugins.server.generation import Generation, Pieces, Until, do_nothing
from augury.plugins.server.server import Server, fields_of

STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
"""The responses, in the OpenAPI document, of routes that may answer by server-sent events."""
LINES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {}}}}
"""Those of routes that may answer by lines of JSON."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
PING = format_sse_event(comment="ping")
"""A keep-alive: clients ignore comments."""
_SOON_S = 1.0  # for which a stream waits before it begins, so that most errors have their status
_EVERY_S = 0.5  # progress is told so often
_OF_LINES: dict[str, dict[str, Any]] = {
    "/api/chat": {"message": {"role": "assistant", "content": ""}},
    "/api/generate": {"response": ""},
}


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event with JSON, or with a text as it is."""
    return format_sse_event(data_str=data if isinstance(data, str) else _encode(data), event=name)


def line(data: Any) -> bytes:
    """A line of JSON."""
    return _encode(data).encode() + b"\n"


class _EventStream(StreamingResponse):
    """Events, or lines: those of one round are sent together, which costs as little as one of them does.

    After so many seconds without one there is a keep-alive; 0 or less: never.
    """

    def __init__(
        self, generation: Generation, events: AsyncIterator[bytes], media_type: str, ping: bytes, interval_s: float
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second is for nginx
        super().__init__(events, media_type=media_type, headers=headers)
        self._generation, self._ping, self._interval_s, self._sent_at = generation, ping, interval_s, 0.0

    async def stream_response(self, send: Send) -> None:
        """Send it all."""
        time = asyncio.get_running_loop().time
        unsent = list[bytes]()

        async def send_now(message: Message) -> None:
            self._sent_at = time()
            await send(message)

        async def send_unsent() -> None:
            if unsent:
                body = b"".join(unsent)
                unsent.clear()
                await send_now({"type": "http.response.body", "body": body, "more_body": True})

        async def collect(message: Message) -> None:
            if message.get("more_body"):
                unsent.append(message["body"])
            else:
                await send_unsent()
                await send_now(message)

        self._generation.before_wait = send_unsent
        pinging = asyncio.create_task(self._keep_alive(send_now)) if self._interval_s > 0 else None
        try:
            await super().stream_response(collect)
        finally:
            self._generation.before_wait = do_nothing  # it would hold itself
            if pinging is not None:
                pinging.cancel()

    async def _keep_alive(self, send: Send) -> None:
        await asyncio.sleep(self._interval_s)
        with suppress(OSError):  # the client has gone, which the stream notices, too
            while True:
                left_s = self._sent_at + self._interval_s - asyncio.get_running_loop().time()
                if left_s <= 0:
                    await send({"type": "http.response.body", "body": self._ping, "more_body": True})
                await asyncio.sleep(max(left_s, 0.0))


async def stream(
    server: Server,
    http: Request,
    body: EngineFields,
    asked: Sequence[Mapping[str, Any]],
    events: Callable[[Pieces], AsyncIterator[bytes]],
    *,
    error_event: str | None = None,
    until: Until | None = None,
    ping: bytes = PING,
    has_progress: bool = False,
    as_lines: bool = False,
) -> StreamingResponse:
    """Answer what `Generation.begin` is asked by server-sent events. An error before the first is a status, later an event.

    `events` makes them of pieces, by `event`; an error's event is called `error_event`, `ping` is the keep-alive, and `until`
    says with which token an answer ends before its time. With `as_lines` they are lines of JSON instead, and so are errors;
    there is no keep-alive, which would be none. Pieces tell of progress with `has_progress`, or where the fields ask for it.
    """
    has_progress |= body.return_progress or body.timings_per_token or body.is_usage_continuous
    generation = await Generation.begin(server, asked, has_progress=has_progress)
    interval_s = server.options.sse_ping_interval if body.sse_ping_interval is None else body.sse_ping_interval
    media_type, interval_s = ("application/x-ndjson", 0) if as_lines else ("text/event-stream", interval_s)

    async def encoded() -> AsyncIterator[bytes]:
        try:
            async for each in events(generation.pieces(until)):
                yield each
        except (AuguryError, RequestError) as error:
            found = error_body(as_request_error(error), http.url.path)
            yield line(found) if as_lines else event(found, error_event)
        finally:
            with suppress(RuntimeError):  # the loop has ended
                generation.cancel()

    return _EventStream(generation, encoded(), media_type, ping, interval_s)


async def answer_early(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, and where that is a stream whose model is not loaded soon, begin without it."""
    scope.setdefault("state", {})
    stream = _EarlyStream(Request(scope), send)
    answering = asyncio.ensure_future(app(scope, receive, stream.pass_on))
    try:
        await asyncio.wait({answering}, timeout=_SOON_S)
        server = stream.awaited()
        while server is not None and not (answering.done() or stream.is_answered):
            if server.loading is not None:
                await stream.tell(server)
            await asyncio.wait({answering}, timeout=_EVERY_S)
        await answering
    finally:
        answering.cancel()


class _EarlyStream:
    """Tells how far loading is, and then passes on what the answer sends; one that is no stream, as errors are, as an event."""

    def __init__(self, request: Request, send: Send) -> None:
        self._request, self._send = request, send
        self._are_lines = request.url.path in _OF_LINES
        self._type = b"application/x-ndjson" if self._are_lines else b"text/event-stream"
        self._is_early = self.is_answered = False
        self._whole: bytearray | None = None  # of an answer that is no stream

    def awaited(self) -> Server | None:
        """The model that a stream waits for."""
        fields, models = fields_of(self._request), self._request.app.state.models
        if fields.get("stream", self._are_lines) is not True:
            return None
        try:
            server: Server = models.find(fields.get("model"))
        except RequestError:
            return None
        return None if server.is_ready else server

    async def tell(self, server: Server) -> None:
        """Say how far the model is."""
        if not self._is_early:
            self._is_early = True
            headers = [(b"content-type", self._type), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        seen = server.progress.seen
        share = f" {100 * seen['done'] // seen['total']} %" if seen["total"] else ""
        text = f"{server.name} is being loaded: {seen['task']}{share}"
        part = format_sse_event(comment=text)
        if self._are_lines:
            head = {"model": fields_of(self._request).get("model"), "created_at": datetime.now(UTC).isoformat()}
            part = line(head | _OF_LINES[self._request.url.path] | {"done": False, "status": text})
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def pass_on(self, message: Message) -> None:
        """Send a part of the answer."""
        self.is_answered = True
        if not self._is_early:
            await self._send(message)
        elif message["type"] == "http.response.start":
            is_stream = any(name == b"content-type" and value.startswith(self._type) for name, value in message["headers"])
            self._whole = None if is_stream else bytearray()
        elif self._whole is None:
            await self._send(message)
        else:
            self._whole += message.get("body", b"")
            if not message.get("more_body"):
                await self._send({"type": "http.response.body", "body": self._event(bytes(self._whole))})

    def _event(self, body: bytes) -> bytes:
        if self._are_lines:
            return body + b"\n"
        return format_sse_event(data_str=body.decode(), event="error" if self._request.url.path == "/v1/messages" else None)
