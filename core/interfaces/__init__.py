"""The classes that plugins implement: `Backend`, `Model`, `Drafter`, `MemoryManager`, `Architecture`, `Source`, `FileFormat`.

Hooks (`augury.hookspecs`) hand the classes over once; from then on these methods are called directly. Every class states its
`name`, the plugin API it was written for, and, where it has options, its options class (`augury.options`).
"""

from augury.devices import DeviceInfo
from augury.interfaces.drafter import Ask, Drafter, DrafterTraits, Pace, Session
from augury.interfaces.memory_manager import MemoryManager, Opened
from augury.interfaces.model import Architecture, Backend, Model
from augury.interfaces.plugin import API_VERSION, Plugin
from augury.interfaces.source import FileFormat, FoundModel, Progress, Source, StoredModel

__all__ = [
    "API_VERSION",
    "Architecture",
    "Ask",
    "Backend",
    "DeviceInfo",
    "Drafter",
    "DrafterTraits",
    "FileFormat",
    "FoundModel",
    "MemoryManager",
    "Model",
    "Opened",
    "Pace",
    "Plugin",
    "Progress",
    "Session",
    "Source",
    "StoredModel",
]
