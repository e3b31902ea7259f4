"""`/health` and `/metrics`, for monitoring: as llama.cpp's server has them; `/ping` and `/version` as vLLM's has."""

from __future__ import annotations

import time
from importlib import metadata

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from augury.plugins.server.errors import RequestError
from augury.plugins.server.json_route import api_router
from augury.plugins.server.metrics import exposition
from augury.plugins.server.models import AllModels

router = api_router()
_STARTED = int(time.time())


@router.get("/health")
@router.get("/v1/health", include_in_schema=False)
@router.head("/health", include_in_schema=False)  # as monitors ask, wget --spider for one
@router.head("/v1/health", include_in_schema=False)
async def health(_models: AllModels) -> dict[str, str]:
    """Say that the server is ready; while its only model loads it is not, and says how far it has come."""
    return {"status": "ok"}


@router.get("/ping")
@router.post("/ping", include_in_schema=False)
async def ping(models: AllModels) -> dict[str, str]:
    """Say the same, by the path that SageMaker asks."""
    return await health(models)


@router.get("/version")
async def version() -> dict[str, str]:
    """Say which augury this is, in vLLM's form."""
    return {"version": metadata.version("augury")}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(models: AllModels) -> Response:
    """Give the counters of the server's life for Prometheus; where there are several models, each with its name."""
    counted = [
        (
            {"model": server.name} if models.are_several else {},
            server.metrics,
            server.engine.stats() if server.has_figures else None,
        )
        for server in models.servers
        if server.metrics is not None
    ]
    if not counted:
        raise RequestError(501, "this server counts nothing for Prometheus; start it with --metrics")
    answer = Response(exposition(counted), media_type=CONTENT_TYPE_LATEST)
    answer.raw_headers.append((b"Process-Start-Time-Unix", str(_STARTED).encode()))  # as some clients of llama.cpp's spell it
    return answer
