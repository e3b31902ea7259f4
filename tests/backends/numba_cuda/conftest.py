"""Here kernels run in the simulator: what they are written in is chosen when it is imported, so it is imported here first."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from augury.backends.numba_cuda.probe import SIMULATOR

os.environ[SIMULATOR] = "1"
import support.kept_lanes  # noqa: F401 - before the modules that have lanes

from augury.backends.numba_cuda import backend
from augury.backends.numba_cuda.aot import Binary, Compiler
from augury.backends.numba_cuda.kernels import dialect
from augury.backends.numba_cuda.model import CudaModel

del os.environ[SIMULATOR]  # other tests and their processes are not to find a GPU

assert dialect.SIMULATED


def pytest_collection_modifyitems(items):
    """What runs in the simulator is slow."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def _simulated(monkeypatch):
    monkeypatch.setenv(SIMULATOR, "1")


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
    monkeypatch.setattr(backend.probe, "is_simulated", lambda: False)
    monkeypatch.setattr(
        Compiler, "binaries", lambda self, kernels, progress: {each.name: Binary(each.name, b"") for each in kernels}
    )
    return made
