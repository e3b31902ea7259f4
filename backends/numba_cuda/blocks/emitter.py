"""What a block says of itself, and how it comes onto a tape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from augury.backends.numba_cuda.device import Part

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from augury.backends.numba_cuda.blocks.first_products import FirstProducts
    from augury.backends.numba_cuda.cache import Cache
    from augury.backends.numba_cuda.device import Device, Launch, Pointer
    from augury.backends.numba_cuda.tape import Tape
    from augury.blocks import Norm
    from augury.types import ModelOptions

__all__ = ["Emitter", "Part"]


class Emitter(ABC):
    """Writes one block's steps. Before, it tells what the block needs, which takes no memory.

    Attributes:
        known: The optional fields of the block that are computed; see `ModelPlan.check_blocks`.
        caches: What it keeps of positions, in the order of `Block.cached`.
    """

    known: ClassVar[Container[str]] = ()
    caches: Sequence[Cache] = ()

    def __init__(self, block: Any, options: ModelOptions) -> None:
        self.block = block
        self.options = options

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - for blocks that attend
        """Bytes of memory that it works in, by name. Blocks share what has one name; the largest counts."""
        return {}

    def bytes_per_position(self) -> int:
        """What one position of one slot takes."""
        return 0

    def bytes_per_sequence(self) -> int:
        """What a slot takes however many positions it has."""
        return 0

    def place(self, device: Device) -> None:  # noqa: B027 - most keep nothing
        """Allocate what it keeps from pass to pass."""

    def begin(self, tape: Tape) -> None:  # noqa: B027 - most see what blocks before have added
        """Write the steps of its own that come before all of its layer's."""

    @property
    def norms(self) -> Sequence[Norm | None]:
        """The norms of x that it begins with, if they may be made before it begins, with those of blocks beside it."""
        return ()

    @property
    def first_products(self) -> FirstProducts | None:
        """The products of norm(x) that it begins with, if it lets others share their launch; see `first_products.py`."""
        return None

    @abstractmethod
    def emit(self, tape: Tape) -> None:
        """Write its steps. May be called for any number of tapes."""

    def emit_states(self, tape: Tape) -> None:  # noqa: B027 - most keep none
        """Write the steps alone that bring states of sequences up to date, for a pass over no tokens."""

    def slot_memory(self, slot: int, n: int) -> Sequence[Part]:  # noqa: ARG002 - for blocks that keep positions
        """What it keeps of a slot's first n positions."""
        return ()

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:  # noqa: ARG002 - for blocks that keep positions
        """What copies its cells: n moves (n, 3) of slot, from, to."""
        return ()
