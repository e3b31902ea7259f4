import numpy as np
import pytest
import support.stand_in_tiles  # noqa: F401 - one more instruction set
from oracles.models import tiny_file
from oracles.passes import run_of

from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions
from augury.backends.numba_cpu.kernels.isa import available_isas
from augury.backends.numba_cpu.team import Team, limits
from augury.interfaces import Progress
from augury.plugins.architectures.llama import Llama
from augury.plugins.bench.commands.roofline import measure_roofline
from augury.plugins.bench.timing import ModelRunner
from augury.profile import Profiled
from augury.types import ModelOptions


@pytest.fixture(scope="module")
def model():
    file = tiny_file("llama-dense-q4_k")
    model = NumbaCpu(NumbaCpuOptions()).load(file, Llama.plans(file)["main"], ModelOptions(threads=2, n_ctx=128), Progress())
    yield model
    model.close()


@pytest.mark.parametrize("n", [1, 5])
def test_a_profile_names_every_step_and_counts_its_work(model, n):
    tokens = list(range(n))
    logits = model.forward(run_of(tokens)).rows().copy()

    steps = model.profile(run_of(tokens))

    assert np.array_equal(model.forward(run_of(tokens)).rows(), logits)
    assert all(step.seconds >= 0 for step in steps)
    assert sum(step.seconds for step in steps) > 0
    assert [step.name for step in steps].count("attention") == model.info.n_layers
    (output,) = (step for step in steps if step.name.startswith("output"))
    assert output.n_multiply_adds == n * model.info.n_vocab * model.info.n_embd


def test_a_roofline_sums_the_steps_of_one_name(model):
    assert isinstance(model, Profiled)

    roofline = measure_roofline(model, ModelRunner(model), 2, 7, repetitions=1)

    assert (roofline.n, roofline.depth) == (2, 7)
    assert len({kernel.name for kernel in roofline.kernels}) == len(roofline.kernels)
    (attention,) = (kernel for kernel in roofline.kernels if kernel.name == "attention")
    assert attention.n_steps == model.info.n_layers
    assert attention.n_bytes > 0
    assert roofline.limits.bytes_per_s > 1e8
    assert roofline.limits.multiply_adds_per_s > 1e8


def test_the_limit_of_an_instruction_set_with_tiles_is_that_of_tiles():
    found = {}
    for isa in available_isas():
        team = Team(1)
        found[isa] = limits(team, isa).multiply_adds_per_s
        team.close()

    assert all(each > 1e7 for each in found.values())
    if "amx" in found:
        assert found["amx"] > 2 * found["avx512vnni"]
