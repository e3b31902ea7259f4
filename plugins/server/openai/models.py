"""`/v1/models`: the one model that is served."""

from __future__ import annotations

import time
from typing import Any

from augury.plugins.server.errors import RequestError
from augury.plugins.server.json_route import api_router
from augury.plugins.server.server import Server, Serving

router = api_router()
_STARTED = int(time.time())


@router.get("/v1/models")
@router.get("/models", include_in_schema=False)
def models(server: Serving) -> dict[str, Any]:
    """List the model."""
    return {"object": "list", "data": [_model(server, name) for name in server.options.names]}


@router.get("/v1/models/{name:path}")
def model(server: Serving, name: str) -> dict[str, Any]:
    """Describe the model."""
    if name not in server.options.names:
        message = f"there is no model {name!r}; this server has {', '.join(server.options.names)}"
        raise RequestError(404, message, param="model", code="model_not_found")
    return _model(server, name)


def _model(server: Server, name: str) -> dict[str, Any]:
    engine = server.engine
    meta = {
        "n_ctx": engine.config["n_ctx"],
        "n_ctx_train": engine.info.n_ctx_train,
        "n_vocab": engine.info.n_vocab,
        "architecture": engine.info.architecture,
        "drafters": engine.config["spec_type"],
    }
    return {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "augury",
        "aliases": list(server.options.names),
        "meta": meta,
    }
