"""A machine that cannot run CUDA kernels is told what is missing, and goes on without."""

import ctypes
import subprocess
import sys

import pytest

from augury import Registry
from augury.backends.numba_cuda import NumbaCuda, probe
from augury.errors import UnsupportedError
from augury.extras import install_command
from augury.loader import make_backend

PACKAGES = ("numba_cuda", "cuda.bindings", "cuda.core", "nvidia")


@pytest.fixture(autouse=True)
def _no_simulator(monkeypatch):
    monkeypatch.undo()


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with everything, of which tests take something away."""

    class Driver:
        capability, error, version = (9, 0), 0, 13000

        def cuInit(self, flags):
            return self.error

        def cuDriverGetVersion(self, version):
            version._obj.value = self.version

        def cuDeviceGet(self, device, number):
            return 0

        def cuDeviceGetName(self, name, n, device):
            name.value = b"NVIDIA Abacus"

        def cuDeviceGetAttribute(self, value, attribute, device):
            value._obj.value = self.capability[attribute - 75]

        retained, n_failing, n_pushed = 0, 0, 0

        def cuDeviceGetCount(self, n):
            n._obj.value = 2

        def cuDevicePrimaryCtxRetain(self, context, device):
            self.retained += 1
            return 0

        def cuCtxPushCurrent_v2(self, context):
            self.n_failing -= 1
            self.n_pushed += self.n_failing < 0
            return self.n_failing >= 0

        def cuMemGetInfo_v2(self, free, total):
            free._obj.value, total._obj.value = 70 << 30, 80 << 30

        def cuCtxPopCurrent_v2(self, context):
            self.n_pushed -= 1

        def cuDevicePrimaryCtxRelease_v2(self, device):
            self.retained -= 1

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    class Machine:
        driver, packages, compiler = Driver(), set(PACKAGES), tmp_path / "cu13/lib/libnvvm.so.4"

    def load(name):
        if Machine.driver is None:
            raise OSError(name)
        return Machine.driver

    Machine.compiler.parent.mkdir(parents=True)
    Machine.compiler.touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # without machine code of this computer's earlier starts
    monkeypatch.setattr(probe, "find_spec", lambda name: Spec if name in Machine.packages else None)
    monkeypatch.setattr(ctypes, "CDLL", load)
    return Machine


def test_a_machine_with_everything_will_do(machine):
    assert NumbaCuda.unavailable_reason() is None


def test_each_thing_that_is_missing_is_named(machine, monkeypatch):
    def told():
        return NumbaCuda.unavailable_reason()

    machine.driver.capability = (7, 5)
    assert told() == (
        "NVIDIA Abacus has compute capability 7.5, expected 8.0 or later; use another GPU, or --backend numba-cpu"
    )
    machine.driver.version = 12080
    assert told() == "the NVIDIA driver is of CUDA 12.8, expected 13.0 or later; install a newer one"
    machine.driver.error = 100
    assert told() == "the NVIDIA driver finds no GPU that works (cuInit: error 100); see what nvidia-smi says"
    machine.driver = None
    assert told() == "there is no NVIDIA driver (libcuda.so.1); install one, of CUDA 13 or later"
    machine.compiler.unlink()
    assert told().startswith(f"there is no libnvvm, which compiles kernels; {install_command('cuda')}")
    kept = probe.cubins_folder() / "sm_90-key" / "norm_rows.cubin"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert told() == "there is no NVIDIA driver (libcuda.so.1); install one, of CUDA 13 or later", (
        "kernels are compiled already"
    )
    machine.packages.remove("cuda.core")
    assert told() == f"cuda.core is not installed; {install_command('cuda')}"
    machine.packages.clear()
    assert told() == f"numba_cuda is not installed; {install_command('cuda')}"


def test_every_gpu_that_will_do_is_told_with_its_memory(machine):
    first, second = NumbaCuda.devices()
    assert (first.name, first.description, first.n_bytes >> 30, first.n_bytes_free >> 30) == ("CUDA0", "NVIDIA Abacus", 80, 70)
    assert (second.name, dict(second.options)) == ("CUDA1", {"device": 1})
    machine.driver.n_failing = 1
    assert [each.name for each in NumbaCuda.devices()] == ["CUDA1"]
    assert (machine.driver.retained, machine.driver.n_pushed) == (0, 0)
    machine.driver.capability = (7, 5)
    assert list(NumbaCuda.devices()) == []


def test_the_error_says_why_and_auto_takes_another_backend(machine):
    machine.driver = None
    registry = Registry.discover()
    with pytest.raises(UnsupportedError, match=r"backend numba-cuda cannot run here: there is no NVIDIA driver"):
        make_backend(registry, "numba-cuda")
    assert make_backend(registry, "auto").name == "numba-cpu"


def test_even_with_a_gpu_auto_takes_the_backend_that_was_measured(machine):
    assert make_backend(Registry.discover(), "auto").name == "numba-cpu"


def test_nothing_of_it_is_imported_before_it_is_chosen():
    code = (
        "import sys; from augury import Registry; registry = Registry.discover(); registry.choose('backend', None)\n"
        "assert not {'numba', 'cuda.bindings', 'augury.backends.numba_cuda.kernels'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
