"""What there is to know of the models, `/api/tags`, `/api/ps` and `/api/show`, and how clients change which there are."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import AliasChoices, Field
from starlette.responses import Response, StreamingResponse

from augury.plugins.server.downloads import AllDownloads, Download
from augury.plugins.server.errors import RequestError, error_body
from augury.plugins.server.event_stream import LINES, line
from augury.plugins.server.fields import RequestFields
from augury.plugins.server.json_route import api_router
from augury.plugins.server.models import AllModels
from augury.plugins.server.ollama.answer import ModelRequest, Named, tagged, written
from augury.plugins.server.server import Server
from augury.plugins.server.tools.format import GENERIC

router = api_router()
_VERSION = "0.13.0"  # of Ollama, whose interface this is: clients refuse older ones
_FOREVER = timedelta(days=100 * 365)  # that a model stays loaded, where nothing says how long
_UNITS = ("", "K", "M", "B", "T")
_EVERY_S = 0.2  # progress is told so often
_PARAMETERS = {"max_tokens": "num_predict"}  # as a Modelfile names them
_DONE = {"status": "success"}


class ShowRequest(ModelRequest):
    """Which model, and how much of it."""

    model: str = Field(validation_alias=AliasChoices("model", "name"))
    verbose: bool = Field(default=False, description="without effect: lists with a value for each token are left out")


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Say which version of Ollama has this interface."""
    return {"version": _VERSION}


@router.get("/api/tags")
def tags(models: AllModels) -> dict[str, Any]:
    """List the models."""
    return {
        "models": [_listed(server, name) for server in models.servers if not server.is_hidden for name in server.options.names]
    }


@router.get("/api/ps")
async def running(models: AllModels) -> dict[str, Any]:
    """List the models that are loaded."""
    return {"models": [_loaded(server) for server in models.servers if server.is_ready]}


@router.post("/api/show")
def show(body: ShowRequest, server: Named) -> dict[str, Any]:
    """Describe a model."""
    facts = server.facts()
    figures = {"num_ctx": server.engine.config["n_ctx"]} if server.has_figures else {}
    named = {_PARAMETERS.get(key, key): value for key, value in server.options.params.items() if not isinstance(value, bool)}
    params = [f"{key:<30} {value}" for key, value in (figures | named).items() if isinstance(value, str | int | float)]
    template = facts.metadata.get("tokenizer.chat_template", "")
    if server.has_figures:
        template = "" if server.engine.chat_template is None else server.engine.chat_template.source
    return {
        "license": str(facts.metadata.get("general.license", "")),
        "modelfile": f"FROM {body.model}\n",
        "parameters": "\n".join(params),
        "template": template,
        "details": _details(server),
        "model_info": dict(facts.metadata) | {"general.parameter_count": facts.n_parameters},
        "capabilities": _capabilities(server, facts.metadata),
        "modified_at": written(facts.modified_at),
    }


def _listed(server: Server, name: str) -> dict[str, Any]:
    facts = server.facts()
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": written(facts.modified_at),
        "size": facts.n_bytes,
        "digest": facts.digest,
        "details": _details(server),
    }


def _loaded(server: Server) -> dict[str, Any]:
    left = _FOREVER if server.idle_s is None else timedelta(seconds=server.idle_s)
    return _listed(server, server.name) | {
        "expires_at": written(datetime.now(UTC) + left),
        "size_vram": 0,
        "context_length": server.engine.config["n_ctx"],
    }


def _details(server: Server) -> dict[str, Any]:
    facts = server.facts()
    return {
        "parent_model": "",
        "format": "gguf",
        "family": facts.architecture,
        "families": [facts.architecture],
        "parameter_size": _short(facts.n_parameters),
        "quantization_level": facts.quant,
    }


def _capabilities(server: Server, metadata: Mapping[str, Any]) -> list[str]:
    """What a model can do: of one that is not loaded, what its file lets expect."""
    if server.has_figures:
        tokenizer = server.engine.tokenizer
        found = {
            "completion": tokenizer is not None,
            "tools": server.chat_format.tools is not GENERIC,
            "thinking": server.chat_format.may_reason,
            "insert": tokenizer is not None and {"pre", "suf", "mid"} <= tokenizer.fim.keys(),
            "embedding": server.engine.info.pooling is not None,
        }
    else:
        template = metadata.get("tokenizer.chat_template", "")
        found = {
            "completion": True,
            "tools": "tools" in template,
            "thinking": "think" in template,
            "insert": any(key.endswith(".fim_mid_token_id") for key in metadata),
            "embedding": any(key.endswith(".pooling_type") for key in metadata),
        }
    return [name for name, is_there in found.items() if is_there]


def _short(n: int) -> str:
    """A number of parameters with three or four digits: 134.52M, 7.6B."""
    power = min(int(math.log10(max(n, 1))) // 3, len(_UNITS) - 1)
    return f"{n / 1000**power:.{2 if power < 3 else 1}f}{_UNITS[power]}"


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
