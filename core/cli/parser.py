"""argparse with errors of one line that name the nearest known flag."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from augury.errors import OptionError
from augury.options import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FlagsAction", "Parser", "are_counts", "counts"]

_COUNTS = re.compile(r"\d+(,\d+)*")


def are_counts(text: str) -> bool:
    """Whether a text is whole numbers with commas."""
    return _COUNTS.fullmatch(text) is not None


def counts(text: str, flag: str, *, least: int) -> tuple[int, ...]:
    """Whole numbers with commas, as the value of a flag.

    Raises:
        OptionError: They are something else.

    >>> counts("1,2,4", "--curve", least=1)
    (1, 2, 4)
    """
    found = tuple(int(each) for each in text.split(",")) if are_counts(text) else ()
    if not found or min(found) < least:
        raise OptionError(f"{flag} is {text!r}, expected whole numbers from {least} on with commas, such as 1,2,4")
    return found


class FlagsAction(argparse.Action):
    """For a flag whose value is a text of flags itself: argparse alone would not take a word with a dash for a value."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, _flag: str | None = None) -> None:
        """Keep the text."""
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Parses in full words only, so that a new flag never changes what an abbreviation means."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(**kwargs)

    @property
    def flags(self) -> dict[str, argparse.Action]:
        """Every spelling of every flag of this parser."""
        return self._option_string_actions

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: D102 - see argparse
        known, unknown = super().parse_known_args(self._joined(sys.argv[1:] if args is None else args), namespace)
        self._refuse(unknown)
        return known, unknown

    def _joined(self, args: Sequence[str]) -> list[str]:
        joined, words = [], iter(args)
        for word in words:
            value = next(words, None) if isinstance(self.flags.get(word), FlagsAction) else None
            joined.append(word if value is None else f"{word}={value}")
        return joined

    def _refuse(self, unknown: Sequence[str]) -> None:
        if not unknown:
            return
        flag = next((word for word in unknown if word.startswith("-")), unknown[0])
        if not flag.startswith("-"):
            raise OptionError(f"{self.prog}: {flag!r} was not expected here; put texts with blanks in quotation marks")
        name = flag.partition("=")[0]
        raise OptionError(f"{self.prog}: there is no flag {name}{_hint(name, self.flags)}")

    def error(self, message: str) -> NoReturn:
        """Say in one line what is wrong, and exit with code 2."""
        sys.stderr.write(f"{self.prog}: {message}; see {self.prog} --help\n")
        raise SystemExit(OptionError.exit_code)


def _hint(name: str, known: dict[str, argparse.Action]) -> str:
    # a list of all flags would be a page: an unknown flag without a similar one gets the way to that page instead
    hint = nearest(name, known)
    return hint if hint.startswith("; did") else "; see --help"
