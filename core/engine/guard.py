"""Calls of plugins whose failure reaches nobody else: it becomes a warning."""

from __future__ import annotations

from contextlib import suppress
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from augury.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["guarded", "told"]


def guarded(call: Callable[..., object], *arguments: Any, **keywords: Any) -> bool:
    """Call a plugin on the engine's thread, which outlives even its `SystemExit`; returns whether the call succeeded."""
    try:
        call(*arguments, **keywords)
    except BaseException as error:  # noqa: BLE001 - whatever a stranger's code does
        with suppress(BaseException):  # a warning fails where standard error is closed, or an error cannot say what it is
            plugin = getattr(call, "__qualname__", str(call))
            get_logger("augury.engine.loop").warning("plugin failed", plugin=plugin, error=repr(error))
        return False
    return True


def told(error: BaseException) -> str:
    """An error of a stranger's code in one line; it may fail itself."""
    try:
        return shorten(f"{type(error).__name__}: {error}", 300, placeholder="…")
    except BaseException:  # noqa: BLE001
        return type(error).__name__
