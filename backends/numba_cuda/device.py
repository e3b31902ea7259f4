"""A device as models see it: memory, launches of kernels, programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from augury.types import Allocation

if TYPE_CHECKING:
    from augury.backends.numba_cuda.kernels.dialect import Kernel

ELEMENTS = {"w": np.uint32, "f": np.float32, "d": np.float64, "j": np.int32, "b": np.int8, "h": np.uint16}
"""The types of the pointers among a kernel's parameters."""
_ALIGNMENT = 256


@frozen(eq=False)
class Buffer:
    """Some of a device's memory, which is aligned as its widest loads want it: an address there, or an array in a simulator."""

    n_bytes: int
    address: int = 0
    array: np.ndarray | None = None


@frozen(eq=False)
class Pointer:
    """A place in a buffer, from which on a kernel reads or writes."""

    buffer: Buffer
    offset: int = 0

    def at(self, n_bytes: int) -> Pointer:
        """A place further on."""
        return Pointer(self.buffer, self.offset + n_bytes)


Region = tuple[Pointer, int]
"""A stretch of memory, and its bytes."""
Staged = tuple[np.ndarray, Pointer]
"""A staging array, and where it is copied to on the device."""
Fetched = tuple[Pointer, np.ndarray]
"""A place on the device, and the staging array that it is copied to."""
Program = Callable[[], None]
"""Begins to run steps that were put together once, in order."""
Arguments = dict[str, Any]
"""The arguments of a kernel, by the names of its parameters: pointers, numbers, and records of them."""


@frozen(eq=False)
class Launch:
    """A kernel, a grid of blocks, and the kernel's arguments: pointers and numbers."""

    kernel: Kernel
    grid: tuple[int, int, int]
    n_threads: int
    arguments: tuple[Pointer | float, ...]

    @classmethod
    def of(cls, kernel: Kernel, grid: tuple[int, ...], n_threads: int, first: Pointer, /, **arguments: Any) -> Launch:
        """A launch with arguments by name, but the first one; other pointers that are left out are that one, and numbers 0."""
        if unknown := arguments.keys() - set(kernel.names[1:]):
            raise TypeError(f"kernel {kernel.name} has no {', '.join(sorted(unknown))}; it has {', '.join(kernel.names)}")
        given: list[Pointer | float | None] = []
        for name, kind in zip(kernel.names[1:], kernel.kinds[1:], strict=True):
            if isinstance(kind, str):
                given.append(arguments.get(name, 0 if kind in "ir" else None))
            else:
                given += arguments.get(name, kind())
        blocks = (*grid, 1, 1)
        values = (first, *(first if each is None else int(each) if isinstance(each, bool) else each for each in given))
        return cls(kernel, (blocks[0], blocks[1], blocks[2]), n_threads, values)


@frozen(eq=False)
class Copy:
    """Bytes to copy on the device."""

    source: Pointer
    to: Pointer
    n_bytes: int


class Device:
    """The place of a model's memory: this one only counts it, `gpu` has one with memory and kernels."""

    def __init__(self, number: int = 0) -> None:
        self.label = f"CUDA{number}"  # as llama.cpp calls it
        self._n_bytes: dict[str, int] = {}

    def allocate(self, n_bytes: int, purpose: str) -> Pointer:
        """Where memory begins that holds zeros. Raises MemoryError: there is not enough."""
        n_bytes = -(-max(n_bytes, 1) // _ALIGNMENT) * _ALIGNMENT
        made = Pointer(self._allocate(n_bytes))
        self._n_bytes[purpose] = self._n_bytes.get(purpose, 0) + n_bytes
        return made

    def table(self) -> tuple[Allocation, ...]:
        """The allocated bytes, by purpose."""
        return tuple(Allocation(purpose, n_bytes, self.label) for purpose, n_bytes in self._n_bytes.items())

    def _allocate(self, n_bytes: int) -> Buffer:
        return Buffer(n_bytes)
