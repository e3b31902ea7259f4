"""The machine and the configuration that figures were measured with, and how far apart its cores are: others do not compare.

Virtual machines are moved between placements of their cores within seconds. With the time that a number takes from one core to
another and back the bandwidth of memory changes: times of one token can only be compared at similar round trips.
"""

from __future__ import annotations

import os
import platform
import statistics
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

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
    """The machine, the model, and the settings: of an engine's `config`, in which the model goes by its own name."""
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


_N_WARM = 200
_N = 400  # round trips in a window; with three windows it takes about 1 ms
_N_WINDOWS = 3
_PATIENCE = 200_000_000  # looks, a fraction of a second: the other thread has no core


def round_trip_ns() -> float | None:
    """Nanoseconds between the first two cores that this process may use; the median of a few windows.

    Returns:
        None where there is one core only, threads cannot be bound to cores, or something else kept one of them busy.
    """
    if not hasattr(os, "sched_getaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        return None
    from augury.plugins.bench.kernels.ping_pong import ping_pong

    ball = np.zeros(16, np.int64)  # a cache line and more of its own
    address, windows = ball.ctypes.data, [_N_WARM + _N * i for i in range(_N_WINDOWS + 1)]
    seconds: list[float] = []

    both_there = threading.Barrier(2)

    def serve() -> None:
        _take(cores[0], both_there)
        if ping_pong(address, 0, 0, _N_WARM, _PATIENCE) != _N_WARM:
            return
        for first, last in pairwise(windows):
            start = perf_counter()
            if ping_pong(address, 0, first, last, _PATIENCE) != last:
                return
            seconds.append(perf_counter() - start)

    def play() -> None:
        _take(cores[1], both_there)
        ping_pong(address, 1, 0, windows[-1], _PATIENCE)

    threads = [threading.Thread(target=serve), threading.Thread(target=play)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(seconds) / _N * 1e9 if seconds else None


def _take(core: int, both_there: threading.Barrier) -> None:
    """Bind this thread to a core and, when the other has its own, take precedence over other programs on that core."""
    os.sched_setaffinity(0, {core})  # of the calling thread alone
    both_there.wait()
    with suppress(PermissionError):  # a thread without the right may be interrupted, which the median of windows bears
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
