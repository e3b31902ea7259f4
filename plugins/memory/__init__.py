"""Memory managers: which tokens the slots of a model keep."""

from __future__ import annotations

from collections.abc import Sequence

from augury.hookspecs import hookimpl
from augury.interfaces import MemoryManager
from augury.plugins.memory.checkpoints import Checkpoints
from augury.plugins.memory.contiguous import Contiguous


@hookimpl
def augury_memory_managers() -> list[type[MemoryManager]]:
    """Offer both."""
    return [Checkpoints, Contiguous]


@hookimpl(trylast=True)
def augury_choose(kind: str, names: Sequence[str]) -> str | None:
    """Recommend `contiguous`."""
    return "contiguous" if kind == "memory" and "contiguous" in names else None
