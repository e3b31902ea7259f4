"""`/props`, a model of the server and its settings, and `/lora-adapters`: how much the adapters count that it has."""

from __future__ import annotations

from typing import Any

from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import AdapterScale, Fields
from augury.plugins.server.json_route import api_router
from augury.plugins.server.llama_cpp.completion import generation_settings
from augury.plugins.server.models import AllModels
from augury.plugins.server.openai.answer import BUILD
from augury.plugins.server.server import Named, Server, Serving

router = api_router()


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
