"""A device as models see it: memory, launches of kernels, programs. This file has the simulated one; `gpu` has the real one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from augury.backends.numba_cuda.kernels import simulator
from augury.interfaces import Progress
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


class Device(ABC):
    """The place of a model's memory and kernels. Copies and launches happen in the order in which they were begun."""

    def __init__(self, number: int = 0) -> None:
        self.label = f"CUDA{number}"  # as llama.cpp calls it
        self._n_bytes: dict[str, int] = {}

    def allocate(self, n_bytes: int, purpose: str) -> Pointer:
        """Where memory begins that holds zeros.

        Raises:
            MemoryError: There is not enough.
        """
        n_bytes = -(-max(n_bytes, 1) // _ALIGNMENT) * _ALIGNMENT
        made = Pointer(self._allocate(n_bytes))
        self._n_bytes[purpose] = self._n_bytes.get(purpose, 0) + n_bytes
        return made

    def table(self) -> tuple[Allocation, ...]:
        """The allocated bytes, by purpose."""
        return tuple(Allocation(purpose, n_bytes, self.label) for purpose, n_bytes in self._n_bytes.items())

    @abstractmethod
    def _allocate(self, n_bytes: int) -> Buffer: ...

    @abstractmethod
    def prepare(self, kernels: Iterable[Kernel], progress: Progress) -> None:
        """Make kernels ready to be launched."""

    @abstractmethod
    def staging(self, n: int) -> np.ndarray:
        """An array (n,) int32 of the host that the device reads and writes without the host's doing."""

    @abstractmethod
    def program(self, steps: Sequence[Launch | Copy], staged: Staged | None = None, fetched: Fetched | None = None) -> Program:
        """Put steps together.

        Args:
            steps: In order.
            staged: The copies before.
            fetched: The copies at the end.
        """

    def _one_by_one(self, steps: Sequence[Program], staged: Staged | None, fetched: Fetched | None) -> Program:
        def run() -> None:
            if staged is not None:
                self.send(*staged)
            for step in steps:
                step()
            if fetched is not None:
                self.fetch(*fetched)

        return run

    @abstractmethod
    def launch(self, launch: Launch) -> None:
        """Begin to run one kernel."""

    @abstractmethod
    def copy(self, step: Copy) -> None:
        """Begin to copy bytes on the device."""

    @abstractmethod
    def write(self, to: Pointer, array: np.ndarray) -> None:
        """Copy an array of the host to the device, after all that was begun."""

    @abstractmethod
    def read(self, source: Pointer, array: np.ndarray) -> None:
        """Copy from the device to an array of the host, after all that was begun."""

    @abstractmethod
    def send(self, staged: np.ndarray, to: Pointer) -> None:
        """Begin to copy a staging array, or the beginning of one, to the device."""

    @abstractmethod
    def fetch(self, source: Pointer, staged: np.ndarray) -> None:
        """Begin to copy from the device to a staging array, or the beginning of one."""

    @abstractmethod
    def mark(self) -> None:
        """Note the device's time, after all that was begun."""

    @abstractmethod
    def wait(self) -> float | None:
        """Wait until all that was begun is over; returns the seconds between the last two marks, None without a clock."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""


class SimulatedDevice(Device):
    """A device whose memory is arrays, and whose kernels `kernels.simulator` runs; everything is over when it was begun."""

    is_reversed = False  # whether blocks, and the threads of a block, run from the last to the first

    def _allocate(self, n_bytes: int) -> Buffer:
        return Buffer(n_bytes, array=np.zeros(n_bytes, np.uint8))

    def prepare(self, kernels: Iterable[Kernel], progress: Progress) -> None:
        """See `Device.prepare`: lanes are compiled when they are first called."""

    def staging(self, n: int) -> np.ndarray:
        return np.zeros(n, np.int32)

    def program(self, steps: Sequence[Launch | Copy], staged: Staged | None = None, fetched: Fetched | None = None) -> Program:
        begun = [partial(self.copy, each) if isinstance(each, Copy) else partial(self.launch, each) for each in steps]
        return self._one_by_one(begun, staged, fetched)

    def launch(self, launch: Launch) -> None:
        kernel, given = launch.kernel, zip(launch.kernel.parameters, launch.arguments, strict=True)
        arguments = [_array(each).view(ELEMENTS[letter]) if isinstance(each, Pointer) else each for letter, each in given]
        grouped = kernel.grouped(arguments)
        simulator.run(kernel.function, launch.grid, launch.n_threads, grouped, is_reversed=self.is_reversed)

    def copy(self, step: Copy) -> None:
        _array(step.to)[: step.n_bytes] = _array(step.source)[: step.n_bytes]

    def write(self, to: Pointer, array: np.ndarray) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        _array(to)[: len(flat)] = flat

    def read(self, source: Pointer, array: np.ndarray) -> None:
        array.reshape(-1).view(np.uint8)[:] = _array(source)[: array.nbytes]

    def send(self, staged: np.ndarray, to: Pointer) -> None:
        self.write(to, staged)

    def fetch(self, source: Pointer, staged: np.ndarray) -> None:
        self.read(source, staged)

    def mark(self) -> None:
        """See `Device.mark`."""

    def wait(self) -> float | None:
        return None

    def close(self) -> None:
        self._n_bytes.clear()


class CountingDevice(SimulatedDevice):
    """Counts allocations, and allocates nothing."""

    def _allocate(self, n_bytes: int) -> Buffer:
        return Buffer(n_bytes)


def _array(pointer: Pointer) -> np.ndarray:
    assert pointer.buffer.array is not None
    return pointer.buffer.array[pointer.offset :]
