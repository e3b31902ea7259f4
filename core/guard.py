"""Calls of plugins that cannot end the engine's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from textwrap import shorten
from typing import Any

from augury.log import get_logger

_N_SLOW = 2  # calls that take too long, after which a plugin is not called again: the first may have compiled something


class SlowCalls:
    """How many calls of a plugin in one request took longer than they may."""

    def __init__(self) -> None:
        self._n = 0

    def add(self, seconds: float, limit_s: float) -> TimeoutError | None:
        """Count a call that took longer than `limit_s`; returns the error once it is one too many."""
        self._n += 1
        if self._n != _N_SLOW:
            return None
        return TimeoutError(f"took {seconds:.3g} s, the second call that took more than {limit_s:g} s")


def attempt(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> tuple[Any, BaseException | None]:
    """Call a plugin; returns its result and None, or None and its exception, `SystemExit` included.

    >>> attempt(int, "7")
    (7, None)
    """
    try:
        return call(*arguments, **keywords), None
    except BaseException as error:  # noqa: BLE001 - a stranger's code may raise anything
        return None, error


def guarded(call: Callable[..., object], *arguments: Any, **keywords: Any) -> bool:
    """Call a plugin whose failure becomes a warning; returns whether the call succeeded."""
    _, error = attempt(call, *arguments, **keywords)
    if error is not None:
        plugin, _ = attempt(lambda: getattr(call, "__qualname__", None) or str(call))
        warn("augury.engine.loop", "plugin failed", error, plugin=plugin)
    return error is None


def warn(logger: str, message: str, error: BaseException, **facts: Any) -> None:
    """Log a plugin's failure, at level DEBUG its traceback. If that fails, as with standard error closed, nobody is told."""
    attempt(lambda: get_logger(logger).warning(message, **facts, error=describe(error)))
    attempt(logging.getLogger(logger).debug, "its traceback", exc_info=error)


def describe(error: BaseException) -> str:
    """An error in a line of text."""
    text, _ = attempt(lambda: shorten(f"{type(error).__name__}: {error}", 300, placeholder="…"))
    return text or type(error).__name__  # a stranger's error may not be able to print itself
