"""`augury learn`: trains an EAGLE-3 head for a model, on texts or on the model's own answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from augury import Registry
from augury.hookspecs import hookimpl


@hookimpl
def augury_commands(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    from augury.plugins.learn import command  # here: a library's user waits for no command line

    command.add_parser(subparsers, registry, argv)
