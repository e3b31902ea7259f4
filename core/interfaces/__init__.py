"""The classes that plugins implement: `Backend`, `Model`, `Drafter`, `MemoryManager`, `Architecture`, `Source`, `FileFormat`.

Hooks (`augury.hookspecs`) hand the classes over once; from then on these methods are called directly. Every class states its
`name`, the plugin API it was written for, and, where it has options, its options class (`augury.options`).
"""

from augury.devices import DeviceInfo as DeviceInfo
from augury.interfaces.compiled import CompiledDraft as CompiledDraft, CompiledPass as CompiledPass
from augury.interfaces.drafter import (
    Ask as Ask,
    Drafter as Drafter,
    DrafterTraits as DrafterTraits,
    Pace as Pace,
    Session as Session,
)
from augury.interfaces.memory_manager import MemoryManager as MemoryManager, Opened as Opened
from augury.interfaces.model import Architecture as Architecture, Backend as Backend, Model as Model
from augury.interfaces.plugin import API_VERSION as API_VERSION, Plugin as Plugin
from augury.interfaces.source import (
    FileFormat as FileFormat,
    FoundModel as FoundModel,
    Progress as Progress,
    Source as Source,
    StoredModel as StoredModel,
)

globals()["__all__"] = [name for name, each in vars().items() if name[0] != "_" and type(each).__name__ != "module"]
