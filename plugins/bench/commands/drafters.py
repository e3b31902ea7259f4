"""`augury bench drafters`: drafters against plain decoding, in turns, on the command line's prompts."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain, count as numbers, repeat
from pathlib import Path
from typing import Any

from augury import Engine, Registry, cli
from augury.errors import OptionError
from augury.files.atomic_file import write_atomically
from augury.interfaces import Progress
from augury.options import parse_specs
from augury.plugins.bench.machine import facts_as_json, run_facts
from augury.plugins.bench.page import page
from augury.plugins.bench.pair_stats import DrafterResult, PairStats, comparison_lines
from augury.plugins.bench.paired_runs import PairedRuns
from augury.plugins.bench.workload import DEFAULT, add_workload_flag, prompts_to_compare

# without a seed plain and drafted texts would differ
DEFAULTS: dict[str, Any] = {"temperature": 0.0, "seed": 1, "max_tokens": 128}
TURNS = 3


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "drafters",
        help="compare drafters with plain decoding",
        description="Compare drafters with plain decoding, in turns. Without prompts it takes a small workload of its own; "
        "unless told otherwise it decodes greedily, 128 tokens.",
    )
    cli.add_prompt_flags(parser, DEFAULT)
    cli.add_model_flags(parser, registry, argv, n_slots=None)
    cli.add_sampling_flags(parser, registry, has_short_stop=False)
    group = parser.add_argument_group("drafters compared")
    add_workload_flag(group)
    group.flag(
        "--against NAME[:K=V,...] ...", "another drafter to compare, beside that of --spec-type (default: auto); repeats"
    )
    group.flag(
        "-r --turns --repetitions N",
        f"runs of each prompt with and without each drafter (default: {TURNS})",
        cli.count(least=1),
        default=TURNS,
    )
    group.flag("--warm", "measure drafters also when they have seen the prompt before")
    group.flag("--html FILE", "write a page that shows speeds, drafts and texts", Path)
    parser.flag("--json", "print one JSON object")
    parser.show_first(f"-p -f {cli.FIRST_FLAGS} -n --temp --workload --against --turns --json --html", words=("model",))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.n_predict == 0:
        raise OptionError("-n is 0, but prompts are answered here; augury bench passes -p 512 -n 0 times prompts alone")
    if args.html is not None:
        cli.check_page(args.html)
    cli.warn_of_synthetic(args)
    if len(args.spec_type) > 1:
        first, *others = args.spec_type
        apart = shlex.join(["--spec-type", first, *(word for text in others for word in ("--against", text))])
        cli.say(f"augury bench drafters: repeated --spec-type flags are one chain; {apart} compares its parts")
    prompts, turns = prompts_to_compare(args), args.turns
    params = {**DEFAULTS, **cli.request_params(args)}
    results: list[DrafterResult] = []
    config: Mapping[str, Any] = {}
    with cli.ProgressDisplay() as display:
        compared = _drafters_compared(args)
        states = ("cold", "warm") if args.warm else ("cold",)
        n_pairs, number = len(compared) * len(states) * len(prompts) * turns, numbers()
        for spec_type, draft_model in compared:
            load = engine_loader(args, spec_type, draft_model, display)
            for state in states:
                pairs = []
                for prompt in prompts:
                    with closing(PairedRuns(load, params, prompt)) as runs:
                        for turn in range(turns):
                            display("pairs", next(number), n_pairs)
                            pairs.append(runs.pair(turn, is_warm=state == "warm"))
                    config = runs.config
                results.append(DrafterResult(config["spec_type"], state, tuple(pairs)))
    facts = run_facts(config, prompts, params["max_tokens"])
    found = facts_as_json(facts) | {"n_prompts": len(prompts), "turns": turns, "runs": [each.as_json() for each in results]}
    if args.json:
        cli.print_json(found)
    else:
        cli.print_lines(comparison_lines(results))
    if args.html is not None:
        write_atomically(args.html, page(facts, results))
    return exit_code(each.stats for each in results)


def exit_code(found: Iterable[PairStats]) -> int:
    """1, with a message, if a drafter changed an output that it must not change; else 0."""
    if any(stats.is_changed for stats in found):
        cli.say("augury: a drafter changed the output, which is a bug; please report it with this command")
        return 1
    return 0


def _drafters_compared(args: argparse.Namespace) -> list[tuple[list[str], str | None]]:
    """The drafters to compare, each with the draft model if it takes one."""
    found: list[tuple[list[str], str | None]] = []
    owner = cli.drafter_of_model(args.registry, args.model_draft, Progress()) if args.model_draft else None
    for texts in (args.spec_type or ["auto"], *([text] for text in args.against)):
        names = cli.names_in_use(texts, args.registry)
        is_auto = any(spec.name == "auto" for text in texts for spec in parse_specs(text))
        takes_model = is_auto or cli.takes_draft_model(names, args.registry, owner)
        found.append((texts, args.model_draft if takes_model else None))
    if args.model_draft is not None and not any(model for _, model in found):
        raise OptionError(
            "a draft model is given, but no drafter compared takes one; leave -md out, or add --against draft-model"
        )
    everyone = [name for texts, _ in found for name in cli.names_in_use(texts, args.registry)]
    cli.leave_out_unused(args, everyone if owner is None else [*everyone, owner])
    return found


def engine_loader(
    args: argparse.Namespace, spec_type: Sequence[str], draft_model: str | None, display: Progress, *, is_shown: bool = True
) -> Callable[[], Engine]:
    """Make a function that loads an engine; only its first call, if any, shows the configuration and progress."""
    quiet = argparse.Namespace(**{**vars(args), "verbose": 0, "quiet": True})
    ways = chain([(args, display)] * is_shown, repeat((quiet, Progress())))  # later loads are short, and say nothing

    def load() -> Engine:
        flags, progress = next(ways)
        return cli.load_engine(flags, tuple(spec_type), draft_model, progress)

    return load
