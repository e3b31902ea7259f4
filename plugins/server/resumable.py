"""Answers that outlive their connection: a client that comes back reads on, as llama.cpp's server has it.

A request with `X-Conversation-Id` goes on when its client leaves. What it sends is kept by that name for a while. A name has
one answer: that of a later request takes its place, and ends it. Whoever sends another API key sees nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from attrs import Factory, define, field
from fastapi import Depends, Query
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from augury.plugins.server.errors import RequestError, error_body
from augury.plugins.server.fields import Fields
from augury.plugins.server.json_route import api_router

_N_BYTES = 4 << 20  # of an answer, its last ones
_KEPT_S = 300  # after its end
_N_KEPT = 64  # that have ended
_SEPARATOR = "::"  # after which llama.cpp's page names the model

router = api_router()


@define(eq=False)
class _Answer:
    """One answer, as far as it has been sent."""

    name: str
    started_at: int = Factory(lambda: int(time.time()))
    ended_at: int = 0
    media_type: str | None = None  # None: it has not begun
    is_cancelled: bool = False
    n_lost: int = 0  # bytes at its beginning that are not kept
    kept: bytearray = field(factory=bytearray)
    _changed: asyncio.Event = field(factory=asyncio.Event)

    def tell(self) -> None:
        """Wake those who wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def add(self, part: bytes) -> None:
        """Keep a part, and the last bytes of those before."""
        self.kept += part
        n_most = max(len(self.kept) - _N_BYTES, 0)
        del self.kept[:n_most]
        self.n_lost += n_most
        self.tell()

    def cancel(self) -> None:
        """End it."""
        self.is_cancelled = True
        self.tell()

    async def until_cancelled(self) -> None:
        """Wait until it is to end before its time."""
        while not self.is_cancelled:
            await self._changed.wait()

    async def parts(self, start: int) -> AsyncIterator[bytes]:
        """What there is from a byte on, and then what comes; it ends where bytes are lost before they are read."""
        while start >= self.n_lost:
            if part := bytes(self.kept[start - self.n_lost :]):
                start += len(part)
                yield part
            elif self.ended_at or self.is_cancelled:
                return
            else:
                await self._changed.wait()


class Answers(dict[tuple[str, str], _Answer]):
    """The answers that can be read again, by API key and name."""

    def begin(self, key: tuple[str, str]) -> _Answer:
        """A new answer, in place of one of this name."""
        self.end(key)
        ended = [each for each, answer in self.items() if answer.ended_at]
        late = int(time.time()) - _KEPT_S
        for each in [each for i, each in enumerate(ended) if i <= len(ended) - _N_KEPT or self[each].ended_at < late]:
            del self[each]
        self[key] = _Answer(key[1])
        return self[key]

    def end(self, key: tuple[str, str]) -> None:
        """Cancel and forget an answer, if there is one."""
        if (answer := self.pop(key, None)) is not None:
            answer.cancel()


class Resumable:
    """Lets a request with a name go on without its client, and keeps what it sends."""

    def __init__(self, app: ASGIApp, answers: Answers) -> None:
        self._app, self._answers = app, answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not (key := _key(Headers(scope=scope)))[1]:
            await self._app(scope, receive, send)
            return
        answer, is_whole, is_sent = self._answers.begin(key), False, False

        async def receive_body() -> Message:
            nonlocal is_whole
            if is_whole:  # the client may leave
                await answer.until_cancelled()
                return {"type": "http.disconnect"}
            message = await receive()
            is_whole = not message.get("more_body")
            return message

        async def keep(message: Message) -> None:
            nonlocal is_sent
            if answer.is_cancelled:
                return
            if message["type"] == "http.response.start":
                answer.media_type = Headers(raw=message["headers"]).get("content-type", "")
                if message["status"] != 200 and self._answers.get(key) is answer:
                    del self._answers[key]
            else:
                answer.add(message.get("body", b""))
                is_sent = not message.get("more_body")
            await send(message)  # which does nothing where the client has gone

        try:
            await self._app(scope, receive_body, keep)
        finally:
            answer.ended_at = int(time.time())
            answer.tell()
        if answer.media_type is None:
            error = RequestError(400, "the request was cancelled by another one, of the same X-Conversation-Id")
            await JSONResponse(error_body(error, scope["path"]), error.status_code, error.headers)(scope, receive, send)
        elif not is_sent:
            await send({"type": "http.response.body"})


def _key(headers: Mapping[str, str], name: str | None = None) -> tuple[str, str]:
    said = headers.get("authorization") or headers.get("x-api-key") or ""
    return said, headers.get("x-conversation-id", "") if name is None else name


async def _answers_of(request: Request) -> Answers:
    return request.app.state.answers


AllAnswers = Annotated[Answers, Depends(_answers_of)]
Name = Annotated[str, Query(min_length=1, description="the `X-Conversation-Id` of the request")]


@router.get("/v1/stream")
async def resume(
    answers: AllAnswers, http: Request, conv_id: Name, from_: Annotated[int, Query(alias="from", ge=0)] = 0
) -> Any:
    """Read an answer from a byte on, and go on with it until it ends."""
    if (answer := answers.get(_key(http.headers, conv_id))) is None:
        raise RequestError(404, f"there is no answer of {conv_id[:100]!r}; they are kept for {_KEPT_S} s", param="conv_id")
    if answer.media_type is None:
        raise RequestError(503, "the answer has not begun", retry_after=1)
    if from_ < answer.n_lost:
        message = f"byte {from_} is not kept any more, the first one that is is {answer.n_lost}"
        raise RequestError(400, message, param="from")
    headers = {"Content-Type": answer.media_type, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(answer.parts(from_), headers=headers)


@router.delete("/v1/stream", status_code=204)
async def stop(answers: AllAnswers, http: Request, conv_id: Name) -> Response:
    """End an answer and forget it."""
    answers.end(_key(http.headers, conv_id))
    return Response(status_code=204)


class Lookup(Fields):
    """Which answers."""

    conversation_ids: list[str]


@router.post("/v1/streams/lookup")
async def look_up(body: Lookup, answers: AllAnswers, http: Request) -> list[dict[str, Any]]:
    """Tell of the answers of these names, and of those that go on with `::`."""
    own, _ = _key(http.headers)
    return [
        {
            "conversation_id": answer.name,
            "is_done": bool(answer.ended_at),
            "total_bytes": answer.n_lost + len(answer.kept),
            "started_at": answer.started_at,
            "completed_at": answer.ended_at,
        }
        for (key, name), answer in answers.items()
        if key == own and {name, name.partition(_SEPARATOR)[0]} & {*body.conversation_ids}
    ]
