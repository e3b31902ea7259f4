"""augury: speculative decoding for GGUF language models, bit-identical to plain decoding.

Programs use the names of this module; plugins also use those of `augury.drafter`, `augury.backend`, `augury.model`,
`augury.plugin` and `augury.testing`. Every other module is private to the project. A name of this module is imported when it is
first used: a command, and every run of pytest beside which augury is installed, does not wait for the rest.
"""

from __future__ import annotations

if __name__ != "augury":
    raise ImportError(f"this package is imported as augury, not as {__name__}; install it first: pip install .")

from importlib import import_module

TYPE_CHECKING = False  # typing's own would be imported for this alone, before a command can listen to signals
if TYPE_CHECKING:
    from typing import Any

    from augury.constraint import Constraint as Constraint
    from augury.devices import Placement as Placement
    from augury.engine.engine import Engine as Engine
    from augury.engine.params import RequestParams as RequestParams
    from augury.engine.running import Running as Running
    from augury.errors import (
        AuguryError as AuguryError,
        CapacityError as CapacityError,
        ModelFileError as ModelFileError,
        OptionError as OptionError,
        PluginError as PluginError,
        PromptTooLongError as PromptTooLongError,
        QueueFullError as QueueFullError,
        UnsupportedError as UnsupportedError,
    )
    from augury.hookspecs import hookimpl as hookimpl
    from augury.interfaces import (
        Architecture as Architecture,
        Backend as Backend,
        Drafter as Drafter,
        DrafterTraits as DrafterTraits,
        MemoryManager as MemoryManager,
        Model as Model,
        Session as Session,
        Source as Source,
    )
    from augury.options import option as option
    from augury.registry import Registry as Registry
    from augury.types import Draft as Draft, Result as Result, Token as Token, Verdict as Verdict

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
    "engine.params": ("RequestParams",),
    "engine.running": ("Running",),
    "types": ("Draft", "Result", "Token", "Verdict"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_HOMES)  # type checkers go by the imports above


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'augury' has no attribute {name!r}")
    value = getattr(import_module(f"augury.{_HOMES[name]}"), name)
    globals()[name] = value  # later look-ups find it without this function
    return value


def __dir__() -> list[str]:
    return __all__
