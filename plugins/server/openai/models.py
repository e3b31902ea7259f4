"""`/v1/models`, the models and their states, and `/models` as llama.cpp's router has it.

Models are loaded and unloaded, downloaded and removed, and events tell of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from pydantic import Field
from starlette.responses import StreamingResponse

from augury.plugins.server.downloads import AllDownloads
from augury.plugins.server.errors import RequestError
from augury.plugins.server.event_stream import PING, event
from augury.plugins.server.fields import Fields
from augury.plugins.server.json_route import api_router
from augury.plugins.server.models import AllModels, Models
from augury.plugins.server.server import Server

router = api_router()
_STARTED = int(time.time())


@router.get("/v1/models")
def models(models: AllModels) -> dict[str, Any]:
    """List the models by all of their names, with their states."""
    return {"object": "list", "data": [_model(server, name) for server in _listed(models) for name in server.options.names]}


def _listed(models: Models) -> list[Server]:
    return [server for server in models.servers if not server.is_hidden]


@router.get("/v1/models/{name:path}")
def model(models: AllModels, name: str) -> dict[str, Any]:
    """Describe a model."""
    return _model(models.find(name, is_strict=True), name)


def _model(server: Server, name: str) -> dict[str, Any]:
    status: dict[str, Any] = {"value": server.status}
    if server.state == "failed":
        status["failed"] = True
    if server.state == "loading":
        status["progress"] = server.progress.seen
    return {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "augury",
        "aliases": list(server.options.names),
        "tags": list(server.options.tags),
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "status": status,
        "can_remove": not server.is_given,
        "meta": _meta(server) if server.has_figures else None,
    }


def _meta(server: Server) -> dict[str, Any]:
    engine = server.engine
    return {
        "n_ctx": engine.config["n_ctx"],
        "n_ctx_train": engine.info.n_ctx_train,
        "n_vocab": engine.info.n_vocab,
        "n_embd": engine.info.n_embd,
        "size": engine.info.n_bytes,
        "architecture": engine.info.architecture,
        "drafters": engine.config["spec_type"],
    }


class ModelName(Fields):
    """Which model."""

    model: str = Field(min_length=1)


@router.get("/models")
async def list_models(models: AllModels, downloads: AllDownloads, reload: str = "") -> dict[str, Any]:
    """List each model once, with its other names and its state; with `reload` look first which there are now."""
    if reload:
        await models.reload()
    found = [_model(server, server.name) for server in _listed(models)]
    for name, each in downloads.running.items():
        status = {"value": "downloading", "progress": each.progress.by_task}
        found.append({"id": name, "object": "model", "owned_by": "augury", "status": status})
    return {"object": "list", "data": found}


@router.post("/models")
async def download(body: ModelName, models: AllModels, downloads: AllDownloads) -> dict[str, bool]:
    """Begin to download a model; /models/sse tells how far that is."""
    if (server := models.known(body.model)) is not None and server.is_here:
        raise RequestError(400, f"{body.model} is here already", param="model")
    (await downloads.begin(body.model)).n_clients += 1  # who never leaves
    return {"success": True}


@router.delete("/models")
async def remove(downloads: AllDownloads, model: str) -> dict[str, bool]:
    """Remove a model that was downloaded."""
    await downloads.remove(model)
    return {"success": True}


@router.post("/models/load")
async def load(body: ModelName, models: AllModels) -> dict[str, bool]:
    """Begin to load a model; /models tells when that has ended."""
    server = models.find(body.model, is_strict=True)
    if server.is_ready or server.loading is not None:
        raise RequestError(400, f"{server.name} is {server.state} already", param="model")
    models.load(server)
    return {"success": True}


@router.post("/models/unload")
async def unload(body: ModelName, models: AllModels, downloads: AllDownloads) -> dict[str, bool]:
    """Unload a model as soon as it has no requests, or end its download."""
    if downloads.cancel(body.model):
        return {"success": True}
    server = models.find(body.model, is_strict=True)
    if not server.is_ready:
        raise RequestError(400, f"{server.name} is not loaded", param="model")
    models.unload(server)
    return {"success": True}


@router.get("/models/sse", include_in_schema=False)  # tools that try all routes would wait for ever
async def happenings(models: AllModels) -> StreamingResponse:
    """Tell what happens to the models, until the client leaves."""
    return StreamingResponse(_events(models), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _events(models: Models) -> AsyncIterator[bytes]:
    interval_s = models.options.sse_ping_interval
    with models.events.listening() as queue:
        yield PING
        while True:
            try:
                found = await asyncio.wait_for(queue.get(), interval_s if interval_s > 0 else None)
            except TimeoutError:
                yield PING
                continue
            if found is None:
                return
            yield event(found)
