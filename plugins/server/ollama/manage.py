"""`/api/pull`, `/api/delete` and `/api/copy`: models that clients download, remove and rename."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pydantic import AliasChoices, Field
from starlette.responses import Response, StreamingResponse

from augury.plugins.server.downloads import AllDownloads, Download
from augury.plugins.server.errors import RequestError, error_body
from augury.plugins.server.event_stream import LINES, line
from augury.plugins.server.fields import RequestFields
from augury.plugins.server.json_route import api_router
from augury.plugins.server.models import AllModels

router = api_router(ignores_type=True)
_EVERY_S = 0.2  # progress is told so often
_DONE = {"status": "success"}


class NameRequest(RequestFields):
    """Which model; older clients call it `name`."""

    model: str = Field(validation_alias=AliasChoices("model", "name"), min_length=1)


class PullRequest(NameRequest):
    """Which model is to be here."""

    stream: bool = True
    insecure: bool = Field(default=False, description="without effect")


class CopyRequest(RequestFields):
    """One more name for a model."""

    source: str
    destination: str


@router.post("/api/pull", responses=LINES)
async def pull(body: PullRequest, models: AllModels, downloads: AllDownloads) -> Any:
    """Download a model, unless it is here, and tell how far that is."""
    if (server := models.known(body.model)) is not None and server.is_here:
        return StreamingResponse(iter([line(_DONE)]), media_type="application/x-ndjson") if body.stream else _DONE
    download = await downloads.begin(body.model)
    if body.stream:
        return StreamingResponse(_told(download), media_type="application/x-ndjson")
    async for _ in _waited(download):
        pass
    return _DONE


@router.delete("/api/delete", response_class=Response)
async def delete(body: NameRequest, downloads: AllDownloads) -> Response:
    """Remove a model, or a name of it."""
    await downloads.remove(body.model)
    return Response()


@router.post("/api/copy", response_class=Response)
async def copy(body: CopyRequest, downloads: AllDownloads) -> Response:
    """Give a model one more name."""
    await downloads.copy(body.source, body.destination)
    return Response()


async def _told(download: Download) -> AsyncIterator[bytes]:
    yield line({"status": "pulling manifest"})
    try:
        async for _ in _waited(download):
            seen = download.progress.seen
            if seen["total"]:
                task = seen["task"].removeprefix("download ")
                yield line({"status": f"pulling {task}", "digest": task, "total": seen["total"], "completed": seen["done"]})
        yield line(_DONE)
    except RequestError as error:
        yield line(error_body(error, "/api/pull"))


async def _waited(download: Download) -> AsyncIterator[None]:
    """Wait for a download, and look from time to time. It ends with the last client that waits for it."""
    download.n_clients += 1
    try:
        while not download.task.done():
            await asyncio.wait({download.task}, timeout=_EVERY_S)
            yield
        download.task.result()
    finally:
        download.n_clients -= 1
        if not download.n_clients:
            download.cancel()
