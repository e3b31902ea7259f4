"""Bodies are JSON as its standard has it: no NaN, no infinity, no half of a surrogate pair, nothing nested without end.

Python's own parser takes all of these, and whatever echoes one in its answer, an error among others, could not be written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["api_router"]


def api_router() -> APIRouter:
    """A router whose routes read bodies so."""
    return APIRouter(route_class=_Route)


class _Request(Request):
    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None  # which FastAPI makes a 400


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handle_request
