"""`augury serve`: an HTTP server with OpenAI's interface and others, for the clients that people already have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from augury import Registry
from augury.hookspecs import hookimpl


@hookimpl
def augury_commands(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add both commands."""
    # here: a library's user waits for no command line
    from augury.plugins.server import command
    from augury.plugins.server.batch import command as batch

    for each in (command, batch):
        each.add_parser(subparsers, registry, argv)
