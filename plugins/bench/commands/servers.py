"""`augury bench servers` and `startup`: `augury serve` beside another server, under load, and starts to the first token."""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from time import perf_counter
from typing import Any

from augury import Registry, cli
from augury.errors import AuguryError
from augury.files.models import resolve
from augury.interfaces import Progress
from augury.plugins.bench.commands.drafters import TURNS
from augury.plugins.bench.machine import machine_facts
from augury.plugins.bench.server_runner import GREEDY, Load, ServerProcess, run_load
from augury.plugins.bench.timing import median_interval
from augury.plugins.bench.workload import DEFAULT, add_length_flag, add_workload_flag, digest, prompts_to_compare, with_answers


def add_startup_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
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
    parser.set_defaults(run=_time_starts)


def _time_starts(args: argparse.Namespace) -> int:
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


_CLIENTS = (1, 4, 16)
_PER_CLIENT = 2  # requests of each client in a turn, four at least in all
_N_SLOTS = 4
_GREEDY = {**GREEDY, "cache_prompt": False}
_SIDES = ("plain", "speculative", "theirs")
_FIGURES = {  # by name, of which requests, and which quantile
    "first token p50": ("first_s", 0.5),
    "first token p95": ("first_s", 0.95),
    "per token p50": ("token_s", 0.5),
    "per token p95": ("token_s", 0.95),
}


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "servers",
        help="compare augury serve with another server, under load",
        description="Start augury serve, and let it take turns with another server that has llama.cpp's /completion, under the "
        "load of several clients.",
    )
    cli.add_prompt_flags(parser, DEFAULT)
    cli.add_model_flags(parser, registry, argv, n_slots=None, has_drafters=False)
    group = parser.add_argument_group("servers compared")
    add_workload_flag(group)
    address = cli.expecting("an address such as http://127.0.0.1:8080", str, re.compile("https?://").match)
    group.flag("--vs URL", "the other server's address", address, required=True)
    group.flag("--spec-type NAME[:K=V,...] ...", "who drafts in augury serve (default: auto); repeats")
    group.flag("-md --model-draft MODEL ...", "a small model that drafts there")
    group.flag(
        "--clients N,N",
        f"how many clients ask at once (default: {','.join(map(str, _CLIENTS))})",
        cli.counts(least=1),
        default=_CLIENTS,
    )
    add_length_flag(group, 64, least=1)
    group.flag("-r --turns N", f"turns (default: {TURNS})", cli.count(least=1), default=TURNS)
    parser.flag("--json", "print one JSON object")
    parser.show_first("-p -f -m -t -n --spec-type --workload --vs --clients --turns --json", words=("model",))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    prompts, n_predict = prompts_to_compare(args), args.n_predict
    with _serving(args) as ours:
        # short answers, long ones and between, for requests of one length end together
        lengths = cycle((n_predict, max(n_predict // 4, 2), max(n_predict // 2, 2)))
        bodies = [_body(ours, prompt, n) for prompt, n in zip(prompts, lengths, strict=False)]
        found = {n: _turns(ours.url, args.vs, bodies, n, args.turns) for n in args.clients}
    if args.json:
        about = {"model": args.model, "workload": digest(prompts), "max_tokens": n_predict, "peer": args.vs}
        levels = [_as_json(n, loads) for n, loads in found.items()]
        cli.print_json(about | {"machine": machine_facts(), "servers": levels})
    else:
        cli.print_lines([*_lines(found), *_notes(found)])
    return 0


def _turns(ours: str, theirs: str, bodies: Sequence[dict[str, Any]], n_clients: int, n_turns: int) -> dict[str, list[Load]]:
    """The loads of each side, turn by turn; the sides' order turns round from turn to turn."""
    asked = list(islice(cycle(bodies), max(_PER_CLIENT * n_clients, 4)))
    plain = [{**body, "speculative": False} for body in asked]
    sides: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "plain": (ours, plain),
        "speculative": (ours, asked),
        "theirs": (theirs, asked),
    }
    found: dict[str, list[Load]] = {side: [] for side in _SIDES}
    for turn in range(n_turns):
        for side in _SIDES if turn % 2 == 0 else reversed(_SIDES):
            found[side].append(run_load(*sides[side], n_clients))
    return found


def _body(ours: ServerProcess, prompt: cli.Prompt, n_predict: int) -> dict[str, Any]:
    """A request that both servers take: conversations are written by augury's chat template."""
    given = prompt.arguments()
    if "messages" not in given:
        return {"prompt": given["prompt"], "n_predict": n_predict, **_GREEDY}

    def asked(messages: list[Any]) -> dict[str, Any]:
        text = ours.post("/apply-template", {"messages": messages})["prompt"]
        return {"prompt": text, "n_predict": n_predict, **_GREEDY}

    def answer(messages: list[Any]) -> str:
        return str(ours.post("/completion", {**asked(messages), "ignore_eos": False})["content"])

    return asked(with_answers(given["messages"], answer))


def _as_json(n_clients: int, loads: Mapping[str, Sequence[Load]]) -> dict[str, Any]:
    found: dict[str, Any] = {"clients": n_clients}
    for side, turns in loads.items():
        found[side] = {
            "requests_per_s": statistics.median(load.requests_per_second for load in turns),
            "tokens_per_s": statistics.median(load.tokens_per_second for load in turns),
        } | {_key(name): statistics.median(load.quantile(*what) for load in turns) * 1e3 for name, what in _FIGURES.items()}
    for side in ("plain", "speculative"):
        pairs = zip(loads[side], loads["theirs"], strict=True)  # turn by turn
        ratios = [mine.requests_per_second / other.requests_per_second for mine, other in pairs]
        found[side] |= {"ratio": statistics.median(ratios), "interval": list(median_interval(ratios))}
    return found | {"same_text": _alike(loads, "plain", "theirs")}


def _key(name: str) -> str:
    return f"{name.replace(' ', '_')}_ms"


def _alike(loads: Mapping[str, Sequence[Load]], one: str, other: str) -> float:
    """The share of answers that the clients of two sides got alike."""
    turns = zip(loads[one], loads[other], strict=True)
    pairs = [pair for a, b in turns for pair in zip(a.requests, b.requests, strict=True)]
    return sum(a.text == b.text for a, b in pairs) / len(pairs)


def _lines(found: Mapping[int, Mapping[str, Sequence[Load]]]) -> list[str]:
    rows = [["clients", "server", "requests/s", "tokens/s", *(f"{name} ms" for name in _FIGURES), "ratio", "95 % interval"]]
    for n, loads in found.items():
        figures = _as_json(n, loads)
        for side in _SIDES:
            each = figures[side]
            cells = [str(n), side, f"{each['requests_per_s']:.2f}", f"{each['tokens_per_s']:.1f}"]
            cells += [f"{each[_key(name)]:.1f}" for name in _FIGURES]
            low, high = each.get("interval", (0, 0))
            rows.append([*cells, *([f"{each['ratio']:.2f}", f"{low:.2f} to {high:.2f}"] if "ratio" in each else ["", ""])])
    return cli.align_rows(rows, [True, False, *[True] * 8])


def _notes(found: Mapping[int, Mapping[str, Sequence[Load]]]) -> list[str]:
    differ = any(_alike(loads, "plain", "speculative") < 1 for loads in found.values())
    same = statistics.mean(_alike(loads, "plain", "theirs") for loads in found.values())
    note = (
        f"texts with and without speculation {'differ' if differ else 'are the same'}; {same:.0%} are those of the other server"
    )
    return ["", "ratio: our requests per second over theirs, the median of turns beside each other", note]


def _serving(args: argparse.Namespace) -> ServerProcess:
    words = [*model_words(args, args.model), "-np", _N_SLOTS, "--no-ui"]
    words += [word for model in args.model_draft for word in ("-md", model)]
    words += [word for text in args.spec_type for word in ("--spec-type", text)]
    # -P: a folder named augury in the current one is not timed
    return ServerProcess("augury serve", [sys.executable, "-P", "-m", "augury", "serve"], words)
