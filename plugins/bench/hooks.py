"""Adds `augury bench` and `augury tune`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from augury import Registry
from augury.hookspecs import hookimpl


@hookimpl
def augury_commands(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add both commands."""
    from augury.plugins.bench.commands import bench, tune  # here: a library's user waits for no command line

    bench.add_parser(subparsers, registry, argv)
    tune.add_parser(subparsers, registry, argv)
