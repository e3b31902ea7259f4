"""`augury bench --startup`: how long it takes to the first token, with nothing compiled and with everything compiled."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from augury.cli.report import print_json, print_lines, say
from augury.files.models import resolve
from augury.interfaces import Progress
from augury.plugins.bench.commands.drafters import TURNS
from augury.plugins.bench.startup import measure_startup

if TYPE_CHECKING:
    import argparse

__all__ = ["run_startup"]


def run_startup(args: argparse.Namespace) -> int:
    """Start processes that write one token each, and print their times."""
    path = resolve(args.model, args.registry, Progress())  # the children's cache folder holds no models
    words = ["run", "-m", str(path), "--prompt-tokens", "1", "-n", "1", "--temp", "0", "--ignore-eos"]
    words += ["--backend", args.backend, "--memory", args.memory]
    words += [] if args.ctx_size is None else ["-c", str(args.ctx_size)]
    words += ["-ctk", args.cache_type_k, "-ctv", args.cache_type_v]
    words += [] if args.threads is None else ["-t", str(args.threads)]
    if not args.json:
        say("compiling in an empty cache folder, as at the very first start")
    startup = measure_startup(words, args.turns or TURNS)
    warm_s = statistics.median(startup.warm_s)
    if args.json:
        warm_starts_s = list(startup.warm_s)
        print_json({"model": args.model, "cold_s": startup.cold_s, "warm_s": warm_s, "warm_starts_s": warm_starts_s})
        return 0
    spread = f"{min(startup.warm_s):.2f} to {max(startup.warm_s):.2f}"
    print_lines(
        [
            f"cold start to the first token: {startup.cold_s:.2f} s",
            f"warm start to the first token: {warm_s:.2f} s (median of {len(startup.warm_s)}, {spread})",
        ]
    )
    return 0
