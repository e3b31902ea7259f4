"""`Plugin`: the common parent of all kinds of plugins."""

from __future__ import annotations

from typing import Any, ClassVar

from augury.options import NoOptions

API_VERSION = 1
"""The plugin API of this release; a plugin written for another one is refused with a message."""


class Plugin:
    """The common part of all plugin classes."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    api_version: ClassVar[int] = API_VERSION
    options_class: ClassVar[type[Any]] = NoOptions
