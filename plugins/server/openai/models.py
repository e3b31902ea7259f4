"""`/v1/models`: the models and their states."""

from __future__ import annotations

import time
from typing import Any

from augury.plugins.server.json_route import api_router
from augury.plugins.server.models import AllModels, Models
from augury.plugins.server.server import Server

router = api_router()
_STARTED = int(time.time())


@router.get("/v1/models")
def models(models: AllModels) -> dict[str, Any]:
    """List the models by all of their names, with their states."""
    return models_list(models)


def models_list(models: Models) -> dict[str, Any]:
    """All models, but those that are not to be listed."""
    listed = [server for server in models.servers if not server.is_hidden]
    return {"object": "list", "data": [_model(server, name) for server in listed for name in server.options.names]}


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
