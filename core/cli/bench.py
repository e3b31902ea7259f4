"""`augury bench`: this model and these texts, plain decoding against drafters, in turns; what else it times lies beside.

Each drafter gets an engine of its own, one after another, so that one model at a time is in memory. On each engine plain and
drafted generation take turns (plain, drafted, drafted, plain, ...), so that a machine that grows slower or faster meanwhile is
unfair to neither. Prompts are processed anew each time, and only generation is timed.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.cli.bench_passes import add_pass_flags, are_passes_wanted, run_passes
from augury.cli.bench_startup import run_startup
from augury.cli.model_flags import add_model_flags, load_engine
from augury.cli.prompts import add_prompt_flags, read_prompts
from augury.cli.report import say, spec_type_of, table
from augury.cli.sampling_flags import add_sampling_flags, request_params
from augury.errors import OptionError
from augury.options import options_of, parse_specs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from augury.cli.prompts import Prompt
    from augury.engine import Engine
    from augury.registry import Registry
    from augury.types import Result

__all__ = ["add_parser"]

_SEED = 1  # plain and drafted texts are only the same with the same seed


@frozen
class Comparison:
    """A drafter against plain decoding; speeds are medians over the turns."""

    spec_type: str
    plain_per_second: float
    predicted_per_second: float
    speedup: float
    n_predicted: int
    n_drafted: int
    n_accepted: int
    acceptance_rate: float
    mean_accepted_length: float
    is_identical: bool


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help="time the model, and compare drafters with plain decoding",
        description="Compare drafters with plain decoding, in turns, or time passes or starts.",
    )
    add_prompt_flags(parser)
    add_model_flags(parser, registry, argv, has_slots=False)
    add_sampling_flags(parser)
    parser.add_argument(
        "--turns", type=int, default=3, metavar="N", help="generations with and without each drafter (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--startup", action="store_true", help="time a cold and --turns warm starts to the first token instead")
    add_pass_flags(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    is_about_passes = are_passes_wanted(args)
    if args.startup and is_about_passes:
        raise OptionError("--startup times starts alone; time passes with a command of their own")
    if args.startup:
        return run_startup(args)
    return run_passes(args) if is_about_passes else _run_drafters(args)


def _run_drafters(args: argparse.Namespace) -> int:
    if args.turns < 1:
        raise OptionError(f"--turns is {args.turns}, expected at least 1")
    params = {"seed": _SEED} | request_params(args) | {"cache_prompt": False}
    prompts = read_prompts(args)
    comparisons = []
    for spec_type, draft_model in _competitors(args):
        engine = load_engine(args, [spec_type], draft_model)
        with engine:
            about = {"model": engine.config["model"], "backend": engine.config["backend"], "threads": engine.config["threads"]}
            comparisons.append(_compare(engine, prompts, params, args.turns))
    if args.json:
        told = about | {"n_prompts": len(prompts), "turns": args.turns, "runs": [_told(each) for each in comparisons]}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        for line in _lines(comparisons):
            sys.stdout.write(f"{line}\n")
    if not all(each.is_identical for each in comparisons):
        say("augury: a drafter changed the output, which is a bug; please report it with this command")
        return 1
    return 0


def _competitors(args: argparse.Namespace) -> list[tuple[str, str | None]]:
    """The drafters to compare, each with the draft model if it takes one."""
    specs = [spec for text in args.spec_type for spec in parse_specs(text) if spec.name != "none"]
    names = [str(spec) for spec in specs] or (["draft-model"] if args.model_draft else ["ngram-simple"])
    competitors = []
    for text in names:
        drafter = args.registry.find("drafter", parse_specs(text)[0].name)
        takes_model = "model" in options_of(drafter.options_class)
        competitors.append((text, args.model_draft if takes_model else None))
    return competitors


def _compare(engine: Engine, prompts: Sequence[Prompt], params: dict[str, Any], turns: int) -> Comparison:
    for mode in ({"type": "none"}, {}):  # the first pass of either kind touches memory for the first time
        _generate(engine, prompts, params | {"max_tokens": 8}, mode)
    plain: list[list[Result]] = []
    drafted: list[list[Result]] = []
    for turn in range(turns):
        pair: list[tuple[dict[str, str], list[list[Result]]]] = [({"type": "none"}, plain), ({}, drafted)]
        for mode, results in pair if turn % 2 == 0 else reversed(pair):
            results.append(_generate(engine, prompts, params, mode))
    first = drafted[0]
    texts = [[result.tokens for result in results] for results in (*plain, *drafted)]
    n_drafted, n_accepted = (sum(getattr(each.stats, name) for each in first) for name in ("n_drafted", "n_accepted"))
    n_rounds, n_emitted = (sum(getattr(each.stats, name) for each in first) for name in ("n_rounds", "n_emitted"))
    plain_speed, speed = (statistics.median(map(_speed, each)) for each in (plain, drafted))
    return Comparison(
        spec_type=spec_type_of(engine),
        plain_per_second=plain_speed,
        predicted_per_second=speed,
        speedup=speed / plain_speed if plain_speed else 0.0,
        n_predicted=n_emitted,
        n_drafted=n_drafted,
        n_accepted=n_accepted,
        acceptance_rate=n_accepted / n_drafted if n_drafted else 0.0,
        mean_accepted_length=n_emitted / n_rounds if n_rounds else 0.0,
        is_identical=all(each == texts[0] for each in texts),
    )


def _generate(engine: Engine, prompts: Sequence[Prompt], params: dict[str, Any], speculative: dict[str, str]) -> list[Result]:
    """One prompt after another, so that a prompt's speed is its own."""
    return [engine.submit(**(params | prompt.arguments() | {"speculative": speculative})).result() for prompt in prompts]


def _speed(results: Sequence[Result]) -> float:
    seconds = sum(result.stats.timings.predict_s for result in results)
    return sum(result.stats.timings.n_predicted for result in results) / seconds if seconds > 0 else 0.0


def _told(comparison: Comparison) -> dict[str, Any]:
    return {
        "spec_type": comparison.spec_type,
        "plain_per_second": comparison.plain_per_second,
        "predicted_per_second": comparison.predicted_per_second,
        "speedup": comparison.speedup,
        "tokens": comparison.n_predicted,
        "drafted": comparison.n_drafted,
        "accepted": comparison.n_accepted,
        "acceptance_rate": comparison.acceptance_rate,
        "mean_accepted_length": comparison.mean_accepted_length,
        "identical": comparison.is_identical,
    }


def _lines(comparisons: Sequence[Comparison]) -> list[str]:
    rows = [["drafter", "plain tok/s", "tok/s", "speed-up", "accepted", "tokens/round", "identical"]]
    rows += [
        [
            each.spec_type,
            f"{each.plain_per_second:.1f}",
            f"{each.predicted_per_second:.1f}",
            f"{each.speedup:.2f}x",
            f"{each.n_accepted} of {each.n_drafted} ({each.acceptance_rate:.0%})",
            f"{each.mean_accepted_length:.2f}",
            "yes" if each.is_identical else "NO",
        ]
        for each in comparisons
    ]
    return table(rows, is_right=(False, True, True, True, True, True, False))
