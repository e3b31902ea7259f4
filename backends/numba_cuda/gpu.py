"""A GPU, by NVIDIA's driver API."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cuda.aot import OVERLAPPING, Compiler
from augury.backends.numba_cuda.device import Buffer, Copy, Device, Fetched, Launch, Pointer, Program, Staged
from augury.errors import AuguryError, UnsupportedError
from augury.interfaces import Progress

if TYPE_CHECKING:
    from augury.backends.numba_cuda.kernels.dialect import Kernel

_C_TYPES: dict[str, Any] = {"i": ctypes.c_int32, "r": ctypes.c_float}  # of a kernel's parameters; all else are addresses

_current = threading.local()  # the GPU whose context is a thread's


class Gpu(Device):
    """One GPU: the primary context, a stream of its own, and the kernels that were loaded.

    Copies and launches happen in the order in which they were begun.

    Attributes:
        name: As the driver calls it.
        capability: Its compute capability, as (9, 0).
    """

    def __init__(self, number: int, *, has_graphs: bool = True) -> None:
        """Open a GPU. Raises UnsupportedError: there is no such GPU."""
        super().__init__(number)
        from cuda.bindings import driver

        self._driver, self._has_graphs = driver, has_graphs
        self._allocated: list[int] = []
        self._pinned: list[int] = []
        self._functions: dict[str, Any] = {}
        self._modules: list[Any] = []
        self._is_closed = self._is_busy = False
        self._call("cuInit", 0)
        if number >= (n := self._call("cuDeviceGetCount")):
            raise UnsupportedError(f"there is no GPU {number}; expected a number below {n}, see nvidia-smi -L")
        self._device = self._call("cuDeviceGet", number)
        self.name = self._call("cuDeviceGetName", 128, self._device).partition(b"\0")[0].decode()
        attribute = driver.CUdevice_attribute
        self.capability: tuple[int, int] = tuple(
            self._call("cuDeviceGetAttribute", each, self._device)
            for each in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._enter()
        self.stream = self._call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        self._marks = [self._call("cuEventCreate", driver.CUevent_flags.CU_EVENT_DEFAULT.value) for _ in range(2)]
        self._n_marks = 0
        self._seconds: float | None = None
        self.overlapping = driver.CUlaunchAttribute()  # of a launch: it may begin before the one before it has ended
        self.overlapping.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        self.overlapping.value.programmaticStreamSerializationAllowed = 1

    def prepare(self, kernels: Iterable[Kernel], progress: Progress) -> None:
        """Make kernels ready to be launched: all are loaded before a graph is recorded, during which nothing may be."""
        self._enter()
        for name, binary in Compiler(self.capability).binaries(list(kernels), progress).items():
            if name not in self._functions:
                self.load(name, binary.entry, binary.cubin)

    def load(self, name: str, entry: str, cubin: bytes) -> None:
        """Load a kernel's machine code."""
        self._modules.append(self._call("cuModuleLoadData", cubin))
        self._functions[name] = self._call("cuModuleGetFunction", self._modules[-1], entry.encode())

    def staging(self, n: int) -> np.ndarray:
        """An array (n,) int32 of the host that the device reads and writes without the host's doing."""
        self._enter()
        address = self._call("cuMemHostAlloc", 4 * n, 0)
        self._pinned.append(address)
        array = np.ctypeslib.as_array((ctypes.c_int32 * n).from_address(address))
        array[:] = 0
        return array

    def program(self, steps: Sequence[Launch | Copy], staged: Staged | None = None, fetched: Fetched | None = None) -> Program:
        """Put steps together, which run in order, after copies `staged`, before copies `fetched`."""
        begun: list[Program] = [self._enter] if staged is None else [self._enter, partial(self.send, *staged)]
        begun += [
            partial(self.copy, step) if isinstance(step, Copy) else _Call(self, step, overlaps=isinstance(before, Launch)).run
            for before, step in zip((None, *steps), steps, strict=False)
        ]
        begun += [] if fetched is None else [partial(self.fetch, *fetched)]

        def run() -> None:
            for step in begun:
                step()

        return _Graph(self, run) if self._has_graphs else run

    def launch(self, launch: Launch) -> None:
        """Begin to run one kernel."""
        self._enter()
        _Call(self, launch).run()

    def copy(self, step: Copy) -> None:
        """Begin to copy bytes on the device."""
        self._enter()
        self._call("cuMemcpyDtoDAsync", _address(step.to), _address(step.source), step.n_bytes, self.stream)

    def write(self, to: Pointer, array: np.ndarray) -> None:
        """Copy an array of the host to the device, after all that was begun."""
        array = np.ascontiguousarray(array)
        self.send(array, to)
        self._call("cuStreamSynchronize", self.stream)  # until then the array is to stay

    def read(self, source: Pointer, array: np.ndarray) -> None:
        """Copy from the device to an array of the host, after all that was begun."""
        self.fetch(source, array)
        self._call("cuStreamSynchronize", self.stream)

    def send(self, staged: np.ndarray, to: Pointer) -> None:
        """Begin to copy a staging array, or the beginning of one, to the device."""
        self._enter()
        self._call("cuMemcpyHtoDAsync", _address(to), staged.ctypes.data, staged.nbytes, self.stream)

    def fetch(self, source: Pointer, staged: np.ndarray) -> None:
        """Begin to copy from the device to a staging array, or the beginning of one."""
        self._enter()
        self._call("cuMemcpyDtoHAsync", staged.ctypes.data, _address(source), staged.nbytes, self.stream)

    def mark(self) -> None:
        """Note the device's time, after all that was begun."""
        self._enter()
        self._call("cuEventRecord", self._marks[self._n_marks % 2], self.stream)
        self._n_marks += 1

    def wait(self) -> float | None:
        """Wait until all that was begun is over; returns the seconds between the last two marks, None without these.

        Where nothing was begun since the last time, the driver is not asked.
        """
        if self._is_busy:
            self._enter()
            self._call("cuStreamSynchronize", self.stream)
            is_timed = self._n_marks >= 2 and self._n_marks % 2 == 0
            self._seconds = float(self._call("cuEventElapsedTime", *self._marks)) / 1000.0 if is_timed else None
            self._is_busy = False
        return self._seconds

    def close(self) -> None:
        """Give everything back. May be called twice."""
        if self._is_closed:
            return
        self._enter()
        self._is_closed = True
        self._call("cuStreamSynchronize", self.stream)
        for module in self._modules:
            self._call("cuModuleUnload", module)
        for address in self._allocated:
            self._call("cuMemFree", address)
        for address in self._pinned:
            self._call("cuMemFreeHost", address)
        for mark in self._marks:
            self._call("cuEventDestroy", mark)
        self._call("cuStreamDestroy", self.stream)
        self._call("cuDevicePrimaryCtxRelease", self._device)
        self._n_bytes.clear()
        _current.gpu = None

    def _allocate(self, n_bytes: int) -> Buffer:
        self._enter()
        free, total = self._call("cuMemGetInfo")
        if n_bytes > free:
            found = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free on {self.name}"
            raise MemoryError(f"{n_bytes / 2**30:.1f} GiB more are needed, {found}")
        address = int(self._call("cuMemAlloc", n_bytes))
        self._allocated.append(address)
        self._call("cuMemsetD8Async", address, 0, n_bytes, self.stream)
        return Buffer(n_bytes, address)

    def _enter(self) -> None:
        """Make the context this thread's: another GPU's may be, as a draft model's. Something is begun then.

        Raises:
            AuguryError: It was closed, with memory that a pass or a model may still point to.
        """
        if self._is_closed:
            raise AuguryError(f"what is on {self.label} was given back: its model is closed")
        self._is_busy = True
        if getattr(_current, "gpu", None) is not self:
            self._call("cuCtxSetCurrent", self._context)
            _current.gpu = self

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the driver.

        Raises:
            MemoryError: There is not enough of it.
            AuguryError: Another error.
        """
        error, *results = getattr(self._driver, name)(*arguments)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            if error == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise MemoryError(f"{name}: the GPU has too little memory")
            raise AuguryError(f"{name}: {error.name}; see what nvidia-smi says, or use --backend numba-cpu")
        return results[0] if len(results) == 1 else tuple(results)


class _Call:
    """A launch, with its arguments where the driver reads them; it may overlap with one before it."""

    def __init__(self, gpu: Gpu, launch: Launch, *, overlaps: bool = False) -> None:
        self._gpu, self._launch, self._overlaps = gpu, launch, overlaps and gpu.capability >= OVERLAPPING
        self._function = gpu._functions[launch.kernel.name]
        kinds = launch.kernel.parameters
        assert len(kinds) == len(launch.arguments), launch.kernel.name
        self._values: list[Any] = [
            ctypes.c_uint64(_address(each)) if isinstance(each, Pointer) else _C_TYPES[kind](each)
            for kind, each in zip(kinds, launch.arguments, strict=True)
        ]
        self._addresses = (ctypes.c_void_p * len(kinds))(*(ctypes.addressof(value) for value in self._values))

    def run(self) -> None:
        """Begin to run it."""
        gpu, addresses = self._gpu, ctypes.addressof(self._addresses)
        config = gpu._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ, config.hStream = self._launch.n_threads, 1, 1, gpu.stream
        if self._overlaps:
            config.attrs, config.numAttrs = [gpu.overlapping], 1
        gpu._call("cuLaunchKernelEx", config, self._function, addresses, 0)


class _Graph:
    """The same steps, begun by one call: they are recorded when they have run once."""

    def __init__(self, gpu: Gpu, steps: Program) -> None:
        self._gpu, self._steps = gpu, steps  # the graph does not own its recording
        self._graph: Any = None

    def __call__(self) -> None:
        self._gpu._enter()
        if self._graph is None:
            self._steps()  # the driver may load a kernel when it is first launched, which spoils a recording
            self._graph = self._recorded()
        else:
            self._gpu._call("cuGraphLaunch", self._graph, self._gpu.stream)

    def __del__(self) -> None:
        if self._graph is not None and not self._gpu._is_closed:
            self._gpu._driver.cuGraphExecDestroy(self._graph)  # at exit the driver may be gone already

    def _recorded(self) -> Any:
        gpu, call = self._gpu, self._gpu._call
        mode = gpu._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        was_collecting = gc.isenabled()
        gc.disable()  # freeing while a stream is recorded spoils the recording
        try:
            call("cuStreamBeginCapture", gpu.stream, mode)
            try:
                self._steps()
            finally:
                graph = call("cuStreamEndCapture", gpu.stream)
        finally:
            if was_collecting:
                gc.enable()
        ready = call("cuGraphInstantiate", graph, 0)
        call("cuGraphDestroy", graph)
        return ready


def _address(pointer: Pointer) -> int:
    return pointer.buffer.address + pointer.offset
