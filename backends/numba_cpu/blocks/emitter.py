"""What a block says of itself, and how it comes onto a tape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import numpy as np

    from augury.backends.numba_cpu.cache import Cache
    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.types import ModelOptions

__all__ = ["Emitter", "MixerEmitter"]


class Emitter(ABC):
    """Writes one block's records. Before, it tells what the block needs, which takes no memory.

    Attributes:
        caches: What the block keeps of positions.
    """

    caches: Sequence[Cache] = ()

    def __init__(self, block: Any, options: ModelOptions) -> None:
        self.block = block
        self.options = options

    def kernels(self) -> Sequence[Any]:
        """The kernels that are its own, first what takes longest to compile."""
        return ()

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - for blocks whose threads have some each
        """Bytes of memory that it works in, by name. Blocks share what has one name; the largest counts."""
        return {}

    def scratch_bytes(self) -> int:
        """Bytes that each thread needs for itself while it runs a kernel of the block."""
        return 0

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:  # noqa: B027 - most keep nothing
        """Allocate what it keeps from pass to pass; `buffers` has the addresses."""

    def begin(self, tape: Tape) -> None:  # noqa: B027 - most see nothing of it
        """Write the records of what it makes of x as it is before its layer."""

    @abstractmethod
    def emit(self, tape: Tape) -> None:
        """Write its records. May be called for any number of tapes."""


class MixerEmitter(Emitter):
    """A block that keeps something of every token."""

    def bytes_per_sequence(self) -> int:
        """What one slot takes whatever its length."""
        return 0

    def state_bytes(self) -> int:
        """What all slots take."""
        return 0

    def tables(self) -> Mapping[Hashable, int]:
        """Bytes that it allocates besides, by what they depend on: blocks share what depends on the same."""
        return {}

    @abstractmethod
    def slot_memory(self, slot: int, n: int) -> Sequence[np.ndarray]:
        """Views of what it keeps of a slot's first n positions, and of its sequence."""
