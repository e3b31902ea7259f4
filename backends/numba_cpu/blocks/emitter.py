"""What a block says of itself, and how it comes onto a tape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from augury.backends.numba_cpu.cache import Cache
    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.state import State
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.types import ModelOptions

__all__ = ["Emitter"]


class Emitter(ABC):
    """Writes one block's records. Before, it tells the needs of the block, which takes no memory.

    Attributes:
        caches: The block's caches of positions.
        states: Its states of sequences.
    """

    caches: Sequence[Cache] = ()
    states: Sequence[State] = ()

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

    def tables(self) -> Mapping[Hashable, int]:
        """Bytes of further tables, by a key: blocks share tables of the same key."""
        return {}

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:  # noqa: B027 - most keep nothing
        """Allocate what it keeps from pass to pass; `buffers` has the addresses."""

    def begin(self, tape: Tape) -> None:  # noqa: B027 - most see nothing of it
        """Write the records of what it makes of x as it is before its layer."""

    @abstractmethod
    def emit(self, tape: Tape) -> None:
        """Write its records. May be called for any number of tapes."""

    def emit_kept(self, tape: Tape) -> None:
        """Write its records as far as something is kept of tokens, because nobody reads the result."""
        self.emit(tape)
