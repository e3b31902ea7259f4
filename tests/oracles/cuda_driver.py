"""Stands in for NVIDIA's driver: memory of the device is the host's, kernels run in the simulator, graphs as recorded."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
from cuda_simulator import grid

from augury.backends.numba_cuda.aot import all_kernels
from augury.backends.numba_cuda.device import ELEMENTS

KERNELS = {kernel.name: kernel for kernel in all_kernels()}
C_TYPES = {"i": ctypes.c_int32, "r": ctypes.c_float}


class Driver:
    """What of `cuda.bindings.driver` is used; memory of the device is the host's."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_OUT_OF_MEMORY=2)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=SimpleNamespace(value=1))
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=SimpleNamespace(value=0))
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUlaunchConfig = SimpleNamespace
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16,
    )
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    @staticmethod
    def CUlaunchAttribute():
        return SimpleNamespace(value=SimpleNamespace())

    def __init__(self):
        self.held, self.recorded, self.calls, self.free = {}, None, [], 1 << 30

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *arguments: (self.calls.append(name), (0, *self.does(name, *arguments)))[1]

    def does(self, name, *arguments):
        if name in ("cuLaunchKernelEx", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemsetD8Async"):
            if self.recorded is not None:
                self.recorded.append((name, arguments))
            else:
                getattr(self, f"do_{name}")(*arguments)
            return ()
        return getattr(self, f"do_{name}", lambda *_: ("a handle",))(*arguments)

    def do_cuDeviceGetCount(self):
        return (1,)

    def do_cuDeviceGetName(self, n, device):
        return (b"Stand-in\0".ljust(n),)  # as cuda.bindings gives it

    def do_cuDeviceGetAttribute(self, attribute, device):
        return ({75: 9, 76: 0, 16: 132}[attribute],)

    def do_cuMemGetInfo(self):
        return (self.free, 1 << 30)

    def do_cuMemAlloc(self, n):
        array = np.full(n, 0xAB, np.uint8)
        self.held[array.ctypes.data] = array
        return (array.ctypes.data,)

    def do_cuMemHostAlloc(self, n, flags):
        return self.do_cuMemAlloc(n)

    def do_cuMemFree(self, address):
        del self.held[address]
        return ()

    do_cuMemFreeHost = do_cuMemFree

    def do_cuMemsetD8Async(self, address, value, n, stream):
        ctypes.memset(address, value, n)

    def do_cuMemcpyHtoDAsync(self, to, source, n, stream):
        ctypes.memmove(to, source, n)

    do_cuMemcpyDtoHAsync = do_cuMemcpyDtoDAsync = do_cuMemcpyHtoDAsync

    def do_cuModuleGetFunction(self, module, entry):
        return (KERNELS[entry.decode()],)

    def do_cuStreamBeginCapture(self, stream, mode):
        self.recorded = []
        return ()

    def do_cuStreamEndCapture(self, stream):
        graph, self.recorded = self.recorded, None
        return (graph,)

    def do_cuGraphInstantiate(self, graph, flags):
        return (graph,)

    def do_cuGraphLaunch(self, graph, stream):
        self.graph = graph
        for name, arguments in graph:
            self.does(name, *arguments)
        return ()

    def do_cuEventElapsedTime(self, first, second):
        return (2.0,)

    def do_cuLaunchKernelEx(self, config, kernel, parameters, extra):
        assert (config.blockDimY, config.blockDimZ, extra) == (1, 1, 0)
        places = (ctypes.c_void_p * len(kernel.parameters)).from_address(parameters)
        arguments = []
        for kind, place in zip(kernel.parameters, places, strict=True):
            value = C_TYPES.get(kind, ctypes.c_uint64).from_address(place).value
            arguments.append(self.view(value).view(ELEMENTS[kind]) if kind in ELEMENTS else value)
        blocks = (config.gridDimX, config.gridDimY, config.gridDimZ)
        grid.run(kernel.function, blocks, config.blockDimX, kernel.grouped(arguments))

    def view(self, address):
        """The memory from an address on, in the allocation that has it."""
        start = max(each for each in self.held if each <= address)
        return self.held[start][address - start :]
