"""Drafters against plain decoding on the command line's prompts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain, count, repeat
from typing import Any

from augury import Engine
from augury.cli import (
    ProgressDisplay,
    drafter_of_model,
    leave_out_unused,
    load_engine,
    names_in_use,
    request_params,
    say,
    takes_draft_model,
)
from augury.errors import OptionError
from augury.files.atomic_file import write_atomically
from augury.interfaces import Progress
from augury.options import parse_specs
from augury.plugins.bench.comparison_table import comparison_lines
from augury.plugins.bench.machine import facts_as_json, run_facts
from augury.plugins.bench.pair_stats import DrafterResult, PairStats
from augury.plugins.bench.paired_runs import PairedRuns
from augury.plugins.bench.saved_results import check_saved, print_figures
from augury.plugins.bench.workload import prompts_to_compare

# without a seed plain and drafted texts would differ
DEFAULTS: dict[str, Any] = {"temperature": 0.0, "seed": 1, "max_tokens": 128}
TURNS = 3


def run_drafters(args: argparse.Namespace) -> int:
    """Compare, print, and fail where a drafter changed the output."""
    check_saved(args.compare, of_passes=False)
    prompts, turns = prompts_to_compare(args), args.turns or TURNS
    params = {**DEFAULTS, **request_params(args)}
    results: list[DrafterResult] = []
    config: Mapping[str, Any] = {}
    with ProgressDisplay() as display:
        compared = _drafters_compared(args)
        states = ("cold", "warm") if args.warm else ("cold",)
        n_pairs, numbers = len(compared) * len(states) * len(prompts) * turns, count()
        for spec_type, draft_model in compared:
            load = engine_loader(args, spec_type, draft_model, display)
            for state in states:
                pairs = []
                for prompt in prompts:
                    with closing(PairedRuns(load, params, prompt)) as runs:
                        for turn in range(turns):
                            display("pairs", next(numbers), n_pairs)
                            pairs.append(runs.pair(turn, is_warm=state == "warm"))
                    config = runs.config
                results.append(DrafterResult(config["spec_type"], state, tuple(pairs)))
    facts = run_facts(config, prompts, params["max_tokens"])
    found = facts_as_json(facts) | {"n_prompts": len(prompts), "turns": turns, "runs": [each.as_json() for each in results]}
    rows = {(each.label, name): [stats] for each in results for name, stats in each.by_category.items()}
    print_figures(found, comparison_lines(rows), args)
    if args.html is not None:
        from augury.plugins.bench.page import page

        write_atomically(args.html, page(facts, results))
    return exit_code(each.stats for each in results)


def exit_code(found: Iterable[PairStats]) -> int:
    """1, with a message, if a drafter changed an output that it must not change; else 0."""
    if any(stats.is_changed for stats in found):
        say("augury: a drafter changed the output, which is a bug; please report it with this command")
        return 1
    return 0


def _drafters_compared(args: argparse.Namespace) -> list[tuple[list[str], str | None]]:
    """The drafters to compare, each with the draft model if it takes one."""
    found: list[tuple[list[str], str | None]] = []
    owner = drafter_of_model(args.registry, args.model_draft, Progress()) if args.model_draft else None
    for texts in (args.spec_type or ["auto"], *([text] for text in args.against)):
        names = names_in_use(texts, args.registry)
        is_auto = any(spec.name == "auto" for text in texts for spec in parse_specs(text))
        takes_model = is_auto or takes_draft_model(names, args.registry, owner)
        found.append((texts, args.model_draft if takes_model else None))
    if args.model_draft is not None and not any(model for _, model in found):
        raise OptionError(
            "a draft model is given, but no drafter compared takes one; leave -md out, or add --against draft-model"
        )
    everyone = [name for texts, _ in found for name in names_in_use(texts, args.registry)]
    leave_out_unused(args, everyone if owner is None else [*everyone, owner])
    return found


def engine_loader(
    args: argparse.Namespace, spec_type: Sequence[str], draft_model: str | None, display: Progress, *, is_shown: bool = True
) -> Callable[[], Engine]:
    """Make a function that loads an engine; only its first call, if any, shows the configuration and progress."""
    quiet = argparse.Namespace(**{**vars(args), "verbose": 0, "quiet": True})
    ways = chain([(args, display)] * is_shown, repeat((quiet, Progress())))  # later loads are short, and say nothing

    def load() -> Engine:
        flags, progress = next(ways)
        return load_engine(flags, tuple(spec_type), draft_model, progress)

    return load
