"""`augury bench servers`: `augury serve` beside another server, in turns, under the load of several clients."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from augury import Registry, cli
from augury.plugins.bench.abba import median_interval
from augury.plugins.bench.commands.drafters import TURNS
from augury.plugins.bench.commands.startup import model_words
from augury.plugins.bench.machine import machine_facts
from augury.plugins.bench.server_runner import GREEDY, Load, ServerProcess, run_load
from augury.plugins.bench.workload import DEFAULT, add_length_flag, add_workload_flag, digest, prompts_to_compare, with_answers

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
    group.flag("--vs URL", "the other server's address", _address, required=True)
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


def _address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError("an address such as http://127.0.0.1:8080")
    return text


def _run(args: argparse.Namespace) -> int:
    """Ask both servers, and print their clients' times."""
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
    """`augury serve` with the command line's model, to be started."""
    words = [*model_words(args, args.model), "-np", _N_SLOTS, "--no-ui"]
    words += [word for model in args.model_draft for word in ("-md", model)]
    words += [word for text in args.spec_type for word in ("--spec-type", text)]
    # -P: a folder named augury in the current one is not timed
    return ServerProcess("augury serve", [sys.executable, "-P", "-m", "augury", "serve"], words)
