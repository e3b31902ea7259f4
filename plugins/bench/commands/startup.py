"""`augury bench startup`: the time to the first token, with nothing compiled and with everything compiled."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from augury import Registry, cli
from augury.errors import AuguryError
from augury.files.models import resolve
from augury.interfaces import Progress
from augury.plugins.bench.commands.drafters import TURNS


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "startup",
        help="time starts to the first token",
        description="Time the start of augury run to its first token: once with nothing compiled, and then with everything.",
    )
    cli.add_model_flags(parser, registry, argv, n_slots=None, has_drafters=False)
    parser.flag("-r --turns N", f"warm starts (default: {TURNS})", cli.count(least=1), default=TURNS)
    parser.flag("--json", "print one JSON object")
    parser.show_first("-m -c -t --backend --turns --json", words=("model",))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Start processes that write one token each, and print their times."""
    path = resolve(args.model, args.registry, Progress())  # the children's cache folder holds no models
    words = ["run", *model_words(args, str(path)), "--prompt-tokens", "1", "-n", "1", "--temp", "0", "--ignore-eos"]
    if not args.json:
        cli.say("compiling in an empty cache folder, as at the very first start")
    cold_s, *warm_starts_s = measure_startup(words, args.turns)
    warm_s = statistics.median(warm_starts_s)
    if args.json:
        cli.print_json({"model": args.model, "cold_s": cold_s, "warm_s": warm_s, "warm_starts_s": warm_starts_s})
        return 0
    spread = f"{min(warm_starts_s):.2f} to {max(warm_starts_s):.2f}"
    cli.print_lines(
        [
            f"cold start to the first token: {cold_s:.2f} s",
            f"warm start to the first token: {warm_s:.2f} s (median of {len(warm_starts_s)}, {spread})",
        ]
    )
    return 0


def model_words(args: argparse.Namespace, model: str) -> list[str]:
    """The flags that load a model as the command line says, for another `augury`."""
    words = ["-m", model, "--backend", args.backend, "--memory", args.memory]
    words += ["-ctk", args.cache_type_k, "-ctv", args.cache_type_v, *cli.override_words(args), *cli.placement_words(args)]
    given = {"-c": args.ctx_size, "-t": args.threads}
    return words + [str(word) for flag, value in given.items() if value is not None for word in (flag, value)]


def measure_startup(words: Sequence[str], n_warm: int) -> list[float]:
    """Start `augury` with `words` once with an empty cache folder, and `n_warm` times with the files of that start.

    The model's file is in the system's file cache in the later starts, and whether it is in the first is not touched.

    Returns:
        Seconds of each to the first token.

    Raises:
        AuguryError: A process failed.
    """
    with tempfile.TemporaryDirectory(prefix="augury-startup-") as folder:
        env = os.environ | {"XDG_CACHE_HOME": folder}
        return [_first_output_s(words, env) for _ in range(1 + n_warm)]


def _first_output_s(words: Sequence[str], env: Mapping[str, str]) -> float:
    # -P: a folder named augury in the current one is not timed
    command = [sys.executable, "-P", "-m", "augury", *words]
    with tempfile.TemporaryFile() as log:
        start = perf_counter()
        with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log) as process:  # noqa: S603
            assert process.stdout is not None
            has_output = bool(process.stdout.read(1))
            seconds = perf_counter() - start
            process.stdout.read()
        if process.returncode or not has_output:
            log.seek(0)
            last = log.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise AuguryError(f"a start ended with code {process.returncode} before its first token: {last}")
    return seconds
