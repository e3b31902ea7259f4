"""Flags that are made of plugins' options, and the values that they are given."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from augury.options import Option

Targets = tuple[tuple[str, str], ...]
"""Plugins and the names of their options that a flag means."""

_METAVARS = {bool: "on|off", int: "N", float: "X", str: "TEXT"}
_PREFIXES = {"drafter": "spec", "memory": "memory"}  # of the kinds of plugins whose options are flags


def flag_of(alias: str) -> str:
    """How an alias is typed: llama.cpp's short ones, such as `-ctkd`, take one dash."""
    return f"-{alias}" if len(alias) <= 4 and "-" not in alias else f"--{alias}"


def flags_of(kind: str, name: str, option: Option) -> list[str]:
    """The flags of a plugin's option: of drafters and memory managers `--spec-NAME-FIELD`, `--memory-NAME-FIELD`; aliases."""
    own = [f"--{_PREFIXES[kind]}-{name}-{option.name.replace('_', '-')}"] if kind in _PREFIXES else []
    return list(dict.fromkeys([*own, *map(flag_of, option.aliases)]))


def add_option_flag(
    group: Any, flags: Iterable[str], option: Option, targets: Targets, dest: str, *, is_shown: bool = True
) -> None:
    """Add an option's flags, whose values are kept under `dest` with their targets, in the order of the command line.

    Without targets the last value is kept, alone, or else the option's default.
    """
    facts = [text for text in (option.range, "|".join(option.choices)) if text]
    if option.default is not None and option.default is not False:
        facts.append(f"default: {'on' if option.default is True else option.default}")
    shown = (option.help + (f" ({', '.join(facts)})" if facts else "")).replace("%", "%%")
    group.add_argument(
        *flags,
        action=_Keep,
        targets=targets,
        option=option,
        dest=dest,
        default=() if targets else option.default,
        nargs="?" if option.kind is bool else None,
        metavar=_METAVARS[option.kind],
        help=shown if is_shown else argparse.SUPPRESS,
    )


class _Keep(argparse.Action):
    """Collects values with the options that they are for, and the flags that gave them."""

    def __init__(self, *, targets: Targets, option: Option, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._targets, self._option = targets, option

    def __call__(self, _parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        value = self._option.convert("true" if values is None else values, str(flag))
        kept = (*getattr(namespace, self.dest), (self._targets, value, flag)) if self._targets else value
        setattr(namespace, self.dest, kept)
