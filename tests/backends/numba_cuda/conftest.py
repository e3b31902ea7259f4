"""Here kernels run in the simulator."""

import sys
from pathlib import Path
from types import SimpleNamespace

import cuda_simulator.installed  # noqa: F401 - before the modules that have kernels
import pytest
from cuda_simulator.device import simulate

from augury.backends.numba_cuda.aot import Binary, Compiler
from augury.backends.numba_cuda.backend import NumbaCuda
from augury.backends.numba_cuda.model import CudaModel

_OPEN = NumbaCuda._open


def pytest_collection_modifyitems(items):
    """What runs in the simulator is slow."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def _simulated(monkeypatch):
    simulate(monkeypatch)


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch):
    """A pass begins with NaN in whatever passes work in, but counters, which are 0 again when it ends."""
    compute = CudaModel._pass

    def pass_of(model, *args, **params):
        arrays = {name: at.buffer.array for name, at in model._lowering.buffers.items() if at.buffer.array is not None}
        for name, array in arrays.items():
            if "counters" not in name:
                array.fill(0xFF)
        made = compute(model, *args, **params)
        assert not any(array.any() for name, array in arrays.items() if "counters" in name)
        return made

    monkeypatch.setattr(CudaModel, "_pass", pass_of)


@pytest.fixture
def driver(monkeypatch):
    from oracles.cuda_driver import Driver  # which imports every kernel

    made = Driver()
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=SimpleNamespace(driver=made)))
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=made))
    monkeypatch.setattr(NumbaCuda, "_open", _OPEN)
    monkeypatch.setattr(
        Compiler, "binaries", lambda self, kernels, progress: {each.name: Binary(each.name, b"") for each in kernels}
    )
    return made
