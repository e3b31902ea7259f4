"""What there is to know of the models: `/api/tags`, `/api/ps`, `/api/show` and `/api/version`."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import AliasChoices, Field

from augury.plugins.server.json_route import api_router
from augury.plugins.server.ollama.fields import ModelRequest, check_model, tagged, written
from augury.plugins.server.server import Server, Serving
from augury.plugins.server.tools.format import GENERIC

router = api_router(ignores_type=True)
_VERSION = "0.13.0"  # of Ollama, whose interface this is: clients refuse older ones
_FOREVER = timedelta(days=100 * 365)  # until a model is unloaded, where nothing says when
_UNITS = ("", "K", "M", "B", "T")


class ShowRequest(ModelRequest):
    """Which model, and how much of it."""

    model: str | None = Field(None, validation_alias=AliasChoices("model", "name"))
    verbose: bool = Field(default=False, description="without effect: lists with a value for each token are left out")


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Say which version of Ollama has this interface."""
    return {"version": _VERSION}


@router.get("/api/tags")
def tags(server: Serving) -> dict[str, Any]:
    """List the models."""
    modified = {"modified_at": written(server.facts().modified_at)}
    return {"models": [_listed(server, name) | modified for name in server.options.names]}


@router.get("/api/ps")
def running(server: Serving) -> dict[str, Any]:
    """List the models that are loaded."""
    if server.is_sleeping:
        return {"models": []}
    more = {
        "expires_at": written(datetime.now(UTC) + _FOREVER),
        "size_vram": 0,
        "context_length": server.engine.config["n_ctx"],
    }
    return {"models": [_listed(server, server.options.names[0]) | more]}


@router.post("/api/show")
def show(body: ShowRequest, server: Serving) -> dict[str, Any]:
    """Describe a model."""
    name, template, facts = check_model(server, body.model), server.engine.chat_template, server.facts()
    params = [f"{key:<30} {value}" for key, value in server.options.params.items() if isinstance(value, str | int | float)]
    return {
        "license": str(facts.metadata.get("general.license", "")),
        "modelfile": f"FROM {name}\n",
        "parameters": "\n".join(params),
        "template": "" if template is None else template.source,
        "details": _details(server),
        "model_info": dict(facts.metadata) | {"general.parameter_count": facts.n_parameters},
        "capabilities": _capabilities(server),
        "modified_at": written(facts.modified_at),
    }


def _listed(server: Server, name: str) -> dict[str, Any]:
    info = server.engine.info
    return {
        "name": tagged(name),
        "model": tagged(name),
        "size": info.n_bytes,
        "digest": info.digest,
        "details": _details(server),
    }


def _details(server: Server) -> dict[str, Any]:
    facts, architecture = server.facts(), server.engine.info.architecture
    return {
        "parent_model": "",
        "format": "gguf",
        "family": architecture,
        "families": [architecture],
        "parameter_size": _short(facts.n_parameters),
        "quantization_level": facts.quant,
    }


def _capabilities(server: Server) -> list[str]:
    tokenizer = server.engine.tokenizer
    found = {
        "completion": tokenizer is not None,
        "tools": server.chat_format.tools is not GENERIC,
        "thinking": server.chat_format.may_reason,
        "insert": tokenizer is not None and {"pre", "suf", "mid"} <= tokenizer.fim.keys(),
        "embedding": server.engine.info.pooling is not None,
    }
    return [name for name, is_there in found.items() if is_there]


def _short(n: int) -> str:
    """A number of parameters with three or four digits: 134.52M, 7.6B."""
    power = min(int(math.log10(max(n, 1))) // 3, len(_UNITS) - 1)
    return f"{n / 1000**power:.{2 if power < 3 else 1}f}{_UNITS[power]}"
