"""Drafters against plain decoding on the command line's prompts: runs them and says what came of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve

from augury.bench.contest import Contest
from augury.bench.machine import run_facts
from augury.bench.outcome import Outcome
from augury.bench.workload import Item, builtin_workload, read_workload
from augury.cli.bench_compare import change_lines, changes_told, check_saved
from augury.cli.bench_table import comparison_lines
from augury.cli.drafter_flags import drafter_options, names_in_use
from augury.cli.model_flags import load_engine
from augury.cli.prompts import read_prompts
from augury.cli.report import say
from augury.cli.sampling_flags import request_params
from augury.errors import OptionError
from augury.options import options_of, parse_specs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from augury.engine import Engine

__all__ = ["DEFAULTS", "items_of", "run_drafters"]

DEFAULTS = {"temperature": 0.0, "seed": 1, "max_tokens": 128}  # without a seed plain and drafted texts would differ


def run_drafters(args: argparse.Namespace) -> int:
    """Compare, print, and fail where a drafter changed the output."""
    check_saved(args.compare, of_passes=False)
    items = items_of(args)
    params = {**DEFAULTS, **request_params(args)}
    outcomes: list[Outcome] = []
    facts: dict[str, Any] = {}
    for spec_type, draft_model in _competitors(args):
        load = _loader(args, spec_type, draft_model)
        found, config = _compete(args, items, partial(Contest, load, params))
        outcomes += found
        facts = run_facts(config, items, params["max_tokens"])
    told = _told(facts, outcomes, n_prompts=len(items), turns=args.turns)
    if args.html is not None:
        from augury.bench.page import page

        args.html.write_text(page(facts, outcomes), encoding="utf-8")
    if args.json:
        told |= {} if args.compare is None else {"changes": changes_told(args.compare, told)}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        rows = {(each.label, name): [figures] for each in outcomes for name, figures in each.by_category.items()}
        lines = comparison_lines(rows) + ([] if args.compare is None else change_lines(args.compare, told))
        sys.stdout.writelines(f"{line}\n" for line in lines)
    if any(each.figures.is_changed for each in outcomes):
        say("augury: a drafter changed the output, which is a bug; please report it with this command")
        return 1
    return 0


def items_of(args: argparse.Namespace) -> list[Item]:
    """The command line's prompts; those of the built-in workload where there are none, and none wait at standard input."""
    items = [item for path in args.workload for item in read_workload(path)]
    is_given = args.prompt or args.prompt_tokens or args.file
    if is_given or not (items or _is_silent()):
        try:
            prompts = read_prompts(args)
        except OptionError:
            if is_given:
                raise
            prompts = []  # standard input was empty
        for number, prompt in enumerate(prompts, start=1):
            arguments = prompt.arguments()
            name, category = arguments.pop("id", str(number)), arguments.pop("category", "all")
            items.append(Item(str(name), str(category), arguments))
    return _distinct(items) or builtin_workload()


def _distinct(items: Sequence[Item]) -> list[Item]:
    """The same items, with ids that tell them apart where they come from several files."""
    seen: Counter[str] = Counter()
    found = []
    for item in items:
        seen[item.id] += 1
        found.append(item if seen[item.id] == 1 else evolve(item, id=f"{item.id} ({seen[item.id]})"))
    return found


def _is_silent() -> bool:
    return sys.stdin is None or sys.stdin.closed or sys.stdin.isatty()


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


def _loader(args: argparse.Namespace, spec_type: Sequence[str], draft_model: str | None) -> Callable[[], Engine]:
    """Loads one drafter's engine again and again, and shows its configuration once."""
    shown = [args, argparse.Namespace(**{**vars(args), "verbose": False, "quiet": True})]

    def load() -> Engine:
        return load_engine(shown.pop(0) if len(shown) > 1 else shown[0], tuple(spec_type), draft_model)

    return load


def _compete(
    args: argparse.Namespace, items: Sequence[Item], contest_of: Callable[[Item], Contest]
) -> tuple[list[Outcome], Mapping[str, Any]]:
    """One drafter on all prompts, cold and, if asked for, warm; and its engines' configuration."""
    outcomes = []
    config: Mapping[str, Any] = {}
    for state in ("cold", "warm") if args.warm else ("cold",):
        pairs = []
        for item in items:
            contest = contest_of(item)
            try:
                pairs += [contest.pair(turn, is_warm=state == "warm") for turn in range(args.turns)]
            finally:
                contest.close()
            config = contest.config
        outcomes.append(Outcome(config["spec_type"], state, tuple(pairs)))
    return outcomes, config


def _told(facts: Mapping[str, Any], outcomes: Sequence[Outcome], **counts: int) -> dict[str, Any]:
    about = {key: facts[key] for key in ("model", "backend", "threads")}
    return {**about, "machine": dict(facts), **counts, "runs": [each.told() for each in outcomes]}
