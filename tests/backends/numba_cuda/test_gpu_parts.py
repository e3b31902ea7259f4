"""What `tests/gpu` has for real hardware runs here, too, at least sizes: so that no run there ends at a renamed argument."""

import json
import shutil
import subprocess
import sys
from functools import partial, reduce
from operator import or_
from types import GeneratorType, SimpleNamespace

import attrs
import numpy as np
import pytest
from cuda_simulator.device import SimulatedDevice
from gpu import checks, models, probes, speed
from support import llama_bench
from support.head_rig import rounds

from augury.backends.numba_cuda import probe
from augury.devices import DeviceInfo

LEAST = models.Shape("least", 64, 64, 2, 2, 1, 32, 512)
LEAST_MIXTURE = attrs.evolve(LEAST, name="least mixture", n_experts=4, n_used=2)
LARGER = attrs.evolve(LEAST, name="larger", n_vocab=9100)
LATENT = {key: kernel for key, kernel in checks.ATTEND_LATENT.items() if key[0] == "f16"}

# by part: what takes the place of what its module has
ON_CPU = {  # computed by numba-cpu, since results are to be right
    "near_other_backends": {"TINY": LEAST},
    "architectures": {"ORACLES": ("gemma3-dense", "deltanet-dense"), "ATTEND": [("f16", "f16"), ("q8_0", "q8_0")]},
    "heads": {"DRAFTS": ("eagle3-qwen35-hybrid",), "MTP": ("mtp-qwen35",)},  # where halves decide between two tokens
    "speculation": {"TINY": LEAST, "N_SPECULATED": 500},
}
IDLE = {  # on a GPU that launches no kernel, so that all is 0
    "invariance": {"TINY": LEAST, "TINY_MIXTURE": LEAST_MIXTURE},
    "recordings": {"TINY": LEAST, "N_RECORDED": 12},
    "placement": {"TINY": LEAST, "N_PLACED": 8},
    "chains": {"TINY": LEAST, "SMALL": LARGER, "N_CHAINED": 8},
    "overlap": {"TINY": LEAST, "SMALL": LARGER, "N_OVERLAPPED": 8},
    "memory_checker": {"TINY": LEAST, "KINDS": ("llama-dense",)},
}
SIMULATED = {
    "products": {"FORMATS": {"Q8_0": checks.FORMATS["Q8_0"]}, "TILES": checks.TILES[-2:], "PRODUCT": (20, 64)},
    "latent_attention": {"ATTEND_LATENT": LATENT, "LATENTS": (4, 32, 16, 300)},
    "choosing": {"N_VOCAB": 600},
    "e2_columns": {"N_MEASURED": 6, "CASES": (2, 2)},
}
SPEED = {  # on that GPU, too
    **{name: {} for name in ("versions", "compilation", "launches", "starts", "e1_overlap", "e4_grid_barrier")},
    **{name: {"STREAMED": 1 << 26} for name in ("e3_bulk_copies", "e5_matrix_rates")},
    "e6_products": {"STREAMED": 1 << 16, "LARGE": LEAST},
    **{name: {"SMALL": LEAST, "MIDDLE": LEAST, "LARGE": LEAST} for name in ("kernels", "contexts", "halves")},
    "cpu_threads": {"MIDDLE": LEAST, "THREADS": (1,)},
    "copying": {"_GIB": 1 << 22},
    "products": {"FORMATS": {"Q8_0": speed.FORMATS["Q8_0"]}},
    "choosing": {},
    **{name: {name.upper(): LEAST} for name in ("small", "middle", "large", "mixture")},
    "drafts": {"SMALL": LEAST},
    "rounds": {"MIDDLE": LEAST},
    "heads": {"MIDDLE": LEAST},
}


pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")  # where logits are 0, and their sums of powers, too


def told_by(parts, name, smaller, monkeypatch):
    """What a part tells, as a file keeps it."""
    (part,) = (each for each in parts if each.__name__ == name)
    for constant, value in smaller.items():
        monkeypatch.setattr(sys.modules[part.__module__], constant, value)
    told = part()
    told = reduce(or_, told) if isinstance(told, GeneratorType) else told
    return json.loads(json.dumps(told, default=str))


@pytest.fixture
def idle(driver, monkeypatch):
    """A GPU on which kernels do nothing, and other programs that are called."""
    driver.free = 1 << 40
    driver.do_cuLaunchKernelEx = driver.do_cuLaunchKernel = lambda *_: ()
    find = driver.do_cuModuleGetFunction
    driver.do_cuModuleGetFunction = lambda module, name: ("a kernel",) if module == "a handle" else find(module, name)
    found = DeviceInfo("CUDA0", "idle", 1 << 40, 1 << 40, {"device": 0})
    monkeypatch.setattr(probe, "unavailable_reason", lambda: None)
    monkeypatch.setattr(probe, "devices", lambda: (found,))
    monkeypatch.setattr(shutil, "which", lambda name: f"/{name}")
    monkeypatch.setattr(models, "SMALL", LEAST)  # which a program loads that is called

    def run(words, **_):
        if "-c" in words:
            exec(words[-1], {})  # by a Python
        return SimpleNamespace(returncode=0, stdout=llama_bench.runs(words) if "jsonl" in words else "", stderr="")

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ON_CPU)
def test_parts_that_tell_right_from_wrong_run_on_a_cpu(name, monkeypatch):
    def load(file, backend="numba-cuda", **params):
        return models.load(file, "numba-cpu" if backend == "numba-cuda" else backend, **params)

    monkeypatch.setattr(checks, "load", load)
    monkeypatch.setattr(checks, "engine_of", partial(checks.engine_of, backend="numba-cpu"))
    monkeypatch.setattr(checks, "rounds", lambda name, _: rounds(name, "numba-cpu"))
    told_by(checks.PARTS, name, ON_CPU[name], monkeypatch)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", IDLE)
def test_parts_that_compare_a_gpu_with_itself_run_on_an_idle_one(name, idle, monkeypatch):
    assert "left out" not in told_by(checks.PARTS, name, IDLE[name], monkeypatch)


@pytest.mark.sample(0)  # of 20 s, in which kernels are compiled that other tests of the simulator compile, too
@pytest.mark.parametrize("name", SIMULATED)
def test_parts_that_compare_kernels_with_oracles_run_in_the_simulator(name, monkeypatch):
    for module in (checks, probes):
        monkeypatch.setattr(module, "Gpu", SimulatedDevice)
    told = told_by((*checks.PARTS, probes.e2_columns), name, SIMULATED[name], monkeypatch)
    assert name != "e2_columns" or (told["floats that differ"], told["of those measured"]) == (0, 0)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", SPEED)
def test_parts_that_measure_run_on_an_idle_gpu(name, idle, monkeypatch):
    told = told_by(speed.PARTS, name, SPEED[name], monkeypatch)
    assert not [each for each in told if "failed" in each or "left out" in each]


def test_every_part_runs_here():
    probed = {"e2_columns"}  # in the simulator
    assert (ON_CPU.keys() | IDLE.keys() | SIMULATED.keys()) - probed == {part.__name__ for part in checks.PARTS}
    assert SPEED.keys() | probed == {part.__name__ for part in speed.PARTS}


def test_what_differs_is_told():
    model = models.load(models.random_model(LEAST, models.Q4_K_M), "numba-cpu", n_ctx=32, n_slots=2)
    assert checks._where_they_differ(model, np.int32([1, 2, 3])) == "not in embedding, layer.0, layer.1, output"
    assert checks._differing(np.float32([[1, 2]]), np.float32([[1, 4]])) == "of rows {0: 1} of 2 values, by 2.0 at most"
