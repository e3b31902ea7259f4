"""Streams that begin before their model is loaded, and tell how far that is: in comments, or in Ollama's lines without text."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from fastapi.sse import format_sse_event
from pydantic_core import to_json
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from augury.plugins.server.errors import RequestError
from augury.plugins.server.server import Server, fields_of

_SOON_S = 1.0  # for which a stream waits before it begins, so that most errors have their status
_EVERY_S = 0.5  # progress is told so often
_OF_LINES: dict[str, dict[str, Any]] = {
    "/api/chat": {"message": {"role": "assistant", "content": ""}},
    "/api/generate": {"response": ""},
}


async def answer(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
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
            part = to_json(head | _OF_LINES[self._request.url.path] | {"done": False, "status": text}) + b"\n"
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
