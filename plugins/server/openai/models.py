"""`/v1/models` and, as llama.cpp's server has them, `/models`, `/models/load` and `/models/unload`."""

from __future__ import annotations

import time
from typing import Any

from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import Fields
from augury.plugins.server.json_route import api_router
from augury.plugins.server.models import AllModels
from augury.plugins.server.server import Server

router = api_router()
_STARTED = int(time.time())


class ModelName(Fields):
    """Which model."""

    model: str


@router.get("/v1/models")
@router.get("/models")
def models(models: AllModels) -> dict[str, Any]:
    """List the models by all of their names, with their states."""
    return {"object": "list", "data": [_model(server, name) for server in models.servers for name in server.options.names]}


@router.get("/v1/models/{name:path}")
def model(models: AllModels, name: str) -> dict[str, Any]:
    """Describe a model."""
    return _model(models.find(name, is_strict=True), name)


@router.post("/models/load")
async def load(body: ModelName, models: AllModels) -> dict[str, bool]:
    """Begin to load a model; /models tells when that has ended."""
    server = models.find(body.model, is_strict=True)
    if server.is_ready:
        raise RequestError(400, f"{server.name} is loaded already", param="model")
    models.load(server)
    return {"success": True}


@router.post("/models/unload")
async def unload(body: ModelName, models: AllModels) -> dict[str, bool]:
    """Unload a model as soon as it has no requests."""
    server = models.find(body.model, is_strict=True)
    if not server.is_ready:
        raise RequestError(400, f"{server.name} is not loaded", param="model")
    models.unload(server)
    return {"success": True}


def _model(server: Server, name: str) -> dict[str, Any]:
    status: dict[str, Any] = {"value": "unloaded" if server.state == "failed" else server.state}
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
        "status": status,
        "meta": _meta(server) if server.has_figures else None,
    }


def _meta(server: Server) -> dict[str, Any]:
    engine = server.engine
    return {
        "n_ctx": engine.config["n_ctx"],
        "n_ctx_train": engine.info.n_ctx_train,
        "n_vocab": engine.info.n_vocab,
        "architecture": engine.info.architecture,
        "drafters": engine.config["spec_type"],
    }
