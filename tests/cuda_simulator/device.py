"""A GPU that is simulated: its memory is arrays, and everything is over when it was begun."""

from functools import partial

import numpy as np
from cuda_simulator import grid

from augury.backends.numba_cuda import probe
from augury.backends.numba_cuda.backend import NumbaCuda
from augury.backends.numba_cuda.device import ELEMENTS, Buffer, Copy, Device, Pointer
from augury.devices import DeviceInfo
from augury.memory_limit import n_bytes_of_machine


class SimulatedDevice(Device):
    """Stands for a `Gpu`; see there."""

    is_reversed = False  # whether blocks, and the threads of a block, run from the last to the first

    def _allocate(self, n_bytes):
        return Buffer(n_bytes, array=np.zeros(n_bytes, np.uint8))

    def prepare(self, kernels, progress):
        """Lanes are compiled when they are first called."""

    def staging(self, n):
        return np.zeros(n, np.int32)

    def program(self, steps, staged=None, fetched=None):
        begun = [] if staged is None else [partial(self.send, *staged)]
        begun += [partial(self.copy if isinstance(each, Copy) else self.launch, each) for each in steps]
        begun += [] if fetched is None else [partial(self.fetch, *fetched)]
        return lambda: [step() for step in begun]

    def launch(self, launch):
        kernel, given = launch.kernel, zip(launch.kernel.parameters, launch.arguments, strict=True)
        arguments = [_array(each).view(ELEMENTS[letter]) if isinstance(each, Pointer) else each for letter, each in given]
        grouped = kernel.grouped(arguments)
        grid.run(kernel.function, launch.grid, launch.n_threads, grouped, is_reversed=self.is_reversed)

    def copy(self, step):
        _array(step.to)[: step.n_bytes] = _array(step.source)[: step.n_bytes]

    def write(self, to, array):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        _array(to)[: len(flat)] = flat

    def read(self, source, array):
        array.reshape(-1).view(np.uint8)[:] = _array(source)[: array.nbytes]

    def send(self, staged, to):
        self.write(to, staged)

    def fetch(self, source, staged):
        self.read(source, staged)

    def mark(self):
        pass

    def wait(self):
        return None

    def close(self):
        self._n_bytes.clear()


class CountingDevice(SimulatedDevice):
    """Counts allocations, and allocates nothing."""

    def _allocate(self, n_bytes):
        return Buffer(n_bytes)


def _array(pointer):
    assert pointer.buffer.array is not None
    return pointer.buffer.array[pointer.offset :]


def simulate(monkeypatch):
    """Let there be two GPUs, so that models can be divided among them."""
    n_bytes = n_bytes_of_machine()
    found = tuple(DeviceInfo(f"CUDA{i}", "simulated GPU", n_bytes, n_bytes, {"device": i}) for i in range(2))
    monkeypatch.setattr(probe, "unavailable_reason", lambda: None)
    monkeypatch.setattr(probe, "devices", lambda: found)
    monkeypatch.setattr(NumbaCuda, "_open", lambda backend: SimulatedDevice(backend.options.device))
