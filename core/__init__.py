"""augury: speculative decoding for GGUF language models, bit-identical to plain decoding.

The names below are imported when they are first used: a plugin that needs one of them, and every run of pytest beside which
augury is installed, does not wait for the rest.
"""

from __future__ import annotations

if __name__ != "augury":
    raise ImportError(f"this package is imported as augury, not as {__name__}; install it first: pip install .")

from importlib import import_module

TYPE_CHECKING = False  # typing's own would be imported for this alone, before a command can listen to signals
if TYPE_CHECKING:
    from typing import Any

    from augury.constraint import Constraint
    from augury.devices import Placement
    from augury.engine.engine import Engine
    from augury.engine.running import Running
    from augury.errors import (
        AuguryError,
        CapacityError,
        ModelFileError,
        OptionError,
        PluginError,
        PromptTooLongError,
        QueueFullError,
        UnsupportedError,
    )
    from augury.hookspecs import hookimpl
    from augury.interfaces import Architecture, Backend, Drafter, DrafterTraits, MemoryManager, Model, Session, Source
    from augury.options import option
    from augury.registry import Registry
    from augury.types import Draft, Result, Token, Verdict

__all__ = [
    "Architecture",
    "AuguryError",
    "Backend",
    "CapacityError",
    "Constraint",
    "Draft",
    "Drafter",
    "DrafterTraits",
    "Engine",
    "MemoryManager",
    "Model",
    "ModelFileError",
    "OptionError",
    "Placement",
    "PluginError",
    "PromptTooLongError",
    "QueueFullError",
    "Registry",
    "Result",
    "Running",
    "Session",
    "Source",
    "Token",
    "UnsupportedError",
    "Verdict",
    "hookimpl",
    "option",
]

_MODULES = {
    "engine.engine": ("Engine",),
    "constraint": ("Constraint",),
    "devices": ("Placement",),
    "errors": (
        "AuguryError",
        "CapacityError",
        "ModelFileError",
        "OptionError",
        "PluginError",
        "PromptTooLongError",
        "QueueFullError",
        "UnsupportedError",
    ),
    "hookspecs": ("hookimpl",),
    "interfaces": ("Architecture", "Backend", "Drafter", "DrafterTraits", "MemoryManager", "Model", "Session", "Source"),
    "options": ("option",),
    "registry": ("Registry",),
    "engine.running": ("Running",),
    "types": ("Draft", "Result", "Token", "Verdict"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'augury' has no attribute {name!r}")
    value = getattr(import_module(f"augury.{_HOMES[name]}"), name)
    globals()[name] = value  # later look-ups find it without this function
    return value
