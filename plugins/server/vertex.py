"""Google Vertex AI's form of prediction: one request with several `instances`, each of which is a request to another path.

Vertex AI tells a container by environment variables where it will ask, and llama.cpp's server follows them, too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.requests import Request

from augury.errors import OptionError
from augury.plugins.server.errors import RequestError, error_body
from augury.plugins.server.fields import Fields
from augury.plugins.server.generation import unless_left
from augury.plugins.server.json_route import api_router
from augury.plugins.server.server import VertexRoutes

_FORMAT = "@requestFormat"  # of an instance: which request it is
_KEYS = ("authorization", "x-api-key")


class PredictRequest(Fields):
    """Requests of other paths."""

    instances: list[Any] = Field(max_length=128)
    parameters: Any = Field(None, description="without effect, as in llama.cpp")


def add_vertex(app: FastAPI, routes: VertexRoutes, others: Sequence[APIRoute]) -> None:
    """Answer Vertex AI, too, by these other routes. Raises OptionError: it is to ask where others do."""
    known = {route.path: route for route in others}
    if routes.predict in known:
        raise OptionError(f"the variable AIP_PREDICT_ROUTE is {routes.predict}, a path with a meaning of its own; use another")
    if routes.health is not None and routes.health not in known:
        app.add_api_route(routes.health, known["/health"].endpoint, include_in_schema=False)
    paths = [route.path for route in others if "POST" in (route.methods or ()) and "{" not in route.path]
    paths = [path for path in paths if not path.startswith("/api/")]  # Ollama's stream unless told otherwise
    path_of = {format_of(path): path for path in sorted(paths, key=lambda path: path.startswith("/v1/"))}  # the last one holds
    path_of |= {path: path for path in paths}

    async def predict(body: PredictRequest, http: Request) -> dict[str, Any]:
        """Answer several requests at once."""
        from httpx2 import ASGITransport, AsyncClient

        headers = {name: value for name in _KEYS if (value := http.headers.get(name)) is not None}
        transport = ASGITransport(app, raise_app_exceptions=False)
        async with AsyncClient(transport=transport, base_url="http://localhost", headers=headers, timeout=None) as client:

            async def answer(instance: Any) -> Any:
                try:
                    path, asked = _read(instance, path_of)
                except RequestError as error:
                    return error_body(error, routes.predict)
                found = await client.post(path, json=asked)
                return found.json() if found.headers.get("content-type") == "application/json" else found.text

            async def answer_all() -> list[Any]:
                return await asyncio.gather(*map(answer, body.instances))

            return {"predictions": await unless_left(app.state.models.options.timeout_s, http, answer_all())}

    router = api_router()
    router.add_api_route(routes.predict, predict, methods=["POST"], response_model=dict[str, Any])
    app.include_router(router)


def format_of(path: str) -> str:
    """The name of a path's requests.

    >>> format_of("/v1/chat/completions"), format_of("/apply-template")
    ('chatCompletions', 'applyTemplate')
    """
    return re.sub("[/_-](.)", lambda found: found[1].upper(), path.removeprefix("/v1").removeprefix("/"))


def _read(instance: Any, path_of: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """The path and body of an instance. Raises RequestError: it has none."""
    if not isinstance(instance, dict):
        raise RequestError(400, "an instance is no JSON object; expected the fields of a request, and @requestFormat")
    wanted = instance.get(_FORMAT)
    path = path_of.get(wanted) if isinstance(wanted, str) else None
    if path is None:
        raise RequestError(400, f"{_FORMAT} is {wanted!r:.80}, expected chatCompletions, embeddings or another path's name")
    asked = {name: value for name, value in instance.items() if name != _FORMAT}
    return path, asked | ({"stream": False} if "stream" in asked else {})
