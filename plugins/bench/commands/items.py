"""Where comparisons find prompts: the command line's, workloads, or those of standard input."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from augury.cli.prompts import read_prompts
from augury.errors import OptionError
from augury.plugins.bench.workload import Item, builtin_workload, read_workload

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["ITEMS", "add_workload_flag", "read_items"]

ITEMS = "those of standard input, if any, or else a small workload"  # where `read_items` finds prompts


def add_workload_flag(group: Any) -> None:
    """Add `--workload`, for commands that compare by category."""
    group.add_argument(
        "--workload",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help='prompts as JSON lines with "id", "category", and "messages", "prompt" or "tokens"; repeats',
    )


def read_items(args: argparse.Namespace) -> list[Item]:
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
            name = str(number) if prompt.id is None else str(prompt.id)
            category = "all" if prompt.category is None else str(prompt.category)
            items.append(Item(name, category, prompt.arguments()))
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
