"""What the server and a model of it are like: `/props`, `/lora-adapters`, and `/slots`, which are saved to files.

For monitoring there are `/health` and `/metrics`, as llama.cpp's server has them, and `/ping` and `/version`, as vLLM's has.
"""

from __future__ import annotations

import time
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from augury.engine.stats import SlotStats
from augury.errors import CapacityError, ModelFileError
from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import AdapterScale, Fields
from augury.plugins.server.json_route import api_router
from augury.plugins.server.llama_cpp.completion import generation_settings
from augury.plugins.server.metrics import exposition
from augury.plugins.server.models import AllModels
from augury.plugins.server.openai.answer import BUILD
from augury.plugins.server.server import Named, Server, Serving

router = api_router()
_LONGEST = 255 - len("..part")  # bytes of a file's name, in every common file system, with what it has while it is written
_STARTED = int(time.time())


@router.get("/props")
def props(server: Named, models: AllModels) -> dict[str, Any]:
    """Describe the model and the settings; of one that is not loaded only what is known without it."""
    several = {"role": "router", "max_instances": models.n_most, "models_autoload": models.loads} if models.are_several else {}
    return several | {
        "model_alias": server.name,
        "modalities": {"vision": False, "audio": False},
        "build_info": BUILD,
        "endpoint_slots": server.options.shows_slots,
        "endpoint_props": server.options.takes_props,
        "endpoint_metrics": server.metrics is not None,
        "is_sleeping": not server.is_ready,
        **(_of_engine(server) if server.has_figures else {}),
    }


def _of_engine(server: Server) -> dict[str, Any]:
    engine = server.engine
    tokenizer, template = engine.tokenizer, engine.chat_template
    settings = generation_settings(server, {})
    return {
        "default_generation_settings": {"n_ctx": engine.config["n_ctx"], "params": settings},
        "total_slots": engine.config["n_slots"],
        "model_path": f"{engine.info.name}.gguf",  # without its folder, which is nobody's business
        "chat_template": "" if template is None else template.source,
        "bos_token": "" if tokenizer is None or tokenizer.bos is None else tokenizer.text(tokenizer.bos),
        "eos_token": "" if tokenizer is None or tokenizer.eos is None else tokenizer.text(tokenizer.eos),
        "speculative": engine.config["speculative"],
        "plain_per_second": engine.stats().plain_per_second,  # without drafts, as the planner expects it
        "n_ctx_train": engine.info.n_ctx_train,
    }


@router.post("/props")
def change_props(_body: Fields, server: Named) -> dict[str, bool]:
    """Change properties, of which there are none yet: that a client may ask is all that --props says."""
    if not server.options.takes_props:
        raise RequestError(501, "this server's properties cannot be changed; start it with --props")
    return {"success": True}


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


class SlotFile(Fields):
    """Which file; none where a slot is erased."""

    filename: str | None = Field(None, min_length=1)


@router.get("/slots")
def slots(server: Named, fail_on_no_slot: int = 0) -> list[dict[str, Any]]:
    """The state of every slot; a model that is not loaded has none."""
    if not server.options.shows_slots:
        raise RequestError(501, "this server does not tell what its slots do; start it without --no-slots")
    if not server.has_figures:
        return []
    found = server.engine.stats().slots
    if fail_on_no_slot and all(slot.state != "idle" for slot in found):
        raise RequestError(503, "no slot is free", retry_after=1)
    return [
        _as_json(slot, server.engine.config["n_ctx"], is_speculative=server.engine.config["spec_type"] != "none")
        for slot in found
    ]


@router.post("/slots/{id_slot}")
def act(
    id_slot: int, action: Literal["save", "restore", "erase"], server: Serving, body: SlotFile | None = None
) -> dict[str, Any]:
    """Save a slot to a file, restore it from one, or let it forget its contents."""
    if server.options.slot_save_path is None:
        raise RequestError(501, "this server does not save, restore or erase slots; start it with --slot-save-path FOLDER")
    try:
        return _act(id_slot, action, server.options.slot_save_path, server, body)
    except CapacityError as error:
        raise RequestError(409, str(error), retry_after=1) from error


def _act(id_slot: int, action: str, folder: Path, server: Server, body: SlotFile | None) -> dict[str, Any]:
    if action == "erase":
        return {"id_slot": id_slot, "n_erased": server.engine.erase_slot(id_slot)}
    name = None if body is None else body.filename
    if name is None:
        raise RequestError(400, "filename is missing, expected the name of a file in the server's folder", param="filename")
    path, failed = _path(folder, name), 500 if action == "save" else 400  # the disk's fault, or the file's
    start = perf_counter()
    try:
        saved = (server.engine.save_slot if action == "save" else server.engine.load_slot)(id_slot, path)
        n_bytes = path.stat().st_size
    except ModelFileError as error:
        raise RequestError(failed, str(error).replace(str(path), name)) from error
    except OSError as error:
        raise RequestError(failed, f"{name}: {error.strerror}") from error
    ms = (perf_counter() - start) * 1e3
    n_held = len(saved.tokens) - 1  # the last one was sampled, and not computed
    facts = {"id_slot": id_slot, "filename": name}
    if action == "save":
        return facts | {"n_saved": n_held, "n_written": n_bytes, "timings": {"save_ms": ms}}
    return facts | {"n_restored": n_held, "n_read": n_bytes, "timings": {"restore_ms": ms}}


def _path(folder: Path, name: str) -> Path:
    """A file in the folder, and nowhere else. Raises RequestError: the name is none of a file there."""
    is_plain = (
        name.isprintable() and not set(name) & set("/\\:") and not name.startswith(".") and len(name.encode()) <= _LONGEST
    )
    path = folder / name
    # a link would lead elsewhere, and reading a pipe or a device would wait
    if not is_plain or path.is_symlink() or (path.exists() and not path.is_file()):
        raise RequestError(
            400, f"filename is {name!r}, expected the plain name of a file in the server's folder", param="filename"
        )
    return path


def _as_json(slot: SlotStats, n_ctx: int, *, is_speculative: bool) -> dict[str, Any]:
    return {
        "id": slot.slot,
        "n_ctx": n_ctx,
        "speculative": is_speculative,
        "is_processing": slot.state != "idle",
        "id_task": slot.id,
        "state": slot.state,
        "n_prompt_tokens": slot.n_prompt,
        "n_held": slot.n_held,
        "next_token": [
            {
                "has_next_token": slot.state == "decoding",
                "n_remain": -1 if slot.n_left is None else slot.n_left,
                "n_decoded": slot.n_emitted,
            }
        ],
        "drafters": list(slot.drafters),
        "drafter": slot.drafter,
        "draft_n": slot.n_drafted,
        "draft_n_accepted": slot.n_accepted,
        "acceptance_rate": slot.n_accepted / slot.n_drafted if slot.n_drafted else 0.0,
        "draft_lengths": list(slot.draft_lengths),
    }


@router.get("/health")
@router.head("/health", include_in_schema=False)  # as monitors ask, wget --spider for one
@router.api_route("/v1/health", methods=["GET", "HEAD"], include_in_schema=False)
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
