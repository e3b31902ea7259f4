"""Commands as a user types them, run in this process, on a tiny model without a tokenizer: prompts are token ids."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager

from oracles.models import tiny_model

from augury.cli.command_line import main

# pytest in a process of its own, without strangers' plugins that take longer to import than a test takes
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
PYTEST += [word for name in ("anyio", "hypothesispytest", "schemathesis") for word in ("-p", f"no:{name}")]
REPEATING = "1,2,3,4,1,2,3,4,1,2,3,4"


def here(name: str = "llama-dense", backend: str = "reference") -> list[str]:
    """The words that name a tiny model and a backend on one thread."""
    return ["-m", str(tiny_model(name)), "--backend", backend, "-t", "1"]


def run(capsys, *words) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of a command."""
    try:
        with _own_logging():
            code = main([*map(str, words)])
    except SystemExit as ended:  # argparse's own errors
        code = ended.code
    told = capsys.readouterr()
    return code, told.out, told.err


@contextmanager
def _own_logging():
    """A command configures logging as for a process of its own; the tests after it shall not notice."""
    logger = logging.getLogger("augury")
    before = logger.handlers[:], logger.level, logger.propagate
    try:
        yield
    finally:
        logger.handlers[:], level, logger.propagate = before
        logger.setLevel(level)
