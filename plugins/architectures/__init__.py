"""Model families: each file writes the plans of some; a new family is a file beside these, and nothing else."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from augury.hookspecs import hookimpl
from augury.interfaces import Architecture


@hookimpl
def augury_architectures() -> list[type[Architecture]]:
    """Offer every architecture that a file of this folder names."""
    files = [import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__)]
    return [*dict.fromkeys(kind for file in files for kind in vars(file).values() if _is_named(kind))]


def _is_named(kind: object) -> bool:
    """Whether something is an architecture with a name of its own, not one to build on."""
    return isinstance(kind, type) and issubclass(kind, Architecture) and "name" in vars(kind)
