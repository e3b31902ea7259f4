"""Structured events on standard logging: `event key=value`, under logger names that begin with `augury`.

Libraries must not print: log messages go where the program's `logging` configuration sends it, warnings to standard error
by default. The command line configures it by `augury.cli.log_output`.
"""

from __future__ import annotations

import logging
from typing import Any

LINE = "%(levelname)s %(name)s %(message)s"
"""How the command line writes a record."""

DRAFT_LOGGER = logging.getLogger("augury.drafts")
"""At level DEBUG, as with `-vv`, it gets a record for every draft that was verified, with a `VerifiedDraft` as its attribute
`draft`; drafters may then compute how confident they are."""


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
