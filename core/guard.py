"""Calls of plugins that cannot end the engine's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from textwrap import shorten
from typing import Any, TypeVar

from augury.log import get_logger

Result = TypeVar("Result")

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


def guarded(
    call: Callable[..., Result], *arguments: Any, failed: Callable[[BaseException], object] | None = None, **keywords: Any
) -> Result | None:
    """Call a plugin; returns its result, or None if it fails, be it by `SystemExit`.

    `failed` is told of the exception; without it there is a warning.

    >>> guarded(int, "7"), guarded(int, "seven", failed=lambda error: print(type(error).__name__))
    ValueError
    (7, None)
    """
    try:
        return call(*arguments, **keywords)
    except BaseException as error:  # noqa: BLE001 - a stranger's code may raise anything
        if failed is not None:
            failed(error)
        else:
            plugin = guarded(lambda: getattr(call, "__qualname__", None) or str(call), failed=_is_ignored)
            warn("augury.engine.loop", "plugin failed", error, plugin=plugin)
        return None


def warn(logger: str, message: str, error: BaseException, **facts: Any) -> None:
    """Log a plugin's failure, at level DEBUG its traceback. If that fails, as with standard error closed, nobody is told."""
    guarded(lambda: get_logger(logger).warning(message, **facts, error=describe(error)), failed=_is_ignored)
    guarded(logging.getLogger(logger).debug, "its traceback", exc_info=error, failed=_is_ignored)


def describe(error: BaseException) -> str:
    """An error in a line of text."""
    text = guarded(lambda: shorten(f"{type(error).__name__}: {error}", 300, placeholder="…"), failed=_is_ignored)
    return text or type(error).__name__  # a stranger's error may not be able to print itself


def _is_ignored(_: BaseException) -> None: ...
