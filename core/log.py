"""Structured events on standard logging: `event key=value`, under logger names that begin with `augury`.

Libraries must not print: what is logged goes where the program's `logging` configuration sends it, warnings to standard error
by default. The command line configures it itself.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

__all__ = ["configure", "get_logger"]


def get_logger(name: str) -> Any:
    """A structlog logger on the standard logger `name`; got where it is used, not at import.

    Use: `get_logger("augury.registry").warning("plugin cannot be used", plugin=name)`.
    """
    import structlog  # imports rich, which `augury --help` must not wait for

    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, structlog.processors.LogfmtRenderer(key_order=["event"])],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def configure(*, verbosity: int, is_quiet: bool = False) -> None:
    """Send what is logged to standard error: warnings, from `verbosity` 1 on events, at 2 every draft.

    Called by the command line alone. With `is_quiet` errors only: what loads the same model again and again has given the
    warnings once.
    """
    logger = logging.getLogger("augury")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logger.handlers[:] = [handler]
    least = logging.ERROR if is_quiet else logging.WARNING
    logger.setLevel((least, logging.INFO, logging.DEBUG)[verbosity])
    logger.propagate = False
