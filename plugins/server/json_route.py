"""Bodies are JSON as its standard has it: no NaN, no infinity, no half of a surrogate pair, nothing nested without end.

Python's own parser takes all of these, and an answer that echoes one, such as an error, could not be written.

Answers of megabytes are written in pieces, on other threads: `long_answer`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from augury.plugins.server.errors import RequestError
from augury.plugins.server.event_stream import answer_early
from augury.plugins.server.fields import N_FIELDS, Fields
from augury.plugins.server.foreign_fields import first_foreign

_N_CHARS = 1 << 16
_N_PARTS = 1 << 18  # keys and lists of a body: a million hold up the event loop, and all clients, for seconds


def api_router() -> APIRouter:
    """A router whose routes read bodies so."""
    return APIRouter(route_class=_Route)


def long_answer(pieces: Iterable[str]) -> StreamingResponse:
    """An answer whose JSON these pieces are; a piece should not take longer to make than the event loop may wait."""

    def parts() -> Iterator[str]:
        part, n = list[str](), 0
        for piece in pieces:
            part.append(piece)
            n += len(piece)
            if n > _N_CHARS:
                yield "".join(part)
                part, n = [], 0
        yield "".join(part)

    return StreamingResponse(parts(), media_type="application/json")  # which asks for each part on another thread


def pieces_of(value: Any) -> Iterator[str]:
    """An answer's JSON, item by item where an iterator stands for a list; numbers that JSON does not have are null."""
    if isinstance(value, Iterator):
        yield "["
        for i, item in enumerate(value):
            yield ("," if i else "") + to_json(item, inf_nan_mode="null").decode()
        yield "]"
    elif isinstance(value, dict):
        for i, (key, item) in enumerate(value.items()):
            yield f"{',' if i else '{'}{to_json(key).decode()}:"
            yield from pieces_of(item)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield "," if i else "["
            yield from pieces_of(item)
        yield "]" if value else "[]"
    else:
        yield to_json(value, inf_nan_mode="null").decode()


class _Request(Request):
    async def json(self) -> Any:
        body = await self.body()
        if len(body) > _N_PARTS and (n := body.count(b":") + body.count(b"[")) > _N_PARTS:  # some stand in texts
            raise RequestError(400, f"the body has {n} colons and brackets, expected {_N_PARTS} at most")
        try:
            found = from_json(body, allow_inf_nan=False, cache_strings="none")
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None  # which FastAPI makes a 400
        if isinstance(found, dict) and len(found) > N_FIELDS:
            raise RequestError(400, f"the body has {len(found)} fields, expected {N_FIELDS} at most")
        if isinstance(found, dict) and self.app.state.models.options.has_strict_fields:
            self._refuse_foreign(found)
        self.state.fields = found if isinstance(found, dict) else {}  # for those who need them before they are checked
        return found

    def _refuse_foreign(self, found: Mapping[str, Any]) -> None:
        form = self.scope["route"].body_field.field_info.annotation
        known = form.known() if isinstance(form, type) and issubclass(form, Fields) else ()
        if (name := first_foreign(found, known)) is not None:
            message = f"{name} is a field of other servers, which --strict-fields refuses; leave it out"
            raise RequestError(400, message, param=name)


def _as_get(scope: Scope) -> Scope:
    """A request for the head of an answer is one for all of it, of which uvicorn sends no more."""
    return {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            scope = request.scope
            if request.url.path.startswith("/api/"):  # Ollama's, whose clients call JSON something else
                headers = [each for each in scope["headers"] if each[0] != b"content-type"]
                scope = {**scope, "headers": [*headers, (b"content-type", b"application/json")]}
            return await handle(_Request(scope, request.receive))

        return handle_request

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(_as_get(scope))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = _as_get(scope)
        if scope["method"] == "POST" and not all(server.is_ready for server in scope["app"].state.models.servers):
            await answer_early(super().handle, scope, receive, send)
        else:
            await super().handle(scope, receive, send)
