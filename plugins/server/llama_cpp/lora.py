"""`/lora-adapters`: the adapters that a model is loaded with, and how much they count in requests that do not say."""

from __future__ import annotations

from typing import Any

from augury.plugins.server.fields import AdapterScale
from augury.plugins.server.json_route import api_router
from augury.plugins.server.server import Serving

router = api_router()


@router.get("/lora-adapters")
def adapters(server: Serving) -> list[dict[str, Any]]:
    """The adapters, by their numbers."""
    found = server.engine.adapters
    return [
        {"id": i, "path": str(each.path), "scale": scale, "task_name": each.task_name, "prompt_prefix": each.prompt_prefix}
        for i, (each, scale) in enumerate(zip(found.loaded, found.scales, strict=True))
    ]


@router.post("/lora-adapters")
def scale_adapters(body: list[AdapterScale], server: Serving) -> dict[str, bool]:
    """Let adapters count so from now on, and those that are not named not at all."""
    server.engine.scale_adapters([dict(each) for each in body])
    return {"success": True}
