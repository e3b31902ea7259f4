"""Writes generated text, on request marked by the drafter of each token: in colours, or as NO_COLOR allows."""

from __future__ import annotations

import sys
from typing import Any

from augury.cli.log_output import hold_log
from augury.types import Token

_COLOURS = ("green", "cyan", "magenta", "yellow", "blue")
_MARKS = ("underline", "bold", "italic", "reverse", "strike")  # with NO_COLOR


class TokenWriter:
    """Writes to standard output; tokens of a model without a tokenizer are written as their ids."""

    def __init__(self, *, has_tokenizer: bool, is_coloured: bool) -> None:
        self._has_tokenizer = has_tokenizer
        self._console: Any = None
        self._styles: dict[str, str] = {}
        self._is_at_line_start = True
        if is_coloured:
            from rich.console import Console  # honours NO_COLOR, and writes plain text unless to a terminal

            self._console = Console(file=sys.stdout, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def write(self, piece: Token) -> None:
        """Write the text that a token completed."""
        text = piece.text if self._has_tokenizer else f"{piece.token} "
        if not text:
            return
        self._is_at_line_start = text.endswith("\n")
        if self._console is None or piece.drafter is None or self._console.color_system is None:
            sys.stdout.write(text)  # not through rich, which expands tabs
        else:
            self._console.print(text, style=self._style(piece.drafter), end="")
        sys.stdout.flush()
        hold_log(is_on=not self._is_at_line_start)

    def end(self) -> None:
        """End the line, so that further output starts on a new one."""
        if not self._is_at_line_start:
            sys.stdout.write("\n")
        sys.stdout.flush()
        self._is_at_line_start = True
        hold_log(is_on=False)

    @property
    def legend(self) -> str:
        """Which mark means which drafter; empty if nothing was marked."""
        return ", ".join(f"{style}: {name}" for name, style in self._styles.items())

    def _style(self, drafter: str) -> str:
        marks = _MARKS if self._console.no_color else _COLOURS
        return self._styles.setdefault(drafter, marks[len(self._styles) % len(marks)])
