"""How the command line shows generated text, and what augury logs: `-v` events, `-vv` also drafts as tables, and tracebacks."""

from __future__ import annotations

import logging
import math
import sys
from contextlib import nullcontext
from typing import Any, TextIO

from augury.cli.report import align_rows
from augury.engine.draft_log import VerifiedDraft
from augury.log import LINE
from augury.types import Token, TokenLogprob


def configure_logging(*, verbosity: int, is_quiet: bool = False) -> None:
    """Send the log to standard error: warnings, from `verbosity` 1 on events, at 2 every draft.

    With `is_quiet` errors only, for a command that loads the same model again and again and has shown its warnings once.
    """
    logger = logging.getLogger("augury")
    handler = LogHandler(sys.stderr)
    handler.setFormatter(_Formatter(LINE))
    logger.handlers[:] = [handler]
    least = logging.ERROR if is_quiet else logging.WARNING
    logger.setLevel((least, logging.INFO, logging.DEBUG)[verbosity])
    logger.propagate = False


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes records, but not into the middle of a line of generated text: until that ends it holds them back."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._held: list[logging.LogRecord] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write or hold back."""
        if self._held is None:
            super().emit(record)
        else:
            self._held.append(record)

    def hold(self, *, is_on: bool) -> None:
        """Hold back messages, or write the held back ones and all further ones."""
        with self.lock or nullcontext():
            held, self._held = self._held or [], [] if is_on else None
            for record in held:
                self.emit(record)


def hold_log(*, is_on: bool) -> None:
    """Tell the handler of `configure_logging`, if there is one, whether a line of text is incomplete."""
    for handler in logging.getLogger("augury").handlers:
        if isinstance(handler, LogHandler):
            handler.hold(is_on=is_on)


def draft_lines(draft: VerifiedDraft) -> list[str]:
    """A table of a draft's tokens beside the target's choices in their places, each with its probability."""
    rows = [["drafted", "p", "target", "p", ""]]
    for token in draft.tokens:
        p = "" if token.probability is None else f"{token.probability:.3f}"
        fate = "accepted" if token.is_accepted else "not reached" if token.target is None else "rejected"
        rows.append([_token(token.token, token.bytes), p, *_target_cells(token.target), fate])
    rows.append(["", "", *_target_cells(draft.target), "the target's own"])
    return [f"  {line}" for line in align_rows(rows, is_right=(False, True, False, True, False))]


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        draft = getattr(record, "draft", None)
        return "\n".join([super().format(record), *(draft_lines(draft) if isinstance(draft, VerifiedDraft) else ())])


def _target_cells(target: TokenLogprob | None) -> list[str]:
    if target is None:
        return ["", ""]
    return [_token(target.token, target.bytes), f"{math.exp(target.logprob):.3f}"]


def _token(token: int, text: bytes | None) -> str:
    return str(token) if text is None else f"{token} {text.decode(errors='replace')!r}"


_COLOURS = ("green", "cyan", "magenta", "yellow", "blue")
_MARKS = ("underline", "bold", "italic", "reverse", "strike")  # with NO_COLOR


class TokenWriter:
    """Writes text, or tokens' ids, to standard output; on request marked by drafters, in colours, or as NO_COLOR allows."""

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
