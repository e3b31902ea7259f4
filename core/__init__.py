"""augury: speculative decoding for GGUF language models, bit-identical to plain decoding."""

if __name__ != "augury":
    raise ImportError(f"this package is imported as augury, not as {__name__}; install it first: pip install .")

from augury.engine import Engine
from augury.errors import AuguryError, CapacityError, ModelFileError, OptionError, PluginError, UnsupportedError
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture, Backend, Drafter, MemoryManager, Model, Session, Source
from augury.options import option
from augury.registry import Registry
from augury.running import Running
from augury.types import Draft, Result, Token, Verdict

__all__ = [
    "Architecture",
    "AuguryError",
    "Backend",
    "CapacityError",
    "Draft",
    "Drafter",
    "Engine",
    "MemoryManager",
    "Model",
    "ModelFileError",
    "OptionError",
    "PluginError",
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
