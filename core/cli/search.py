"""`augury search`: models that can be had."""

from __future__ import annotations

import argparse
from typing import Any

from augury.cli.report import print_lines, say
from augury.cli.table import align_rows
from augury.errors import ModelFileError
from augury.interfaces import FoundModel
from augury.registry import Registry


def add_parser(subparsers: Any, registry: Registry) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "search",
        help="look for models",
        description="Look for models among short names and on the Hugging Face Hub; `augury pull NAME` downloads one.",
    )
    parser.add_argument("words", metavar="WORD", nargs="*", help="words of a name; without any, all short names")
    parser.set_defaults(run=_run, registry=registry)


def _run(args: argparse.Namespace) -> int:
    text = " ".join(args.words)
    found: list[FoundModel] = []
    for source in args.registry.sources.values():
        try:
            found += source.search(text)
        except ModelFileError as error:
            say(f"augury: {error}")
    if not found:
        raise ModelFileError(f"no model was found for {text!r}; try fewer words")
    print_lines(align_rows([["name", "about"], *([each.reference, each.about] for each in found)]))
    return 0
