"""Backend `remote`: layers of a model, or a draft model, on other machines, and `augury node`, which computes them there."""

from __future__ import annotations

from typing import Any

from augury.backends.remote.backend import RemoteBackend, RemoteOptions
from augury.hookspecs import hookimpl
from augury.interfaces import Backend
from augury.registry import Registry

__all__ = ["RemoteBackend", "RemoteOptions"]


@hookimpl
def augury_backends() -> tuple[type[Backend], ...]:
    """Offer `remote`."""
    return (RemoteBackend,)


@hookimpl
def augury_commands(subparsers: Any, registry: Registry) -> None:
    """Add `augury node`."""
    from augury.backends.remote.command import add_parser  # here: a library's user waits for no command line

    add_parser(subparsers, registry)
