"""How the command line shows what augury logs: `-v` shows events, `-vv` also every draft as a table."""

from __future__ import annotations

import logging
import math
import sys
from typing import TYPE_CHECKING

from augury.cli.table import table
from augury.speculation.draft_log import VerifiedDraft

if TYPE_CHECKING:
    from augury.types import TokenLogprob

__all__ = ["configure_logging", "draft_lines"]


def configure_logging(*, verbosity: int, is_quiet: bool = False) -> None:
    """Send what is logged to standard error: warnings, from `verbosity` 1 on events, at 2 every draft.

    With `is_quiet` errors only, for a command that loads the same model again and again and has shown its warnings once.
    """
    logger = logging.getLogger("augury")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(levelname)s %(name)s %(message)s"))
    logger.handlers[:] = [handler]
    least = logging.ERROR if is_quiet else logging.WARNING
    logger.setLevel((least, logging.INFO, logging.DEBUG)[verbosity])
    logger.propagate = False


def draft_lines(draft: VerifiedDraft) -> list[str]:
    """A table of a draft's tokens beside what the target chose in their places, each with its probability."""
    rows = [["drafted", "p", "target", "p", ""]]
    for token in draft.tokens:
        p = "" if token.probability is None else f"{token.probability:.3f}"
        fate = "accepted" if token.is_accepted else "not reached" if token.target is None else "rejected"
        rows.append([_token(token.token, token.bytes), p, *_target_cells(token.target), fate])
    rows.append(["", "", *_target_cells(draft.target), "the target's own"])
    return [f"  {line}" for line in table(rows, is_right=(False, True, False, True, False))]


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
