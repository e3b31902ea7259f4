"""Structured logging: one configuration, called by the command line; a library leaves it to its user."""

from __future__ import annotations

import logging
import sys
from typing import Any

__all__ = ["configure", "warn"]


def configure(*, is_verbose: bool) -> None:
    """Log events to standard error, one line each: warnings, or with `is_verbose` everything from debug on."""
    import structlog  # imports rich, which `augury --help` must not wait for

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if is_verbose else logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def warn(name: str, event: str, **facts: Any) -> None:
    """Log a warning under `name`, even where nobody configured logging: structlog's default is standard output."""
    import structlog

    if not structlog.is_configured():
        configure(is_verbose=False)
    structlog.get_logger(name).warning(event, **facts)
