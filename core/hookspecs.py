"""Every hook that augury calls.

A plugin is a module (or object) named by an entry point of the group `augury`, with functions marked by `hookimpl`. Hooks
compose the system when it starts; the classes they return do the work. The module's top level should import nothing heavy:
kernels and devices belong into the constructors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pluggy

from augury.constraint import Constraint
from augury.interfaces import Architecture, Backend, Drafter, FileFormat, MemoryManager, Source
from augury.types import ModelInfo, Round, Summary

hookspec = pluggy.HookspecMarker("augury")
hookimpl = pluggy.HookimplMarker("augury")
"""Marks a plugin's function as an implementation of the hook of its name."""


# Kinds of plugins. Called once, when the registry is built.


@hookspec
def augury_backends() -> Iterable[type[Backend]]:  # type: ignore[empty-body]
    """Offer backends. Called once, when the registry is built. Result: all are collected; a name may occur once."""


@hookspec
def augury_drafters() -> Iterable[type[Drafter]]:  # type: ignore[empty-body]
    """Offer drafters, for `--spec-type`. Called once, when the registry is built. Result: all are collected."""


@hookspec
def augury_memory_managers() -> Iterable[type[MemoryManager]]:  # type: ignore[empty-body]
    """Offer memory managers. Called once, when the registry is built. Result: all are collected."""


@hookspec
def augury_architectures() -> Iterable[type[Architecture]]:  # type: ignore[empty-body]
    """Offer architectures. Called once, when the registry is built. Result: all are collected."""


@hookspec
def augury_constraints() -> Iterable[type[Constraint]]:  # type: ignore[empty-body]
    """Offer constraints, for `--constraint`. Called once, when the registry is built. Result: all are collected."""


@hookspec
def augury_sources() -> Iterable[type[Source]]:  # type: ignore[empty-body]
    """Offer sources of model files. Called once, when the registry is built. Result: all are collected, asked in order."""


@hookspec
def augury_formats() -> Iterable[type[FileFormat]]:  # type: ignore[empty-body]
    """Offer formats of model files beside GGUF. Called once, when the registry is built. Result: all are collected."""


# Start-up choices


@hookspec(firstresult=True)
def augury_choose(kind: str, names: Sequence[str], model: ModelInfo | None) -> str | None:
    """Choose a plugin of `kind` ("backend", "memory", "drafter") among `names`; of drafters several, as in "suffix;recycle".

    Called where the user said `auto`: once per load, for drafters among those without a draft model and, if one is given, once
    more among the drafters that take one. Result: the first that is not None, or else the first of `names`. Augury's own
    plugins recommend themselves by the same hook with `trylast=True`, and are outvoted by any other.
    """


# Observers. Called at most once a round or request, and only if someone listens.


@hookspec
def augury_round_done(round: Round) -> None:  # noqa: A002 - the field's word, as observers see it
    """Watch a round. Called after every forward pass, on the engine's thread. Result: ignored."""


@hookspec
def augury_request_done(summary: Summary) -> None:
    """Watch a request. Called when it has ended in any way, on the engine's thread. Result: ignored."""


# The command line


@hookspec
def augury_commands(subparsers: Any, registry: Any, argv: Sequence[str]) -> None:
    """Add commands to `augury`. Called when the command line starts, with argparse's subparsers action. Result: ignored.

    `registry` is the `augury.Registry` of all plugins, and `argv` the words of the command line, on which a command's help may
    depend. A command sets `run` by `set_defaults`: a function of the parsed arguments that returns the exit code.
    """
