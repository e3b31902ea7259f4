"""Drafters against plain decoding on the command line's prompts: runs them and says what came of it."""

from __future__ import annotations

import argparse
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from augury.cli.drafter_flags import drafter_options, names_in_use
from augury.cli.model_flags import load_engine
from augury.cli.progress import ProgressDisplay
from augury.cli.report import print_json, print_lines, say
from augury.cli.sampling_flags import request_params
from augury.errors import OptionError
from augury.files.atomic_file import write_atomically
from augury.interfaces import Progress
from augury.options import options_of, parse_specs
from augury.plugins.bench.commands.changes import change_lines, changes_told, check_saved
from augury.plugins.bench.commands.items import read_items
from augury.plugins.bench.comparison import comparison_lines
from augury.plugins.bench.contest import Contest
from augury.plugins.bench.machine import facts_told, run_facts
from augury.plugins.bench.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from augury.engine.engine import Engine
    from augury.plugins.bench.figures import Figures
    from augury.plugins.bench.workload import Item

__all__ = ["DEFAULTS", "TURNS", "exit_code", "run_drafters"]

# without a seed plain and drafted texts would differ
DEFAULTS: dict[str, Any] = {"temperature": 0.0, "seed": 1, "max_tokens": 128}
TURNS = 3


def run_drafters(args: argparse.Namespace) -> int:
    """Compare, print, and fail where a drafter changed the output."""
    check_saved(args.compare, of_passes=False)
    items = read_items(args)
    params = {**DEFAULTS, **request_params(args)}
    turns = args.turns or TURNS
    outcomes: list[Outcome] = []
    facts: dict[str, Any] = {}
    competitors = _competitors(args)
    with ProgressDisplay() as display:
        beginnings = _told(display, len(competitors) * len(items) * turns * (1 + args.warm))
        for spec_type, draft_model in competitors:
            load = _loader(args, spec_type, draft_model, display)
            found, config = _compete(args, items, partial(Contest, load, params), turns, beginnings)
            outcomes += found
            facts = run_facts(config, items, params["max_tokens"])
    told = facts_told(facts) | {"n_prompts": len(items), "turns": turns, "runs": [each.told() for each in outcomes]}
    if args.json:
        told |= {} if args.compare is None else {"changes": changes_told(args.compare, told)}
        print_json(told)
    else:
        rows = {(each.label, name): [figures] for each in outcomes for name, figures in each.by_category.items()}
        lines = comparison_lines(rows) + ([] if args.compare is None else change_lines(args.compare, told))
        print_lines(lines)
    if args.html is not None:
        from augury.plugins.bench.page import page

        write_atomically(args.html, page(facts, outcomes))
    return exit_code(each.figures for each in outcomes)


def exit_code(found: Iterable[Figures]) -> int:
    """1, and a word about it, where a drafter changed an output that it never may; else 0."""
    if any(figures.is_changed for figures in found):
        say("augury: a drafter changed the output, which is a bug; please report it with this command")
        return 1
    return 0


def _competitors(args: argparse.Namespace) -> list[tuple[list[str], str | None]]:
    """The drafters to compare, each with the draft model if it takes one."""
    others = [[text] for text in args.against]
    found: list[tuple[list[str], str | None]] = []
    for texts in [args.spec_type, *others] if args.spec_type else others or [["auto"]]:
        names = names_in_use(texts, args.registry)
        is_auto = any(spec.name == "auto" for text in texts for spec in parse_specs(text))
        takes_model = is_auto or any("model" in options_of(args.registry.find("drafter", name).options_class) for name in names)
        found.append((texts, args.model_draft if takes_model else None))
    if args.model_draft is not None and not any(model for _, model in found):
        raise OptionError(
            "a draft model is given, but no drafter compared takes one; leave -md out, or add --against draft-model"
        )
    everyone = [name for texts, _ in found for name in names_in_use(texts, args.registry)]
    for name in drafter_options(args, everyone):
        if name not in everyone:
            raise OptionError(f"options are given for {name}, which is not among the drafters compared")
    return found


def _loader(
    args: argparse.Namespace, spec_type: Sequence[str], draft_model: str | None, display: Progress
) -> Callable[[], Engine]:
    """Loads one drafter's engine again and again, and shows its configuration and how far it has come once."""
    quiet = argparse.Namespace(**{**vars(args), "verbose": 0, "quiet": True})
    ways = chain([(args, display)], repeat((quiet, Progress())))  # later loads are short, and say nothing

    def load() -> Engine:
        flags, progress = next(ways)
        return load_engine(flags, tuple(spec_type), draft_model, progress)

    return load


def _told(display: Progress, n_pairs: int) -> Iterator[None]:
    """Each step is the beginning of a pair, of which `display` is told."""
    for n_done in range(n_pairs):
        display("pairs", n_done, n_pairs)
        yield


def _compete(
    args: argparse.Namespace,
    items: Sequence[Item],
    contest_of: Callable[[Item], Contest],
    turns: int,
    beginnings: Iterator[None],
) -> tuple[list[Outcome], Mapping[str, Any]]:
    """One drafter on all prompts, cold and, if asked for, warm; and its engines' configuration. Each pair takes a beginning."""
    outcomes = []
    config: Mapping[str, Any] = {}
    for state in ("cold", "warm") if args.warm else ("cold",):
        pairs = []
        for item in items:
            contest = contest_of(item)
            try:
                for turn in range(turns):
                    next(beginnings)
                    pairs.append(contest.pair(turn, is_warm=state == "warm"))
            finally:
                contest.close()
            config = contest.config
        outcomes.append(Outcome(config["spec_type"], state, tuple(pairs)))
    return outcomes, config
