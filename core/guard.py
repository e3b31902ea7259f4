"""Calls that may fail in any way, as those of plugins may, and do not end the engine's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
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


class on_error:  # noqa: N801 - it is read as a statement
    """A block that an exception ends, be it `SystemExit`, and nothing else: `handle` is told of it, after the arguments.

    >>> with on_error(print, "no number:"):
    ...     int("seven")
    no number: invalid literal for int() with base 10: 'seven'
    """

    __slots__ = ("_arguments", "_handle")

    def __init__(self, handle: Callable[..., object], *arguments: Any) -> None:
        self._handle, self._arguments = handle, arguments

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if error is not None:
            self._handle(*self._arguments, error)
        return error is not None


def guarded(call: Callable[..., Result], *arguments: Any, **keywords: Any) -> Result | None:
    """Call a plugin; returns its result, or None with a warning if it fails.

    >>> guarded(int, "7")
    7
    """
    with on_error(_warn_of, call):
        return call(*arguments, **keywords)
    return None


def _warn_of(call: Callable[..., object], error: BaseException) -> None:
    plugin = None
    with suppress(BaseException):
        plugin = getattr(call, "__qualname__", None) or str(call)
    warn("augury.engine.loop", "plugin failed", error, plugin=plugin)


def warn(logger: str, message: str, error: BaseException, **facts: Any) -> None:
    """Log a plugin's failure, at level DEBUG its traceback. If that fails, as with standard error closed, nobody is told."""
    with suppress(BaseException):
        get_logger(logger).warning(message, **facts, error=describe(error))
    with suppress(BaseException):
        logging.getLogger(logger).debug("its traceback", exc_info=error)


def describe(error: BaseException) -> str:
    """An error in a line of text."""
    with suppress(BaseException):  # a stranger's may not be able to print itself
        return shorten(f"{type(error).__name__}: {error}", 300, placeholder="…")
    return type(error).__name__
