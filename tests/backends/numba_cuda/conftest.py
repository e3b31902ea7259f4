"""Here kernels run in the simulator: what they are written in is chosen when it is imported, so it is imported here first."""

import os

import pytest

from augury.backends.numba_cuda.probe import SIMULATOR

os.environ[SIMULATOR] = "1"
from augury.backends.numba_cuda.kernels import dialect

del os.environ[SIMULATOR]  # other tests and their processes are not to find a GPU

assert dialect.SIMULATED


@pytest.fixture(autouse=True)
def _simulated(monkeypatch):
    monkeypatch.setenv(SIMULATOR, "1")
