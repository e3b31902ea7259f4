"""The machine and the configuration that figures were measured with: others cannot be compared with them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from augury.cli import Prompt
from augury.plugins.bench.workload import digest

_DEPENDENCIES = ("numpy", "numba")


def machine_facts() -> dict[str, Any]:
    """The machine and the software, to tell whether two runs can be compared."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "augury": metadata.version("augury"),
    } | {name: metadata.version(name) for name in _DEPENDENCIES}


def run_facts(config: Mapping[str, Any], prompts: Iterable[Prompt], max_tokens: int) -> dict[str, Any]:
    """The machine, the model, and the settings.

    Args:
        config: Of an engine; of `PairedRuns.config`, where the model goes by its own name.
        prompts: The whole workload.
        max_tokens: The most tokens of a run.
    """
    loaded = {key: config[key] for key in ("model", "backend", "isa", "threads")}
    speculative = config.get("speculative", {})
    made = {
        "drafts": "fixed" if speculative.get("is_fixed") else "planned",
        "workload": digest(prompts),
        "max_tokens": max_tokens,
    }
    if rates := speculative.get("synthetic"):
        made["acceptance"] = "synthetic: " + ", ".join(f"{rate:g}" for rate in rates)
    return machine_facts() | loaded | made


def facts_as_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`run_facts` as a comparison's JSON begins."""
    return {key: facts[key] for key in ("model", "backend", "threads")} | {"machine": dict(facts)}


def _cpu() -> str:
    """The processor's name and family: virtual machines call several generations by one name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(line.partition(":")[::2] for line in text.split("\n\n")[0].splitlines())
    fields = {key.strip(): value.strip() for key, value in found.items()}
    name = fields.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model") if key in fields]
    return f"{name} ({', '.join(numbers)})" if numbers else name
